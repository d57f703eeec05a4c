"""Failures that other queues had (docs/explanation/field-cases.md), at the level of SQL."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from duly import queue
from duly.model import State
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from support.engine import Engine, new_job, new_owner, new_worker, settled
from support.proxy import proxied
from support.sessions import autocommitting, held_up, somebody_waits, until

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
LEASE = SECOND / 20  # over at once, as far as the grace after a server's start is concerned


async def test_a_rerun_waits_for_the_lease_not_for_the_jobs_own_limit(database: Database) -> None:
    """FO-006: an hour is allowed; once the worker's lease has ended the job is back within two seconds."""
    engine = await Engine.start(database, LEASE)
    job = await engine.running(timeout=HOUR)
    await engine.expire_worker()
    [lost] = await engine.rescue()
    assert (lost.job_id, lost.way) == (job.id, "scheduled")
    delay = await database.fetchval("select run_at - clock_timestamp() from duly.scheduled")
    assert delay < 2 * SECOND


async def test_a_cleanup_after_a_take_over_touches_nothing(database: Database) -> None:
    """FO-003: A's time ran out and B runs the job: whatever A writes for its attempt is refused, B keeps its lease, and
    no third run starts.
    """
    engine = await Engine.start(database, LEASE)
    job = await engine.running()
    await engine.expire_worker()
    await engine.rescue()
    await engine.due_now(job.id)
    b = await new_worker(database, LEASE)
    second = await engine.claim_one(worker=b)
    for edge in ("release", "retry", "dead", "succeeded", "cancelled", "interrupted", "snooze"):
        assert await engine.settle(settled(job, edge)) == {job.id}
    await queue.deregister(database, engine.worker_id)
    assert await engine.rescue() == []
    assert await engine.claim(worker=b) == []
    assert await engine.settle(settled(second, "succeeded"), worker=b) == frozenset()
    assert await engine.attempts(job.id) == [(1, "schedule", "worker_lost"), (2, "recovery", "success")]


HOSTILE_PLANNER = (
    *("hashjoin", "mergejoin", "nestloop", "sort", "incremental_sort", "hashagg", "material", "memoize"),
    *("indexscan", "indexonlyscan", "bitmapscan", "tidscan", "gathermerge", "parallel_append", "parallel_hash"),
)


@pytest.mark.parametrize("plans", ["force_generic_plan", "force_custom_plan"])
async def test_a_claim_takes_its_limit_under_any_plan(database: Database, database_url: str, plans: str) -> None:
    """FO-012: a session whose planner is hostile, statistics of an empty table and of a full one: exactly n."""
    engine = await Engine.start(database, LEASE)
    await engine.enqueue(50)
    async with autocommitting(database_url) as session:
        for name in HOSTILE_PLANNER:
            await session.execute(f"set enable_{name} = off")
        await session.execute(f"set plan_cache_mode = {plans}; set jit_above_cost = 0; set random_page_cost = 1000")
        left = 50
        for analysed in (False, True):
            if analysed:
                await session.execute("analyze")
            for limit in (1, 1, 1, 1, 1, 1, 7):
                assert len(await engine.claim(limit, db=session)) == limit
                left -= limit
                count = await engine.sound()
                assert (count.ready, count.running) == (left, 50 - left)
        await session.execute("set enable_indexscan = on")
        assert (await queue.promote(session, 1)).count == 0
        assert len(await queue.rescue(session, await queue.live_segments(session, "lease"), 1)) == 0
        await engine.expire_worker()
        assert len(await queue.rescue(session, await queue.live_segments(session, "lease"), 3)) == 3
        await session.execute("update duly.scheduled set run_at = now() - interval '1 second'")
        assert (await queue.promote(session, 2)).count == 2
        assert await queue.move(session, "ready", 1, 5) == 5
    await engine.sound()


async def test_a_lost_holder_leaves_nothing_behind(database: Database) -> None:
    """FO-013: what counts as running is the leases themselves: twenty times lost and rescued, the count is right each
    time, and the lane is served.
    """
    engine = await Engine.start(database, LEASE)
    for n in range(20):
        await engine.enqueue(concurrency_key="tenant")
        lost = await engine.claim_one()
        await engine.expire_worker()
        assert [r.job_id for r in await engine.rescue()] == [lost.id]
        assert (await engine.sound()).running == 0
        engine.worker_id = await new_worker(database, LEASE)
        await database.execute("delete from duly.scheduled where job_id = $1", lost.id)
        await database.execute("delete from duly.job where id = $1", lost.id)
        assert await database.fetchval("select count(*) from duly.lease") == 0, n


