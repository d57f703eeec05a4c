"""Holding a job, and the row that workers share while a breaker is open."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from duly import queue
from duly.model import DeadReason, State, Trigger, Unique
from duly.model.settlement import Settlement
from duly.queue import Database
from duly.queue.breaker import (
    ProbeAnswer,
    claim_probe,
    close_breaker,
    end_probe,
    forget_breakers,
    list_breakers,
    open_breaker,
)
from support.engine import Engine, new_job, settled
from support.sessions import autocommitting, holding, until_waiting

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
NOW = timedelta(0)
KEY = (7, "example.com")


async def opened(db: Database, account: int = 7, host: str = "example.com", wait: timedelta = NOW) -> bool:
    return await open_breaker(db, account, host, 20, "refused", SECOND, wait)


async def test_a_hold_keeps_number_budget_and_trigger(database: Database) -> None:
    """Scheduled after the delay, shown as held; no row in the ledger. Due again it is the same attempt."""
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=3)
    await engine.finish(job, "retry", delay=HOUR)
    await engine.due_now(job.id)
    job = await engine.claim_one()
    await engine.finish(job, "hold", delay=HOUR, run_at=job.run_at)
    view = await engine.view(job.id)
    assert (view.state, view.held, view.attempts, view.final_attempt) == (State.SCHEDULED, True, 1, 3)
    assert view.next_run_at is not None
    assert timedelta(minutes=59) < view.next_run_at - await queue.server_now(database) <= HOUR
    assert await engine.attempts(job.id) == [(1, "schedule", "error")]
    await engine.sound()
    await engine.due_now(job.id)
    assert not (await engine.view(job.id)).held
    again = await engine.claim_one()
    assert (again.attempt, again.final_attempt, again.trigger) == (2, 3, Trigger.RETRY)
    assert again.age >= job.age
    await engine.finish(again)
    assert await engine.attempts(job.id) == [(1, "schedule", "error"), (2, "retry", "success")]


async def test_a_repeated_hold_does_not_match_the_next_lease(database: Database) -> None:
    """Its answer was lost; meanwhile the same worker has claimed the same attempt again, and runs it."""
    engine = await Engine.start(database)
    job = await engine.running()
    held = settled(job, "hold", delay=HOUR, run_at=job.run_at)
    assert await engine.settle(held) == frozenset()
    assert await engine.settle(held) == {job.id}
    await engine.due_now(job.id)
    again = await engine.claim_one()
    assert (again.id, again.attempt) == (job.id, job.attempt)
    assert await engine.settle(held) == {job.id}
    assert (await engine.view(job.id)).state == State.RUNNING
    await engine.finish(again)
    await engine.sound()


async def test_holding_for_ever_uses_up_nothing(database: Database) -> None:
    """A hundred holds of a job with one attempt: it still has it."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(max_attempts=1)
    for _ in range(100):
        job = await engine.claim_one()
        await engine.finish(job, "hold", delay=HOUR, run_at=job.run_at)
        await engine.due_now(job_id)
    job = await engine.claim_one()
    assert (job.attempt, job.final_attempt) == (1, 1)
    await engine.finish(job)
    assert await engine.attempts(job_id) == [(1, "schedule", "success")]
    await engine.sound()


async def test_a_held_job_can_be_run_cancelled_and_lost(database: Database) -> None:
    """It is scheduled like any other."""
    engine = await Engine.start(database, SECOND / 20)
    ids = await engine.enqueue(3, max_attempts=1)
    jobs = {job.id: job for job in await engine.claim()}
    await engine.settle(*(settled(job, "hold", delay=HOUR, run_at=job.run_at) for job in jobs.values()))
    assert await queue.run_now(database, engine.owner, ids[0]) == "run"
    await engine.finish(await engine.claim_one())
    assert await queue.cancel(database, engine.owner, ids[1]) == "cancelled"
    await engine.due_now(ids[2])
    await engine.claim_one()
    await engine.expire_worker()
    assert [lost.way for lost in await engine.rescue()] == ["dead"]
    assert [(await engine.view(job_id)).attempts for job_id in ids] == [1, 0, 1]
    await engine.sound()


async def test_a_held_job_keeps_its_key_until_it_starts(database: Database) -> None:
    """Held it has not started: at its first attempt, and at the first one of a redrive."""
    engine = await Engine.start(database)
    key = Unique("u", "start")
    [answer] = await engine.put(new_job(unique=key))
    for redriven in (False, True):
        job = await engine.claim_one()
        await engine.finish(job, "hold", delay=HOUR, run_at=job.run_at)
        assert [other.result for other in await engine.put(new_job(unique=key))] == ["taken"]
        await engine.due_now(answer.job_id)
        assert [other.result for other in await engine.put(new_job(unique=key))] == ["taken"]
        if not redriven:
            await engine.finish(await engine.claim_one(), "dead")
            assert await queue.redrive(database, engine.owner, answer.job_id) == "redriven"


