"""Whatever a handler returns or raises: one settlement, first time, and the jobs beside it are not affected."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model import Bury, ClaimedJob, Outcome, Report, Retry, Snooze, State, Success, uuid7
from duly.queue import Database, JobView
from duly.worker.executor import Executor
from duly.worker.settler import Settler
from support.claimed import claimed
from support.engine import Engine, settled
from support.hostile import Hostile, HostileError, HostileMapping, LyingText, hostile_values
from support.sessions import until, until_true
from support.working import working

NAN = float("nan")


def raising(error: BaseException) -> Callable[[], Outcome]:
    def misbehave() -> Outcome:
        raise error

    return misbehave


def cyclic() -> Outcome:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def deep(levels: int = 100_000) -> Outcome:
    """A chain of causes a hundred thousand long."""
    error: BaseException = ValueError("the first")
    for _ in range(levels):
        later = ValueError("later")
        later.__cause__ = error
        error = later
    raise error


def bottomless() -> Outcome:
    return bottomless()


def returning(outcome: Any) -> Callable[[], Outcome]:
    return lambda: outcome


BAD = LyingText("a\x00\ud800b")
HOSTILE_REPORT: Any = Report(BAD, Hostile(), "x", float("inf"), "y", "z", HostileMapping({BAD: [NAN, Hostile()]}))  # type: ignore[arg-type]
BIG = "x" * 50_000_000

FAILS: list[Callable[[], Outcome]] = [
    raising(ValueError("a\x00\ud800" + BIG)),
    *(raising(HostileError(e)) for e in (RuntimeError, KeyboardInterrupt, SystemExit, RecursionError, GeneratorExit)),
    raising(GeneratorExit()),
    raising(BaseExceptionGroup("all", [HostileError(SystemExit), KeyboardInterrupt()])),
    cyclic,
    deep,
    bottomless,
    returning(None),
    returning(BAD),
    returning(Retry(HOSTILE_REPORT, timedelta.max)),
    returning(Retry(None, timedelta.min)),  # type: ignore[arg-type]
    returning(Retry(Report("error", BIG, 2**70, excerpt=b"x" * 50_000_000, detail={BIG: BIG}), "soon")),  # type: ignore[arg-type]
    returning(Snooze(float("inf"))),  # type: ignore[arg-type]
    returning(Success(NAN)),
    returning(Success({"a": [1, {"b": float("-inf")}]}, HOSTILE_REPORT)),
    returning(Success(BIG)),
    returning(Success([BIG] * 1000)),
    *(returning(Success(value)) for value in hostile_values() if not isinstance(value, HostileMapping | list | str)),
]
SUCCEEDS: list[Callable[[], Outcome]] = [
    returning(Success(None, HOSTILE_REPORT)),
    returning(Success({BAD: BAD}, "no report")),  # type: ignore[arg-type]
    returning(Success(HostileMapping(a=1))),
]
DEAD: list[Callable[[], Outcome]] = [
    returning(Bury("because", HOSTILE_REPORT)),  # type: ignore[arg-type]
    returning(Bury(None, None)),  # type: ignore[arg-type]
]


async def all_ended(engine: Engine, ids: list[Any]) -> list[JobView]:
    async def look() -> bool:
        count = await queue.conservation(engine.db)
        return count.ready + count.running == 0

    await until(look)
    return [await engine.view(job_id) for job_id in ids]


async def test_hostile_handlers_among_good_ones(database: Database, database_url: str) -> None:
    """FO-008, FO-018, FO-019, FO-038, FO-039, FO-040: in the same claims and the same settles, each ends once, by its
    own rule, at its first attempt; the good ones succeed; nothing had to be written twice.
    """
    engine = await Engine.start(database)
    acts = {"fails": FAILS, "succeeds": SUCCEEDS, "dead": DEAD}

    async def hostile(job: ClaimedJob) -> Outcome:
        await asyncio.sleep(0)
        behave: Callable[[], Outcome] = acts[job.queue][json.loads(job.payload_json)["n"]]
        return behave()

    async def good(job: ClaimedJob) -> Outcome:
        return Success({"n": 1})

    ids: dict[str, list[Any]] = {"good": []}
    for name, behaviours in acts.items():
        ids[name] = []
        for n in range(len(behaviours)):
            ids[name] += await engine.enqueue(kind="hostile", queue=name, payload={"n": n})
            ids["good"] += await engine.enqueue(3, kind="good")
    async with working(database, database_url, {"hostile": hostile, "good": good}) as it:
        views = {name: await all_ended(engine, those) for name, those in ids.items()}
        drained = await it.drained()
    assert drained.clean
    assert drained.settled == sum(map(len, ids.values()))
    assert {(v.state, v.attempts, v.last_outcome) for v in views["good"]} == {(State.SUCCEEDED, 1, "success")}
    assert {(v.state, v.attempts) for v in views["succeeds"]} == {(State.SUCCEEDED, 1)}
    assert {(v.state, v.attempts, v.reason) for v in views["dead"]} == {(State.DEAD, 1, "permanent")}
    assert {(v.state, v.attempts) for v in views["fails"]} == {(State.SCHEDULED, 1)}
    assert all(v.last_error and len(v.last_error) <= 2000 for v in views["fails"])
    errors = [v.last_error or "" for v in views["fails"]]
    assert any("$ is NaN" in error for error in errors)
    assert any("$.a[1].b is infinite" in error for error in errors)
    assert any("1,000,000 bytes" in error for error in errors)
    await engine.sound()


async def test_a_message_of_fifty_megabytes_is_recorded_at_once(database: Database, database_url: str) -> None:
    """FO-018: by the time that others take, not by its size: the loop is not held up."""
    engine = await Engine.start(database)
    longest = 0.0

    async def handler(job: ClaimedJob) -> Outcome:
        raise ValueError(BIG)

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began)

    async with working(database, database_url, {"k": handler}):
        [warm] = await engine.enqueue()
        await all_ended(engine, [warm])
        watching = asyncio.create_task(watch())
        [job_id] = await engine.enqueue()
        [view] = await all_ended(engine, [job_id])
        watching.cancel()
    assert (view.state, view.attempts) == (State.SCHEDULED, 1)
    assert longest < 1.0  # 20 to 50 ms here; a bound that a busy machine keeps


async def test_an_outcome_that_the_database_refuses_is_written_bare(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second net: if mending missed something, the others are written, and the one without what was attached."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    jobs = await engine.claim()
    freed: list[int] = []
    settle, stopping = queue.settle, asyncio.Event()

    async def refusing(db: Any, worker_id: int, batch: Any) -> frozenset[Any]:
        if any(s.result == "bad" for s in batch):
            raise asyncpg.DataError("unsupported Unicode escape sequence")
        return await settle(db, worker_id, batch)

    monkeypatch.setattr(queue, "settle", refusing)
    settler = Settler(database, 100, freed.append)
    for job, result in zip(jobs, ("good", "bad", "good"), strict=True):
        settler.add(settled(job, "succeeded", result=result), engine.worker_id)
    stopping.set()
    with caplog.at_level(logging.ERROR, "duly.worker"):
        await settler.run(stopping)
    assert [(await engine.view(job.id)).result for job in jobs] == ["good", None, "good"]
    assert (await engine.view(jobs[1].id)).last_error == "the outcome could not be stored: DataError"
    assert (sum(freed), settler.settled_total, settler.unsettled) == (3, 3, 0)
    assert len(caplog.records) == 1


async def test_an_outcome_that_cannot_be_written_at_all_holds_nothing_up(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt row stands in its way: it is tried again behind the others, and written once it can be."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    jobs = await engine.claim()
    await database.execute(
        """insert into duly.attempt (job_id, number, worker_id, trigger, started_at, outcome)
           values ($1, 1, 0, 'schedule', now(), 'stray')""",
        jobs[0].id,
    )
    stopping = asyncio.Event()
    settler = Settler(database, 2, lambda n: None)
    for job in jobs:
        settler.add(settled(job, "succeeded"), engine.worker_id)
    with caplog.at_level(logging.CRITICAL, "duly.worker"):
        running = asyncio.create_task(settler.run(stopping))

        async def others_done() -> bool:
            return (await queue.conservation(database)).succeeded == 2

        await until(others_done)
        await until_true(lambda: settler.holding() == {jobs[0].id})
        await database.execute("delete from duly.attempt where outcome = 'stray'")
        stopping.set()
        await running
    assert (await engine.sound()).succeeded == 3
    assert settler.unsettled == 0


async def test_a_strange_policy_stops_no_claim(database: Database) -> None:
    """FO-008: what SQL may have stored as a retry policy is read with defaults; the jobs beside it are claimed too."""
    engine = await Engine.start(database)
    ids = await engine.enqueue(3)
    await database.execute(
        """update duly.job set retry = '{"backoff": {"base": 1e5000, "kind": 7}, "max_age": "soon"}' where id = $1""",
        ids[1],
    )
    jobs = await engine.claim()
    assert {job.id for job in jobs} == set(ids)
    assert {job.retry.max_age for job in jobs} == {timedelta(hours=24)}
    assert len(await queue.list_jobs(database, engine.owner)) == 3


async def test_a_time_limit_that_no_claim_could_add_up_is_refused(database: Database) -> None:
    """FO-008, FO-041: it would make every claim that meets it fail."""
    engine = await Engine.start(database)
    await engine.enqueue()
    for seconds in ("'infinity'", "'nan'", "1e30", "0"):
        with pytest.raises(asyncpg.CheckViolationError):
            await database.execute(f"update duly.job set timeout_seconds = {seconds}")


def test_a_task_that_was_left_behind_is_closed_quietly() -> None:
    """Its loop has ended while its handler waited: nothing is settled, as nobody could write it."""

    async def waiting(job: ClaimedJob) -> Outcome:
        await asyncio.Event().wait()
        return Success()

    loop = asyncio.new_event_loop()
    execution = Executor({"k": waiting}).execute(claimed())
    task = loop.create_task(execution)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    execution.close()
    loop.close()
    assert not task.done()


async def test_a_job_aborted_before_its_first_step() -> None:
    """Because the worker stops: given back unstarted. On request: cancelled. Another attempt's: no matter."""

    async def never(job: ClaimedJob) -> Outcome:
        raise AssertionError("it ran")

    for why, edge in (("stop", "release"), ("cancel", "cancelled"), ("other", "retry")):
        executor, job = Executor({"k": never}), claimed()
        running = asyncio.create_task(asyncio.sleep(0))
        executor.started(job, running)
        if why == "stop":
            executor.abort_all()
            executor.abort(job.id, job.attempt)  # the first reason counts
        else:
            executor.abort(job.id, job.attempt + (why == "other"))
        executor.abort(uuid7(), 1)
        assert (await executor.execute(job)).edge == edge
        executor.ended(job)
        assert executor.running == 0
        await running


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    """Nobody asked for it: an ordinary failure, and the task that runs it goes on."""

    async def handler(job: ClaimedJob) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return Success()

    done = await Executor({"k": handler}).execute(claimed())
    assert (done.edge, done.report and done.report.error) == ("retry", "the handler cancelled itself")
    await asyncio.sleep(0)
