"""Whatever a handler does, there is exactly one settlement, and the worker goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duly import queue
from duly.model import Bury, ClaimedJob, DeadReason, Outcome, Report, Retry, Snooze, State, Success
from duly.model.errors import InvalidInputError
from duly.queue import Database, JobView
from duly.worker import Handler, WorkerConfig
from duly.worker.executor import Executor
from support.engine import Engine
from support.sessions import until
from support.working import working

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)


async def ended(engine: Engine, job_id: Any) -> JobView:
    """The job, once it is neither ready nor running."""

    async def look() -> JobView | None:
        view = await engine.view(job_id)
        return view if view.state not in (State.READY, State.RUNNING) else None

    view = await until(look)
    assert isinstance(view, JobView)
    return view


async def run_one(database: Database, url: str, handler: Handler, **settings: Any) -> tuple[Engine, JobView]:
    """One job through a worker with this handler; afterwards the worker still works, and drains cleanly."""
    engine = await Engine.start(database)

    async def fine(job: ClaimedJob) -> Outcome:
        return Success()

    async with working(database, url, {"k": handler, "fine": fine}) as it:
        [job_id] = await engine.enqueue(**settings)
        view = await ended(engine, job_id)
        [other] = await engine.enqueue(kind="fine")
        assert (await ended(engine, other)).state == State.SUCCEEDED
        drained = await it.drained()
        assert drained.clean
        assert drained.settled == 2
    await engine.sound()
    return engine, view


async def test_a_success(database: Database, database_url: str) -> None:
    """The handler's result is the job's; the claimed job reached it whole."""

    async def handler(job: ClaimedJob) -> Outcome:
        return Success({"got": job.payload_json, "attempt": job.attempt}, Report("success", status_code=200))

    _, view = await run_one(database, database_url, handler, payload={"a": 1})
    assert (view.state, view.result) == (State.SUCCEEDED, {"got": '{"a": 1}', "attempt": 1})
    assert view.last_status_code == 200


async def test_a_retry_runs_again_and_succeeds(database: Database, database_url: str) -> None:
    """Two failures, then a success: three attempts under three numbers."""
    engine = await Engine.start(database)

    async def handler(job: ClaimedJob) -> Outcome:
        return Success() if job.attempt == 3 else Retry(Report("http_error", "answered 503", 503))

    async with working(database, database_url, {"k": handler}):
        [job_id] = await engine.enqueue()
        for _ in range(2):
            await ended(engine, job_id)
            await engine.due_now(job_id)
        assert (await ended(engine, job_id)).state == State.SUCCEEDED
    assert [(n, o) for n, _, o in await engine.attempts(job_id)] == [
        (1, "http_error"),
        (2, "http_error"),
        (3, "success"),
    ]


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError("a\x00b\ud800"),
        HostileError(),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        TimeoutError(),
        RecursionError("deep"),
        BaseExceptionGroup("both", [SystemExit(1), ValueError()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_a_failed_attempt(
    database: Database, database_url: str, error: BaseException
) -> None:
    """FO-018, FO-019: SystemExit does not end the worker, a cancellation out of nowhere cancels nothing; a retry is
    recorded.
    """

    async def handler(job: ClaimedJob) -> Outcome:
        raise error

    _, view = await run_one(database, database_url, handler)
    assert (view.state, view.attempts, view.last_outcome) == (State.SCHEDULED, 1, "error")
    assert view.last_error


@pytest.mark.parametrize("answer", [None, "done", {"state": "succeeded"}, Success])
async def test_a_handler_that_returns_no_outcome_has_failed(database: Database, database_url: str, answer: Any) -> None:
    """A forgotten return must not end the worker, nor pass for a success."""

    async def handler(job: ClaimedJob) -> Outcome:
        return answer  # type: ignore[no-any-return]

    _, view = await run_one(database, database_url, handler)
    assert (view.state, view.last_outcome) == (State.SCHEDULED, "error")
    assert "outcome" in (view.last_error or "")


@pytest.mark.parametrize(
    "outcome",
    [
        Success({"c": "\x00\ud800"}),
        Success(report=Report("success", detail={"a": float("nan"), "b": b"\xff", "c": 10**10_000})),
        Success(report=Report("suc\x00\ud800cess", status_code=2**40)),
        Success(report=Report("success", status_code=99_999)),
        Success(report=Report("success", detail={"x": object()}, excerpt=b"\x00" * 100_000)),
    ],
    ids=range(5),
)
async def test_whatever_a_report_holds_the_success_is_recorded(
    database: Database, database_url: str, outcome: Outcome
) -> None:
    """Recording an outcome never fails on its content, first time."""

    async def handler(job: ClaimedJob) -> Outcome:
        return outcome

    _, view = await run_one(database, database_url, handler)
    assert (view.state, view.attempts) == (State.SUCCEEDED, 1)


async def test_a_snooze_and_a_bury(database: Database, database_url: str) -> None:
    """Snoozed once without using the budget, then buried for a reason of the handler's."""
    engine = await Engine.start(database)

    async def handler(job: ClaimedJob) -> Outcome:
        if job.attempt == 1:
            return Snooze(timedelta(hours=1))
        return Bury(DeadReason.STOPPED_BY_TARGET, Report("http_error", status_code=410))

    async with working(database, database_url, {"k": handler}):
        [job_id] = await engine.enqueue(max_attempts=1)
        assert (await ended(engine, job_id)).state == State.SCHEDULED
        await engine.due_now(job_id)
        view = await ended(engine, job_id)
    assert (view.state, view.reason, view.final_attempt) == (State.DEAD, "stopped_by_target", 2)