async def test_a_crash_on_the_last_attempt_leaves_its_line_open(database: Database) -> None:
    """FO-014: jobs of one key; the first loses its worker at its only attempt, is dead, and the others run."""
    engine = await Engine.start(database, LEASE)
    [first] = await engine.enqueue(concurrency_key="serial", max_attempts=1)
    others = await engine.enqueue(2, concurrency_key="serial")
    assert (await engine.claim_one()).id == first
    await engine.expire_worker()
    await engine.rescue()
    assert ((await engine.view(first)).state, (await engine.view(first)).reason) == (State.DEAD, "worker_lost")
    engine.worker_id = await new_worker(database, LEASE)
    left = set(others)
    while left:
        job = await engine.claim_one()
        left.remove(job.id)
        await engine.finish(job)


async def test_an_id_used_again_for_another_job_changes_nothing(database: Database) -> None:
    """FO-030: refused as a conflict while the first runs; the first loses its worker, recovers and ends."""
    engine = await Engine.start(database, LEASE)
    job = await engine.running(payload={"task": "a"})
    other = new_job(id=job.id, kind="other", payload={"task": "b"})
    assert [answer.result for answer in await engine.put(other)] == ["conflict"]
    assert [answer.result for answer in await engine.put(other, owner=await new_owner(database))] == ["conflict"]
    await engine.expire_worker()
    await engine.rescue()
    engine.worker_id = await new_worker(database, LEASE)
    await engine.due_now(job.id)
    again = await engine.claim_one()
    assert (again.id, again.kind, json.loads(again.payload_json)) == (job.id, "k", {"task": "a"})
    await engine.finish(again)
    assert (await engine.sound()).jobs == 1


async def test_an_enqueue_whose_reply_was_lost_is_one_job(database: Database, database_url: str) -> None:
    """FO-028: the COMMIT arrives, its answer does not: the error is surfaced, not retried; sent again with the same id
    it is the same job.
    """
    engine = await Engine.start(database, LEASE)
    job = new_job(payload={"n": 1})
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        await db.fetchval("select 1")
        async with held_up(database_url, "ready"):
            enqueue = asyncio.create_task(queue.enqueue(db, [(engine.owner, job)]))
            await somebody_waits(database)
            proxy.mode = "swallow_replies"

        async def stored() -> bool:
            return (await queue.conservation(database)).jobs == 1

        await until(stored)
        proxy.cut()
        with pytest.raises(DatabaseUnavailableError):
            await enqueue
        assert (await engine.sound()).jobs == 1
        proxy.mode = "pass"
        assert [a.result for a in await queue.enqueue(db, [(engine.owner, job)])] == ["repeated"]
    assert (await engine.sound()).ready == 1


async def test_input_that_postgresql_cannot_hold_is_refused_whole(database: Database) -> None:
    """FO-038, FO-039, FO-040: NUL, half a surrogate pair, NaN and infinities, in any place a library user may put them:
    an error, nothing stored, and the next call works. The API says 422 before (tests/api/test_bad_input.py).
    """
    engine = await Engine.start(database, LEASE)
    for bad in ("\x00", "\ud800"):
        for job in (
            new_job(payload={"a": bad}),
            new_job(payload={bad: 1}),
            new_job(queue=bad),
            new_job(kind=bad),
            new_job(concurrency_key=bad),
            new_job(tags=(bad,)),
            new_job(metadata=[bad]),
        ):
            with pytest.raises(asyncpg.DataError):
                await engine.put(new_job(), job)
    for number in (float("nan"), float("inf"), float("-inf")):
        for job in (new_job(payload=[number]), new_job(metadata={"a": number})):
            with pytest.raises(ValueError, match="Out of range float values"):
                await engine.put(new_job(), job)
    assert (await engine.sound()).jobs == 0
    [good] = await engine.enqueue()
    assert (await engine.claim_one()).id == good


async def test_times_that_python_cannot_hold_are_forbidden(database: Database) -> None:
    """FO-041: infinity, and years before 1 or after 9999, by a CHECK in every place where somebody gives a time; the
    outermost times allowed are listed, claimed and shown.
    """
    engine = await Engine.start(database, LEASE)
    [ready] = await engine.enqueue(run_at=None)
    [later] = await engine.enqueue(delay=HOUR)
    bad = ("infinity", "-infinity", "4000-01-01 BC", "10000-01-01", "200000-01-01")
    for column in ("job.run_at", "job.expires_at", "scheduled.run_at", "ready.run_at"):
        table, name = column.split(".")
        for time in bad:
            with pytest.raises(asyncpg.CheckViolationError):
                await database.execute(f"update duly.{table} set {name} = '{time}'")
    for time in ("0001-01-01 00:00+00", "9999-12-30 23:59:59.999999+00"):
        await database.execute(f"update duly.job set run_at = '{time}', expires_at = '9999-12-30 00:00+00'")
        assert len(await queue.list_jobs(database, engine.owner)) == 2
    await database.execute("update duly.ready set run_at = '0001-01-01 00:00+00'")
    await database.execute("update duly.scheduled set run_at = '9999-12-30 00:00+00'")
    assert (await engine.view(later)).next_run_at is not None
    assert (await engine.claim_one()).id == ready


