"""Renewal, fencing, lost answers: what a worker does when the database or the loop is in the way."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta

import asyncpg
import pytest

from duly import queue
from duly.model import ClaimedJob, Outcome, Report, Retry, State, Success
from duly.queue import Database
from support.engine import Engine
from support.proxy import proxied
from support.sessions import held_up, holding, somebody_waits, until, until_true, until_waiting
from support.working import Holding, state_becomes, working

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)


async def test_a_worker_that_cannot_renew_stops_its_jobs_before_the_lease_ends(
    database: Database, database_url: str
) -> None:
    """The heartbeat's way is a black hole: the job is stopped while the lease is still good, nothing is started until
    renewal
    works again, and then work goes on; the interruption used up no attempt.
    """
    engine = await Engine.start(database)
    handler = Holding()
    lease = 3 * SECOND
    async with proxied(database_url) as proxy:
        async with working(database, database_url, {"k": handler}, heartbeat_url=proxy.url, lease=lease) as it:
            [job_id] = await engine.enqueue(max_attempts=1)
            await until_true(lambda: handler.started)
            proxy.mode = "black_hole"
            await until_true(lambda: handler.stopped)
            assert it.worker.fenced
            left = await database.fetchval(
                "select lease_expires_at - clock_timestamp() from duly.worker where id = $1", it.worker.worker_id
            )
            assert left > timedelta(0)
            others = await engine.enqueue(5, max_attempts=1)
            await until(
                lambda: database.fetchval(
                    "select bool_and(lease_expires_at < clock_timestamp()) from duly.worker where id = $1",
                    it.worker.worker_id,
                )
            )
            assert len(handler.started) == 1, "a job was started although the lease may have ended"
            proxy.mode = "pass"
            proxy.cut()
            await until_true(lambda: len(handler.started) == 7)
            handler.go.set()
            for one in (job_id, *others):
                await state_becomes(engine, one, State.SUCCEEDED)
    assert [(n, o) for n, _, o in await engine.attempts(job_id)] == [(1, "interrupted"), (2, "success")]
    assert {(await engine.view(one)).attempts for one in others} == {1}
    await engine.sound()


async def test_job_code_that_blocks_the_loop_neither_loses_its_lease_nor_goes_unreported(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocked for twice a lease: renewed throughout by another thread, and the log shows the stack that blocks."""
    engine = await Engine.start(database)
    alive: list[bool] = []

    def ask_from_another_thread() -> None:
        async def ask() -> None:
            connection = await asyncpg.connect(database_url)
            alive.append(
                await connection.fetchval("select bool_and(lease_expires_at > clock_timestamp()) from duly.worker")
            )
            await connection.close()

        asyncio.run(ask())

    async def the_blocking_handler(job: ClaimedJob) -> Outcome:
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            time.sleep(0.3)  # this is the point: nothing else runs in this loop
            thread = threading.Thread(target=ask_from_another_thread)
            thread.start()
            thread.join()
        return Success()

    with caplog.at_level(logging.WARNING, "duly.worker"):
        async with working(database, database_url, {"k": the_blocking_handler}, lease=SECOND) as it:
            [job_id] = await engine.enqueue()
            await state_becomes(engine, job_id, State.SUCCEEDED)
            assert (await it.drained()).clean
    assert len(alive) >= 3
    assert all(alive)
    reports = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert len(reports) == 1
    assert "the_blocking_handler" in reports[0]


async def test_a_claim_whose_answer_was_lost_is_given_back(database: Database, database_url: str) -> None:
    """Committed in the database, never heard of by the worker: it runs once, under the number it had."""
    engine = await Engine.start(database)
    handler = Holding()
    handler.go.set()
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        async with working(db, database_url, {"k": handler}, poll_max=20 * MS):
            async with held_up(database_url, "lease"):
                [job_id] = await engine.enqueue()
                await somebody_waits(database)
                proxy.mode = "swallow_replies"
            await state_becomes(engine, job_id, State.RUNNING)
            assert handler.started == []
            proxy.mode = "pass"
            proxy.cut()
            await state_becomes(engine, job_id, State.SUCCEEDED)
    assert [job.attempt for job in handler.started] == [1]
    assert await engine.attempts(job_id) == [(1, "schedule", "success")]
    await engine.sound()


