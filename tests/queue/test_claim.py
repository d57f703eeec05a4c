"""ready → running: which jobs, in which order, for whom."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from duly import queue
from duly.model import Backoff, NewJob, RetryPolicy, State, Trigger
from duly.model.errors import LeaseLostError
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, Owner
from support.engine import Engine, new_job, new_owner, new_worker, settled
from support.sessions import holding

MINUTE = timedelta(minutes=1)
MOMENT = timedelta(milliseconds=10)  # so short a lease that the grace after a server start is over


async def test_a_claimed_job_carries_what_its_handler_needs(database: Database) -> None:
    """Payload, body, limits, policy, numbers, trigger and age, under attempt 1; the job is running then."""
    engine = await Engine.start(database)
    policy = RetryPolicy(3, Backoff("fixed", base=MINUTE), max_age=60 * MINUTE, on=(404, "5xx"))
    due = await queue.server_now(database) - MINUTE
    new = NewJob(
        "k", {"a": 1}, b"raw", queue="q", concurrency_key="c", priority=2, run_at=due, timeout=2 * MINUTE, retry=policy
    )
    await engine.put(new)
    job = await engine.claim_one()
    assert (job.id, job.attempt, job.final_attempt, job.max_attempts) == (new.id, 1, 3, 3)
    assert (job.account_id, job.project_id) == (engine.owner.account_id, engine.owner.project_id)
    assert (job.queue, job.kind, job.priority, job.payload_json, job.body) == ("q", "k", 2, '{"a": 1}', b"raw")
    assert (job.timeout, job.retry, job.run_at, job.trigger) == (2 * MINUTE, policy, due, Trigger.SCHEDULE)
    assert MINUTE <= job.age < 2 * MINUTE
    assert not job.expired
    view = await engine.view(new.id)
    assert (view.state, view.attempts, view.next_run_at) == (State.RUNNING, 1, None)
    assert view.started_at is not None


async def test_nothing_due_is_an_empty_answer(database: Database) -> None:
    """No job at all; only one for later."""
    engine = await Engine.start(database)
    assert await engine.claim() == []
    await engine.enqueue(delay=MINUTE)
    assert await engine.claim() == []


async def test_a_lower_number_goes_first(database: Database) -> None:
    """Inside a lane: priority 0 before 9, whenever they came, in whatever segment they stand."""
    engine = await Engine.start(database)
    ids = {}
    for priority in (9, 5, 0, 7, 3):
        [ids[priority]] = await engine.enqueue(priority=priority)
        await queue.advance(database)
    order = [(await engine.claim_one()).id for _ in range(5)]
    assert order == [ids[priority] for priority in (0, 3, 5, 7, 9)]


async def test_the_longest_due_goes_first(database: Database) -> None:
    """Inside a priority: by run_at, not by arrival."""
    engine = await Engine.start(database)
    now = await queue.server_now(database)
    ids = {}
    for minutes in (1, 5, 3):
        [ids[minutes]] = await engine.enqueue(run_at=now - minutes * MINUTE)
    assert [(await engine.claim_one()).id for _ in range(3)] == [ids[5], ids[3], ids[1]]


async def test_a_level_of_priority_is_worth_an_hour(database: Database) -> None:
    """No starvation: who has been due an hour longer per level goes before the more urgent, in whatever segment."""
    engine = await Engine.start(database)
    now = await queue.server_now(database)
    ids = {}
    given = {"urgent": (0, 0), "old": (3, 3.1), "young": (3, 2.9), "oldest": (9, 9.2), "usual": (5, 0)}
    for name, (priority, hours) in given.items():
        [ids[name]] = await engine.enqueue(priority=priority, run_at=now - timedelta(hours=hours))
        await queue.advance(database)
    order = [(await engine.claim_one()).id for _ in range(5)]
    assert order == [ids[name] for name in ("oldest", "old", "urgent", "young", "usual")]


async def test_a_stream_of_urgent_jobs_starves_nobody(database: Database) -> None:
    """One job of the last level among urgent ones without end: it is overtaken only by those due less than nine hours
    after it.
    """
    engine = await Engine.start(database)
    start = await queue.server_now(database) - timedelta(hours=20)
    [last] = await engine.enqueue(priority=9, run_at=start)
    overtaken = 0
    for minutes in range(0, 20 * 60, 15):
        await engine.enqueue(priority=0, run_at=start + timedelta(minutes=minutes))
        job = await engine.claim_one()
        if job.id == last:
            break
        overtaken += 1
    assert overtaken == 9 * 4


async def test_a_place_in_line_survives_retry_rescue_and_release(database: Database) -> None:
    """FO-058: a rescued, retried or released urgent job goes before a hundred fresh ones of lower priority."""
    engine = await Engine.start(database, MOMENT)
    ways: tuple[Edge | None, ...] = (None, "retry", "snooze", "interrupted", "release")  # None: its worker is lost
    for way in ways:
        urgent = await engine.running(priority=0)
        await engine.enqueue(100, priority=5)
        if way is None:
            await engine.expire_worker()
            await engine.rescue()
            await database.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
        else:
            await engine.finish(urgent, way)
        await engine.due_now(urgent.id)
        assert (await engine.claim_one()).id == urgent.id
        while jobs := await engine.claim():
            await engine.settle(*(settled(job, "succeeded") for job in jobs))


async def test_priority_comes_before_time_in_one_claim(database: Database) -> None:
    """A claim for three of six takes exactly the three most urgent."""
    engine = await Engine.start(database)
    await engine.enqueue(3, priority=6)
    urgent = await engine.enqueue(3, priority=1)
    assert {job.id for job in await engine.claim(3)} == set(urgent)


@pytest.mark.parametrize("limit", [1, 7, 16, 99])
async def test_a_claim_never_takes_more_than_its_limit(database: Database, limit: int) -> None:
    """Exactly the limit when that much is due, over few lanes and many, over one segment and several."""
    engine = await Engine.start(database)
    for key in range(10):
        await engine.enqueue(10, concurrency_key=str(key))
        await queue.advance(database)
    assert len(await engine.claim(limit)) == limit
    count = await engine.sound()
    assert (count.running, count.ready) == (limit, 100 - limit)


async def test_everything_is_claimed_once_and_in_the_end(database: Database) -> None:
    """Thin lanes, thick lanes, many segments: repeated claims hand out each job exactly once."""
    engine = await Engine.start(database)
    ids = set()
    for n in range(40):
        ids |= set(await engine.enqueue(1 + n % 5, concurrency_key=str(n), priority=n % 3))
        await queue.advance(database)
    seen: list[object] = []
    while jobs := await engine.claim(17):
        seen += [job.id for job in jobs]
    assert len(seen) == len(set(seen)) == len(ids)
    assert set(seen) == ids


async def test_kinds_and_queues_filter(database: Database) -> None:
    """Only jobs of the kinds and queues that the worker serves; no queues given: all."""
    engine = await Engine.start(database)
    ids = {}
    for kind in ("k", "l"):
        for name in ("p", "q"):
            [ids[kind, name]] = await engine.enqueue(kind=kind, queue=name)
    assert [job.id for job in await engine.claim(kinds=["k"], queues=["q"])] == [ids["k", "q"]]
    assert [job.id for job in await engine.claim(kinds=["l", "k"], queues=["p", "x"], limit=1, cursor=ClaimCursor())]
    assert await engine.claim(kinds=["none"]) == []
    assert await engine.claim(kinds=[]) == []
    assert await engine.claim(queues=[]) == []
    assert len(await engine.claim(kinds=["k", "l"])) == 2


async def test_a_worker_finds_its_kind_behind_many_accounts_that_it_does_not_serve(database: Database) -> None:
    """Hundred accounts with work of another kind do not hide the one job of this worker's kind."""
    engine = await Engine.start(database)
    strangers = [await new_owner(database) for _ in range(100)]
    await queue.enqueue(database, [(owner, new_job(kind="l")) for owner in strangers])
    last = await new_owner(database)
    [wanted] = await engine.enqueue(owner=last)
    assert [job.id for job in await engine.claim(10)] == [wanted]


