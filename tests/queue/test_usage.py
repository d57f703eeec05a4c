"""What an account has in the queue, and its quota: counted from the rows themselves, at a cost that is bounded."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from duly import queue
from duly.queue import Database, QuotaTaken
from support.engine import Engine, new_owner

HOUR = timedelta(hours=1)


async def test_every_place_counts_until_a_job_has_ended(database: Database) -> None:
    """Scheduled, ready, running: stored. Ended in any way: not. Somebody else's: never."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    account = engine.owner.account_id
    assert not await queue.project_has_jobs(database, account, engine.owner.project_id)
    await engine.enqueue(4)
    await engine.enqueue(2, delay=HOUR)
    jobs = await engine.claim(2)
    usage = await queue.account_usage(database, account, 100)
    assert (usage.slots_in_use, usage.due, usage.stored) == (2, 2, 6)
    assert usage.oldest_due_at is not None
    assert usage.oldest_due_at <= usage.asked_at
    assert await queue.stored_jobs(database, account, 100) == 6
    assert [await queue.stored_jobs(database, account, n) for n in (1, 2, 3, 4, 5, 6)] == [1, 2, 3, 4, 5, 6]
    assert await queue.project_has_jobs(database, account, engine.owner.project_id)
    assert not await queue.project_has_jobs(database, other.account_id, other.project_id)
    for job in jobs:
        await engine.finish(job)
    assert await queue.stored_jobs(database, account, 100) == 4
    assert await queue.stored_jobs(database, other.account_id, 100) == 0
    usage = await queue.account_usage(database, account, 1)
    assert (usage.slots_in_use, usage.due, usage.stored) == (0, 1, 1)
    empty = await queue.account_usage(database, other.account_id, 100)
    assert (empty.slots_in_use, empty.due, empty.oldest_due_at, empty.stored) == (0, 0, None, 0)


async def test_the_oldest_is_found_in_any_lane_and_segment(database: Database) -> None:
    """Whatever came later, in whatever queue."""
    engine = await Engine.start(database)
    old = await engine.enqueue(1, queue="z", concurrency_key="k")
    await database.execute("update duly.ready set run_at = now() - interval '1 hour', line_at = now()")
    for n in range(5):
        await queue.advance(database)
        await engine.enqueue(3, queue=f"q{n}")
    usage = await queue.account_usage(database, engine.owner.account_id, 100)
    assert usage.oldest_due_at is not None
    assert HOUR <= usage.asked_at - usage.oldest_due_at < 2 * HOUR
    await queue.cancel(database, engine.owner, old[0])
    usage = await queue.account_usage(database, engine.owner.account_id, 100)
    assert usage.oldest_due_at is not None
    assert usage.asked_at - usage.oldest_due_at < HOUR


async def test_a_quota_is_taken_in_blocks_and_given_back(database: Database) -> None:
    """At least what is wanted, at most a block more, never beyond the quota; what is given back is there again, unless
    its month has ended.
    """
    account = (await new_owner(database)).account_id

    async def take(quota: int, wanted: int, block: int) -> QuotaTaken:
        return await queue.take_quota(database, account, quota, wanted, block)

    assert (await take(100, 1, 10))[:2] == (10, 90)
    assert (await take(100, 50, 10))[:2] == (50, 40)
    assert (await take(100, 41, 10))[:2] == (0, 40)
    assert (await take(100, 35, 60))[:2] == (40, 0)
    assert (await take(100, 1, 10))[:2] == (0, 0)
    assert 0 < (await take(100, 1, 10)).ends_in_s <= 31 * 86_400
    await queue.give_back_quota(database, account, 7, 1.0)
    await queue.give_back_quota(database, account, 50, -1.0)
    assert (await take(100, 1, 10))[:2] == (7, 0)
    assert (await queue.account_usage(database, account, 10)).quota_taken == 100
    assert (await take(50, 1, 10))[:2] == (0, -50)


async def test_racing_takers_never_exceed_a_quota(database: Database) -> None:
    """Each takes in a transaction of its own, all at once: together exactly the quota."""
    account = (await new_owner(database)).account_id
    taken = await asyncio.gather(*(queue.take_quota(database, account, 100, 1, 7) for _ in range(40)))
    assert sum(one.taken for one in taken) == 100


async def test_last_months_quota_is_forgotten(database: Database) -> None:
    """It counts for nothing, and goes once its month lies a month back."""
    account = (await new_owner(database)).account_id
    await database.execute(
        """insert into duly.quota_block (account_id, month, size)
           select $1, date_trunc('month', now() at time zone 'utc')::date - days, 5
             from unnest('{1, 40, 70}'::int[]) days""",
        account,
    )
    assert (await queue.take_quota(database, account, 5, 5, 1)).taken == 5
    assert await queue.forget_quotas(database, 1) == 1
    assert await queue.forget_quotas(database, 10) == 1
    assert await queue.forget_quotas(database, 10) == 0
    assert await database.fetchval("select count(*) from duly.quota_block") == 2