async def test_a_job_that_came_too_late_is_not_run(database: Database, database_url: str) -> None:
    """dead, expired, without an attempt."""
    ran = []

    async def handler(job: ClaimedJob) -> Outcome:
        ran.append(job)
        return Success()

    expired = await queue.server_now(database) - SECOND
    _, view = await run_one(database, database_url, handler, expires_at=expired)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "expired", 0)
    assert ran == []


async def test_a_handler_past_its_time_limit_is_stopped(database: Database, database_url: str) -> None:
    """FO-017: recorded as timeout, retried by the policy; not as a cancel, not at once."""

    async def handler(job: ClaimedJob) -> Outcome:
        await asyncio.Event().wait()
        return Success()

    _, view = await run_one(database, database_url, handler, timeout=100 * MS)
    assert (view.state, view.last_outcome) == (State.SCHEDULED, "timeout")
    assert "0.1 s" in (view.last_error or "")


async def test_a_handler_that_turns_its_cancellation_into_an_outcome_is_believed(
    database: Database, database_url: str
) -> None:
    """It was told to stop and had the work done: a success."""

    async def handler(job: ClaimedJob) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Success("saved")
        return Success()

    _, view = await run_one(database, database_url, handler, timeout=100 * MS)
    assert (view.state, view.result) == (State.SUCCEEDED, "saved")


async def test_kinds_without_a_handler_are_left_alone(database: Database, database_url: str) -> None:
    """A worker claims what it can run and nothing else."""

    async def handler(job: ClaimedJob) -> Outcome:
        return Success()

    engine = await Engine.start(database)
    [unknown] = await engine.enqueue(kind="unknown")
    await run_one(database, database_url, handler)
    assert (await engine.view(unknown)).state == State.READY


async def test_an_executor_without_the_handler_fails_the_attempt(database: Database) -> None:
    """It cannot happen by a claim; if it does, the job is retried by somebody else."""
    engine = await Engine.start(database)
    settlement = await Executor({}).execute(await engine.running())
    assert settlement.edge == "retry"
    assert settlement.report is not None
    assert "no handler for kind 'k'" in (settlement.report.error or "")


async def test_jobs_run_at_once_up_to_the_concurrency(database: Database, database_url: str) -> None:
    """Three slots, nine jobs: three at a time, no more, no fewer while there is work."""
    engine = await Engine.start(database)
    running = most = 0
    full = asyncio.Event()

    async def handler(job: ClaimedJob) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running -= 1
        return Success()

    await engine.enqueue(9)
    async with working(database, database_url, {"k": handler}, concurrency=3) as it:

        async def all_done() -> bool:
            return (await engine.sound()).succeeded == 9

        await until(all_done)
        assert most == 3
        assert (await it.drained()).settled == 9


async def test_no_connection_is_held_while_jobs_run(database: Database, database_url: str) -> None:
    """Twenty jobs run; no session of the pool is in a transaction or at work."""
    engine = await Engine.start(database)
    go = asyncio.Event()

    async def handler(job: ClaimedJob) -> Outcome:
        await go.wait()
        return Success()

    await engine.enqueue(20)
    async with working(database, database_url, {"k": handler}, concurrency=20) as it:

        async def all_run() -> bool:
            return it.worker.running == 20

        await until(all_run)
        busy = await database.fetchval(
            """select count(*) from pg_stat_activity where datname = current_database()
               and (state like 'idle in transaction%' or xact_start is not null) and pid <> pg_backend_pid()"""
        )
        assert busy == 0
        go.set()
        assert (await it.drained()).settled == 20


@pytest.mark.parametrize(
    "bad",
    [
        {"handlers": {}},
        {"concurrency": 0},
        {"lease": 999 * MS},
        {"poll_min": 2 * SECOND, "poll_max": SECOND},
    ],
)
def test_contradictions_in_the_configuration_are_refused(bad: dict[str, Any]) -> None:
    """With the field's name in the message."""

    async def handler(job: ClaimedJob) -> Outcome:
        return Success()

    with pytest.raises(InvalidInputError, match=next(iter(bad)).rstrip("s")):
        WorkerConfig(**{"handlers": {"k": handler}, **bad})