async def test_a_worker_finds_its_queue_behind_many_lanes_that_it_does_not_serve(database: Database) -> None:
    """The same inside one account: two hundred lanes of another queue."""
    engine = await Engine.start(database)
    await engine.put(*(new_job(queue="other", concurrency_key=str(n)) for n in range(200)))
    [wanted] = await engine.enqueue(queue="mine")
    assert [job.id for job in await engine.claim(10, queues=["mine"])] == [wanted]


async def test_accounts_take_turns(database: Database) -> None:
    """One account with two hundred lanes of ten jobs, one with a single lane: half and half, until the small one is
    served.
    """
    engine = await Engine.start(database)
    big, small = engine.owner, await new_owner(database)
    for key in range(200):
        await engine.enqueue(10, concurrency_key=str(key))
    await engine.enqueue(20, owner=small)
    counts: Counter[int] = Counter()
    for _ in range(40):
        counts[(await engine.claim_one()).account_id] += 1
    assert counts == {big.account_id: 20, small.account_id: 20}


async def test_a_million_jobs_of_one_account_do_not_delay_the_single_one_of_another(database: Database) -> None:
    """The first claim of a batch serves both (five thousand stand for the million; test_plans has the cost)."""
    engine = await Engine.start(database)
    await engine.enqueue(5000)
    other = await new_owner(database)
    [single] = await engine.enqueue(owner=other)
    assert single in {job.id for job in await engine.claim(10)}