async def test_a_settle_whose_answer_was_lost_is_not_written_twice(database: Database, database_url: str) -> None:
    """Committed, the answer lost, sent again: refused, one row in the ledger, and the slot is free again."""
    engine = await Engine.start(database)
    handler = Holding()
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        async with working(db, database_url, {"k": handler}, poll_max=20 * MS, concurrency=1) as it:
            [job_id] = await engine.enqueue()
            await until_true(lambda: handler.started)
            async with held_up(database_url, "outcome"):
                handler.go.set()
                await somebody_waits(database)
                proxy.mode = "swallow_replies"
            await state_becomes(engine, job_id, State.SUCCEEDED)
            proxy.mode = "pass"
            proxy.cut()
            [other] = await engine.enqueue()
            await state_becomes(engine, other, State.SUCCEEDED)
            assert (await it.drained()).clean
    assert await engine.attempts(job_id) == [(1, "schedule", "success")]
    await engine.sound()


async def test_a_database_that_is_away_for_a_while_costs_no_attempt(database: Database, database_url: str) -> None:
    """FO-022: every connection refused while eight jobs run; outcomes are kept, written when it is back; new work is
    taken.
    """
    engine = await Engine.start(database)
    handler = Holding()
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        async with working(db, proxy.url, {"k": handler}, lease=20 * SECOND) as it:
            ids = await engine.enqueue(8)
            await until_true(lambda: len(handler.started) == 8)
            proxy.mode = "refuse"
            proxy.cut()
            handler.go.set()
            await until_true(lambda: it.worker._settler.unsettled == 8)
            proxy.mode = "pass"
            ids += await engine.enqueue()
            for job_id in ids:
                await state_becomes(engine, job_id, State.SUCCEEDED)
            assert (await it.drained()).clean
    assert {(await engine.view(job_id)).attempts for job_id in ids} == {1}
    await engine.sound()


async def test_an_abort_on_request_stops_the_attempt(database: Database, database_url: str) -> None:
    """The heartbeat brings the request: the handler is cancelled, the job ends cancelled."""
    engine = await Engine.start(database)
    handler = Holding()
    async with working(database, database_url, {"k": handler}, lease=SECOND):
        [job_id, other] = await engine.enqueue(2)
        await until_true(lambda: len(handler.started) == 2)
        assert await queue.cancel(database, engine.owner, job_id, abort=True) == "requested"
        await state_becomes(engine, job_id, State.CANCELLED)
        assert [job.id for job in handler.stopped] == [job_id]
        handler.go.set()
        await state_becomes(engine, other, State.SUCCEEDED)
    assert [o for _, _, o in await engine.attempts(job_id)] == ["cancelled"]


async def test_a_cancel_without_an_abort_lets_the_attempt_end(database: Database, database_url: str) -> None:
    """FO-024: it fails, and goes no further."""
    engine = await Engine.start(database)
    go, started = asyncio.Event(), asyncio.Event()

    async def handler(job: ClaimedJob) -> Outcome:
        started.set()
        await go.wait()
        return Retry(Report("error"))

    async with working(database, database_url, {"k": handler}, lease=SECOND):
        [job_id] = await engine.enqueue()
        await started.wait()
        assert await queue.cancel(database, engine.owner, job_id) == "requested"
        go.set()
        await state_becomes(engine, job_id, State.CANCELLED)


async def test_a_worker_that_was_forgotten_registers_anew(database: Database, database_url: str) -> None:
    """Its row is gone: it stops what it ran, takes a new id and goes on working."""
    engine = await Engine.start(database)
    handler = Holding()
    async with working(database, database_url, {"k": handler}, lease=SECOND) as it:
        [lost] = await engine.enqueue()
        await until_true(lambda: handler.started)
        first = it.worker.worker_id
        await queue.deregister(database, first)
        assert [r.job_id for r in await engine.rescue()] == [lost]
        await until_true(lambda: it.worker.worker_id != first)
        assert [job.id for job in handler.stopped] == [lost]
        handler.go.set()
        [job_id] = await engine.enqueue()
        await state_becomes(engine, job_id, State.SUCCEEDED)
        assert (await it.drained()).clean
    assert await engine.attempts(lost) == [(1, "schedule", "worker_lost")]
    await engine.sound()


async def test_until_waiting_sees_a_waiting_session(database: Database, database_url: str) -> None:
    """The tool that the races stand on: true only while a session waits for another's lock."""
    async with holding(database_url) as (first, _), holding(database_url) as (second, _):
        await first.execute("lock table duly.ready in access exclusive mode")
        waiting = asyncio.create_task(second.execute("lock table duly.ready in access share mode"))
        await until_waiting(database, second)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
