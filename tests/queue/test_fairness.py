"""Who is served when: rounds past what is closed, at a bounded price; weights; shares of a claim."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from duly import queue
from duly.queue import ClaimCursor, Database, QueueSettings, Shares
from support.engine import Engine, new_job, new_owner, settled
from support.plans import buffers_of
from support.sessions import holding

HOUR = timedelta(hours=1)
KEYS = 400


async def full_keys(engine: Engine, n: int, name: str = "keys") -> None:
    """n keys with a limit of one, each with one job that runs and one that waits."""
    await queue.set_queue(engine.db, engine.owner.project_id, name, QueueSettings(key_concurrency=1))
    for _ in range(2):
        await engine.put(*(new_job(queue=name, concurrency_key=str(key)) for key in range(n)))
    claimed = 0
    while claimed < n:
        claimed += len(await engine.claim(cursor=ClaimCursor()))
    assert claimed == n


async def test_one_open_key_among_full_ones_is_found(database: Database) -> None:
    """Wherever it stands and wherever the round stands; and when there is none, nothing is found."""
    engine = await Engine.start(database)
    await full_keys(engine, KEYS)
    assert await engine.claim() == []
    rng = random.Random(5)
    for _ in range(10):
        key = str(rng.randrange(KEYS))
        await database.execute(
            """delete from duly.lease where job_id = (
                   select l.job_id from duly.lease l join duly.job j on j.id = l.job_id
                   where j.concurrency_key = $1)""",
            key,
        )
        [job] = await engine.claim(5)
        [found] = await database.fetch("select concurrency_key from duly.job where id = $1", job.id)
        assert found["concurrency_key"] == key
        await engine.enqueue(queue="keys", concurrency_key=key)
        assert await engine.claim() == []


async def test_a_small_account_waits_for_no_round_over_full_keys(database: Database) -> None:
    """A single job beside four hundred full keys of another account is in the next claim, wherever the round stands."""
    engine = await Engine.start(database)
    await full_keys(engine, KEYS)
    small = await new_owner(database)
    for _ in range(20):
        [wanted] = await engine.enqueue(owner=small)
        assert [job.id for job in await engine.claim(10)] == [wanted]


async def test_open_lanes_behind_closed_ones_get_their_turn(database: Database) -> None:
    """An account with four hundred full keys before its open lane, beside fifty accounts that always have work: though
    every claim is full without it, the lane is served.
    """
    engine = await Engine.start(database)
    await full_keys(engine, KEYS)
    [wanted] = await engine.enqueue(queue="open")
    others = [await new_owner(database) for _ in range(50)]
    for _ in range(200):
        await queue.enqueue(database, [(owner, new_job()) for owner in others])
        if wanted in {job.id for job in await engine.claim(4)}:
            break
    else:
        pytest.fail("the open lane was never served")


@pytest.mark.parametrize("closed", ["paused", "kind", "full", "account", "rate"])
async def test_closed_accounts_hide_nobody(database: Database, closed: str) -> None:
    """A hundred and fifty accounts from which nothing may be claimed, whatever the reason: the one job of another is
    found in one call, at the end of the numbers and at the beginning.
    """
    engine = await Engine.start(database)
    first = await new_owner(database)
    for _ in range(150):
        owner = await new_owner(database)
        settings = {
            "paused": QueueSettings(paused=True),
            "full": QueueSettings(concurrency=1),
            "rate": QueueSettings(rate=queue.Rate(1, HOUR)),
        }.get(closed, QueueSettings())
        await queue.set_queue(database, owner.project_id, "default", settings)
        if closed == "account":
            await queue.set_account_concurrency(database, owner.account_id, 1)
        await queue.enqueue(database, [(owner, new_job(kind="other" if closed == "kind" else "k")) for _ in range(2)])
    while await engine.claim():
        pass
    last = await new_owner(database)
    for owner in (last, first, last):
        [wanted] = await engine.enqueue(owner=owner)
        assert [job.id for job in await engine.claim(10)] == [wanted]
    await engine.sound()


@pytest.mark.slow
async def test_closed_lanes_cost_a_claim_a_bounded_number_of_looks(database: Database, database_url: str) -> None:
    """Two thousand full keys of one account, two hundred accounts without a served kind. No statement touches more than
    8,000 buffers, fifty a look (an index probe for each live segment of ready and lease, and the block's, queue's
    and key's rows), and a small account is served before a handful of them.
    """
    engine = await Engine.start(database, lease=HOUR)
    await full_keys(engine, 2000)
    strangers = [await new_owner(database) for _ in range(200)]
    await queue.enqueue(database, [(owner, new_job(kind="other")) for owner in strangers])
    small = await new_owner(database)
    await database.execute("analyze")
    nothing = await buffers_of(database_url, lambda db: engine.claim(db=db))
    assert len(nothing) > 10, "it did not look at everything"
    assert max(nothing) < 8000
    for _ in range(5):
        await engine.enqueue(owner=small)
        cost = await buffers_of(database_url, lambda db: engine.claim(10, db=db))
        assert sum(touched > 100 for touched in cost) <= 6
        assert max(cost) < 8000


async def test_weights_divide_what_a_claim_takes(database: Database) -> None:
    """3 to 1 between two accounts that both have plenty, and a third without: in large claims, and in claims of one."""
    engine = await Engine.start(database)
    heavy, light = engine.owner, await new_owner(database)
    await new_owner(database)
    await queue.set_account_weight(database, heavy.account_id, 3)
    for limit, times in ((40, 10), (1, 400)):
        await engine.enqueue(500)
        await engine.enqueue(500, owner=light)
        counts: Counter[int] = Counter()
        for _ in range(times):
            jobs = await engine.claim(limit)
            assert len(jobs) == limit
            counts.update(job.account_id for job in jobs)
        assert counts.total() == 400
        assert 260 <= counts[heavy.account_id] <= 340
        while await engine.claim():
            pass


async def test_a_weight_takes_nothing_from_a_claim_that_has_room(database: Database) -> None:
    """What an account does not need another gets, whatever the weights say."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    await queue.set_account_weight(database, other.account_id, 100)
    await engine.enqueue(50)
    [one] = await engine.enqueue(owner=other)
    claimed = [job.id for _ in range(4) for job in await engine.claim(30)]
    assert one in claimed
    assert len(claimed) == 51


async def test_a_claim_takes_no_more_of_an_account_than_its_share(database: Database) -> None:
    """Over its lanes; none of one that has no share left, and the next account is found behind it."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    for key in range(3):
        await engine.enqueue(10, concurrency_key=str(key))
    await engine.enqueue(2, owner=other)
    engine.cursor.shares = Shares(cap=5)
    counts = Counter(job.account_id for job in await engine.claim(20))
    assert counts == {engine.owner.account_id: 5, other.account_id: 2}
    engine.cursor.shares = Shares(capped={engine.owner.account_id: 0})
    assert await engine.claim(20) == []
    [wanted] = await engine.enqueue(owner=other)
    assert [job.id for job in await engine.claim(20)] == [wanted]
    engine.cursor.shares = Shares(cap=20, capped={engine.owner.account_id: 3})
    assert len(await engine.claim(20)) == 3


async def test_a_rival_s_lock_is_told(database: Database, database_url: str) -> None:
    """A claim under a limit is open in another transaction: the lane is passed by, and the cursor says that it is worth
    another look in a moment.
    """
    engine = await Engine.start(database)
    await queue.set_queue(database, engine.owner.project_id, "default", QueueSettings(concurrency=10))
    await engine.enqueue(4)
    async with holding(database_url) as (session, transaction):
        [mine] = await engine.claim(1, db=session)
        assert await engine.claim() == []
        assert engine.cursor.wait is not None
        assert engine.cursor.wait < timedelta(seconds=0.1)
        await transaction.commit()
    assert len(await engine.claim()) == 3
    await engine.settle(settled(mine, "succeeded"))
    await engine.sound()
