"""A stop: no more claims, renewal until the last outcome is written, and what did not end or start is given back."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from duly import queue
from duly.model import ClaimedJob, Outcome, State, Success
from duly.queue import Database
from duly.worker import runtime
from support.engine import Engine
from support.sessions import held_up, somebody_waits, until, until_true
from support.working import Holding, working

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)


async def test_a_drain_claims_no_more_and_renews_until_the_last_outcome_is_written(
    database: Database, database_url: str
) -> None:
    """FO-021: a job that needs longer than a lease after the stop is renewed all the while and settled; what comes in
    stays.
    """
    engine = await Engine.start(database)
    handler = Holding()
    async with working(database, database_url, {"k": handler}, lease=SECOND) as it:
        [job_id] = await engine.enqueue()
        await until_true(lambda: handler.started)
        it.stopping.set()
        stopped_at = await queue.server_now(database)
        await until_true(lambda: it.worker._stopping.is_set())
        [later] = await engine.enqueue()

        async def renewed_beyond_a_lease() -> bool:
            [worker] = [w for w in await queue.list_workers(database) if w.id == it.worker.worker_id]
            assert worker.alive
            return worker.heartbeat_at > stopped_at + 1.5 * SECOND

        await until(renewed_beyond_a_lease)
        handler.go.set()
        drained = await it.drained()
    assert (drained.interrupted, drained.clean) == (0, True)  # a claim that was under way may have been given back
    assert (await engine.view(job_id)).state == State.SUCCEEDED
    assert (await engine.view(later)).state == State.READY
    assert [w.id for w in await queue.list_workers(database)] == [engine.worker_id]
    await engine.sound()


@pytest.mark.parametrize("by", ["grace", "abort"])
async def test_what_outlasts_the_grace_is_interrupted_and_given_back(
    database: Database, database_url: str, by: str
) -> None:
    """By the grace's end, or at once when asked again: the job is ready under the next number, its budget is not used
    up.
    """
    engine = await Engine.start(database)
    handler = Holding()
    grace = 100 * MS if by == "grace" else timedelta(minutes=5)
    async with working(database, database_url, {"k": handler}, grace=grace) as it:
        [job_id] = await engine.enqueue(max_attempts=1)
        await until_true(lambda: handler.started)
        if by == "abort":
            it.aborting.set()
        drained = await it.drained()
    assert (drained.settled, drained.interrupted, drained.clean) == (1, 1, True)
    view = await engine.view(job_id)
    assert (view.state, view.attempts, view.final_attempt, view.last_outcome) == (State.READY, 1, 2, "interrupted")
    assert len(handler.stopped) == 1


async def test_what_was_claimed_while_the_stop_came_is_given_back_unstarted(
    database: Database, database_url: str
) -> None:
    """The claim is held in the database while the stop is asked for: its jobs do not start and keep their number."""
    engine = await Engine.start(database)
    handler = Holding()
    async with working(database, database_url, {"k": handler}) as it:
        async with held_up(database_url, "lease"):
            await engine.enqueue()
            await somebody_waits(database)
            it.stopping.set()
            await until_true(lambda: it.worker._stopping.is_set())
        drained = await it.drained()
    assert drained.clean
    assert handler.started == []
    count = await engine.sound()
    assert (count.ready, count.running) == (1, 0)
    assert (await engine.claim_one()).attempt == 1


async def test_a_handler_that_ignores_its_cancellation_does_not_stop_the_drain(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be ended from outside; the drain ends all the same, says that it was not clean, and the job is
    rescued at once.
    """
    monkeypatch.setattr(runtime, "_LAST_WORDS_S", 0.4)
    engine = await Engine.start(database)
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: ClaimedJob) -> Outcome:
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return Success()

    async with working(database, database_url, {"k": handler}, grace=100 * MS) as it:
        [job_id] = await engine.enqueue()
        await started.wait()
        drained = await it.drained()
        assert (drained.interrupted, drained.clean) == (1, False)
        [rescued] = await engine.rescue()
        assert rescued.job_id == job_id
        go.set()
    await engine.sound()