async def test_lanes_of_an_account_take_turns(database: Database) -> None:
    """Five lanes of unequal length: served one after the other, in a round."""
    engine = await Engine.start(database)
    for key, n in enumerate((50, 3, 50, 3, 50)):
        await engine.enqueue(n, concurrency_key=str(key))
    lanes = [(await engine.claim_one()).lane_id for _ in range(10)]
    assert len(set(lanes[:5])) == 5
    assert lanes[5:] == lanes[:5]


async def test_a_round_goes_on_where_the_last_claim_stopped(database: Database) -> None:
    """Twenty accounts, eight to a claim, their rows in the opposite order on disk: nobody is served twice before all
    are.
    """
    engine = await Engine.start(database)
    owners = [await new_owner(database) for _ in range(20)]
    for owner in reversed(owners):
        await engine.enqueue(20, owner=owner)
    served = [job.account_id for _ in range(5) for job in await engine.claim(8)]
    counts = Counter(served)
    assert len(served) == 40
    assert set(counts.values()) == {2}
    assert len(counts) == 20


async def test_a_round_over_lanes_goes_on_where_the_last_claim_stopped(database: Database) -> None:
    """The same for the lanes of one account."""
    engine = await Engine.start(database)
    for key in range(24):
        await engine.enqueue(concurrency_key=str(key))
    assert len(await engine.claim()) == 24
    engine.cursor = ClaimCursor()
    for key in reversed(range(24)):  # rows in the opposite order of their lanes
        await engine.enqueue(20, concurrency_key=str(key))
    served = [job.lane_id for _ in range(6) for job in await engine.claim(8)]
    assert set(Counter(served).values()) == {2}
    assert len(set(served)) == 24


async def test_a_worker_without_a_good_lease_claims_nothing(database: Database) -> None:
    """Expired or unknown: LeaseLostError. A heartbeat brings an expired one back."""
    engine = await Engine.start(database)
    await engine.enqueue()
    await engine.expire_worker()
    with pytest.raises(LeaseLostError):
        await engine.claim()
    with pytest.raises(LeaseLostError):
        await engine.claim(worker=999_999)
    assert (await engine.sound()).ready == 1
    assert await queue.heartbeat(database, engine.worker_id) is not None
    assert len(await engine.claim()) == 1


async def test_rows_that_another_claim_holds_are_passed_by(database: Database, database_url: str) -> None:
    """Two claims side by side never wait for each other and never take the same job."""
    engine = await Engine.start(database)
    ids = await engine.enqueue(10)
    rival = await new_worker(database)
    async with holding(database_url) as (session, transaction):
        first = await engine.claim(4, db=session, worker=rival, cursor=ClaimCursor())
        second = await engine.claim(100)
        await transaction.commit()
    assert len(first) == 4
    assert {job.id for job in first} | {job.id for job in second} == set(ids)
    assert len(second) == 6


async def test_a_claim_that_is_rolled_back_took_nothing(database: Database, database_url: str) -> None:
    """The jobs are ready again, under the same attempt number."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    async with holding(database_url) as (session, transaction):
        assert len(await engine.claim(db=session)) == 1
        await transaction.rollback()
    job = await engine.claim_one()
    assert (job.id, job.attempt) == (job_id, 1)


async def test_an_old_list_of_segments_is_never_wrong(database: Database) -> None:
    """Read before the rows came, before segments closed and retired: the claim still finds everything newer."""
    engine = await Engine.start(database)
    old = await queue.live_segments(database, "ready")
    ids = []
    for _ in range(5):
        await queue.advance(database)
        ids += await engine.enqueue()
    assert {job.id for job in await engine.claim(segments=old)} == set(ids)


async def test_a_job_that_came_too_late_is_marked_expired(database: Database) -> None:
    """expires_at in the past at the claim: expired; in the future: not."""
    engine = await Engine.start(database)
    now = await queue.server_now(database)
    [late] = await engine.enqueue(run_at=now - 2 * MINUTE, expires_at=now - MINUTE)
    [early] = await engine.enqueue(expires_at=now + MINUTE)
    assert {job.id: job.expired for job in await engine.claim()} == {late: True, early: False}


def test_a_cursor_forgets_accounts_that_were_not_served_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what it remembers the longest unserved ones go; a claim is told of the 256 whose turn comes next."""
    monkeypatch.setattr("duly.queue.claiming.REMEMBERED_ACCOUNTS", 350)
    cursor = ClaimCursor()
    for account in range(1, 400):
        cursor.served(account, account)
    assert min(cursor.lanes) == 50
    assert list(cursor.ahead()) == list(range(50, 306))
    cursor.served(390, 7)
    assert list(cursor.ahead().items())[:11] == [(n, n) for n in (*range(391, 400), 50, 51)]


def test_owners_are_values() -> None:
    """Two of the same numbers are the same owner."""
    assert Owner(1, 2) == Owner(1, 2)