async def test_a_lanes_number_is_spent_once(database: Database) -> None:
    """FO-042: a thousand jobs of one kind, by many callers at once and in one batch: one lane, one number for it and
    one for its block; the last number that there is still works.
    """
    engine = await Engine.start(database, LEASE)
    await engine.enqueue()
    spent = "select (select last_value from duly.lane_number), (select last_value from duly.lane_block_id_seq)"
    before = await database.fetchrow(spent)
    await engine.enqueue(500)
    await asyncio.gather(*(engine.enqueue() for _ in range(100)))
    await engine.put(*(new_job() for _ in range(400)))
    assert await database.fetchrow(spent) == before
    await database.execute(
        """select setval('duly.lane_number', (2 ^ 32)::bigint - 2),
                  setval('duly.lane_block_id_seq', (2 ^ 31)::bigint - 2)"""
    )
    await engine.enqueue(kind="last")
    assert len(await engine.claim(kinds=("last",))) == 1
    await engine.sound()


async def test_every_digit_arrives(database: Database) -> None:
    """FO-043: integers beyond 2 ^ 53, and more exact ones still, through enqueue, claim, reading and result."""
    engine = await Engine.start(database, LEASE)
    value = {"id": 1970670598291982290, "big": 2**200 + 1, "small": -(2**63), "exact": 0.1}
    [job_id] = await engine.enqueue(payload=value, metadata=value)
    job = await engine.claim_one()
    assert json.loads(job.payload_json) == value
    await engine.finish(job, result=value)
    view = await engine.view(job_id)
    assert (view.payload, view.metadata, view.result) == (value, value, value)


async def test_a_rescued_urgent_job_goes_first(database: Database) -> None:
    """FO-058: it keeps its priority through rescue and promotion, and passes a hundred fresh ones."""
    engine = await Engine.start(database, LEASE)
    urgent = await engine.running(priority=0)
    await engine.expire_worker()
    await engine.rescue()
    await engine.enqueue(100, priority=9)
    await queue.advance(database)
    await engine.due_now(urgent.id)
    engine.worker_id = await new_worker(database, LEASE)
    job = await engine.claim_one()
    assert (job.id, job.attempt, job.priority) == (urgent.id, 2, 0)


async def test_cancelled_queries_leave_neither_connections_nor_locks_behind(
    database: Database, database_url: str
) -> None:
    """FO-035: a pool of two; 300 rounds of queries cancelled at random steps, a third of them holding FOR UPDATE: the
    pool serves at once, no query of theirs runs on and no lock is left.
    """
    engine = await Engine.start(database, LEASE)
    await engine.enqueue()
    application = "cancelled-queries"

    async def in_a_transaction(db: Database) -> None:
        async with db.transaction() as session:
            await session.fetch("select from duly.ready for update")
            await session.fetch("select pg_sleep(0.05)")

    async with await Database.open(database_url, min_size=2, max_size=2, name=application) as db:

        async def short(db: Database) -> None:
            await db.fetchval("select 1")

        async def long(db: Database) -> None:
            await db.fetchval("select pg_sleep(5)")

        ends: Counter[str] = Counter()
        for n in range(300):
            tasks = [asyncio.create_task(query(db)) for query in (short, long, in_a_transaction)]
            for _ in range(n % 40):  # steps of the loop: each round is cut at another point
                await asyncio.sleep(0)
            if n % 10 == 0:  # and some once they hold what they ask for
                await until(
                    lambda: database.fetchval(
                        "select exists (select from pg_stat_activity where application_name = $1 and state <> 'idle')",
                        application,
                    )
                )
            for task in tasks:
                task.cancel()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                ends[type(end).__name__] += 1
        async with asyncio.timeout(5):
            assert await asyncio.gather(*(db.fetchval("select $1::int", n) for n in range(4))) == [0, 1, 2, 3]
        assert set(ends) <= {"CancelledError", "NoneType"}, ends

        async def quiet() -> bool:
            return not await database.fetchval(
                """select count(*) from pg_stat_activity a
                   left join pg_locks l on l.pid = a.pid and l.locktype <> 'virtualxid'
                   where a.application_name = $1 and (a.state <> 'idle' or l.pid is not null)""",
                application,
            )

        await until(quiet)
        assert (
            await database.fetchval("select count(*) from pg_stat_activity where application_name = $1", application)
            <= 2
        )
    assert len(await engine.claim()) == 1
    await engine.sound()