async def test_a_held_dead_letter_has_no_attempt(database: Database) -> None:
    """Past its age: dead for that reason, and nothing was tried."""
    engine = await Engine.start(database)
    job = await engine.running()
    assert await engine.settle(Settlement(job.id, 1, "dead", reason=DeadReason.MAX_AGE)) == frozenset()
    view = await engine.view(job.id)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "max_age", 0)


async def test_a_breaker_is_opened_once_and_closed_once(database: Database) -> None:
    """By account and host; a second opening changes nothing."""
    assert await opened(database)
    assert not await open_breaker(database, *KEY, 99, "other", HOUR, HOUR)
    assert await opened(database, account=8)
    assert await opened(database, host="example.org")
    [row] = await list_breakers(database, 8)
    assert (row.host, row.failures, row.last_error, row.pause) == ("example.com", 20, "refused", SECOND)
    assert [(row.account_id, row.host) for row in await list_breakers(database)] == [
        (7, "example.com"),
        (7, "example.org"),
        (8, "example.com"),
    ]
    lasted = await close_breaker(database, *KEY)
    assert lasted is not None
    assert NOW <= lasted < HOUR
    assert await close_breaker(database, *KEY) is None
    assert await claim_probe(database, *KEY, SECOND) == ProbeAnswer("closed")
    assert len(await list_breakers(database)) == 2


async def test_one_probe_at_a_time_and_not_before_its_time(database: Database) -> None:
    """Held until then; then the first to ask, and the next one when that one has ended."""
    await opened(database, wait=HOUR)
    early = await claim_probe(database, *KEY, HOUR)
    assert early.state == "held"
    assert timedelta(minutes=59) < early.wait <= HOUR
    await database.execute("update duly.breaker set probe_at = now()")
    first = await claim_probe(database, *KEY, HOUR)
    assert (first.state, first.number, first.pause) == ("probe", 1, SECOND)
    second = await claim_probe(database, *KEY, HOUR)
    assert (second.state, second.wait) == ("held", NOW)
    assert timedelta(minutes=59) < second.probing <= HOUR
    assert await end_probe(database, *KEY, 1, failed=True, error="again", pause=2 * SECOND, wait=NOW)
    [row] = await list_breakers(database)
    assert (row.failures, row.last_error, row.pause) == (21, "again", 2 * SECOND)
    assert (await claim_probe(database, *KEY, HOUR)).number == 2
    assert await end_probe(database, *KEY, 2, failed=False, error=None, pause=2 * SECOND, wait=HOUR)
    [row] = await list_breakers(database)
    assert (row.failures, row.last_error, row.probing) == (21, "again", NOW)
    assert (await claim_probe(database, *KEY, HOUR)).state == "held"


async def test_two_workers_that_ask_at_once_send_one_probe(database: Database, database_url: str) -> None:
    """The second waits for the first, and looks again. If the first rolls back, the second is the probe."""
    for commits in (True, False):
        await close_breaker(database, *KEY)
        await opened(database)
        async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
            assert (await claim_probe(first, *KEY, HOUR)).state == "probe"
            asking = asyncio.create_task(claim_probe(second, *KEY, HOUR))
            await until_waiting(database, second)
            await (transaction.commit() if commits else transaction.rollback())
            assert (await asking).state == ("held" if commits else "probe")


async def test_a_probe_that_never_came_back_is_followed_by_another(database: Database) -> None:
    """Its time passes, whoever died; what it says later is not listened to."""
    await opened(database)
    lost = await claim_probe(database, *KEY, SECOND / 1000)
    while (next_one := await claim_probe(database, *KEY, HOUR)).state == "held":
        pass
    assert (lost.number, next_one.number) == (1, 2)
    assert not await end_probe(database, *KEY, 1, failed=True, error="late", pause=HOUR, wait=HOUR)
    [row] = await list_breakers(database)
    assert (row.failures, row.pause) == (20, SECOND)


async def test_a_probe_and_a_close_at_once(database: Database, database_url: str) -> None:
    """It was closed while the probe waited for the row: there is nothing to probe any more."""
    await opened(database)
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await close_breaker(first, *KEY) is not None
        asking = asyncio.create_task(claim_probe(second, *KEY, HOUR))
        await until_waiting(database, second)
        await transaction.commit()
        assert await asking == ProbeAnswer("closed")


async def test_breakers_that_nobody_needs_are_forgotten(database: Database) -> None:
    """A day after a probe was due and none went: no job goes there. One that is probed, or waits, stays."""
    for host, probe_at, probe_until in (
        ("old", "-2 days", None),
        ("due", "-1 hour", None),
        ("waits", "1 hour", None),
        ("probed", "-2 days", "-1 hour"),
    ):
        await opened(database, host=host)
        await database.execute(
            """update duly.breaker set probe_at = now() + $2::text::interval, probe_until = now() + $3::text::interval
               where host = $1""",
            host,
            probe_at,
            probe_until,
        )
    assert await forget_breakers(database, timedelta(days=1)) == 1
    assert [row.host for row in await list_breakers(database)] == ["due", "probed", "waits"]
