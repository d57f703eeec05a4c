"""Failures that other queues had (docs/explanation/field-cases.md), with workers that run."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from uuid import UUID

from duly import queue
from duly.model import ClaimedJob, Outcome, Report, Retry, State, Success
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.engine import Engine
from support.sessions import until, until_true
from support.working import Holding, state_becomes, working

SECOND = timedelta(seconds=1)


async def test_long_jobs_are_renewed_and_run_once(database: Database, database_url: str) -> None:
    """FO-001: fifty jobs of three leases' length in one worker, another one idle, rescue running: each body runs once,
    and the worker is never silent for long.
    """
    engine = await Engine.start(database)
    busy, idle = Holding(), Holding()
    oldest = timedelta(0)
    async with working(database, database_url, {"k": busy}, lease=SECOND, concurrency=50) as one:
        await engine.enqueue(50)
        await until_true(lambda: len(busy.started) == 50)
        stopping = asyncio.Event()
        upkeep = asyncio.create_task(Upkeep(database, Wakeups(database_url)).run(stopping))
        async with working(database, database_url, {"k": idle}, lease=SECOND, concurrency=50):

            async def three_leases_long() -> bool:
                nonlocal oldest
                row = await database.fetchrow(
                    """select clock_timestamp() - heartbeat_at as age,
                              heartbeat_at - started_at > interval '3 seconds' as long
                       from duly.worker where id = $1""",
                    one.worker.worker_id,
                )
                assert row is not None
                oldest = max(oldest, row["age"])
                return bool(row["long"])

            await until(three_leases_long)
        busy.go.set()
        assert (await one.drained()).settled == 50
        stopping.set()
        await upkeep
    assert (len(busy.started), len(busy.stopped), idle.started) == (50, 0, [])
    assert oldest < SECOND * 0.9  # a quarter, and what a busy machine adds
    assert (await engine.sound()).succeeded == 50


async def test_a_target_that_always_refuses_is_tried_as_often_as_it_may(database: Database, database_url: str) -> None:
    """FO-016: three attempts on record, then dead, and not one more."""
    engine = await Engine.start(database)
    runs: list[int] = []

    async def refused(job: ClaimedJob) -> Outcome:
        runs.append(job.attempt)
        return Retry(Report("http_error", "answered 403", 403))

    async with working(database, database_url, {"k": refused}):
        [job_id] = await engine.enqueue(max_attempts=3)
        for n in (1, 2):
            await state_becomes(engine, job_id, State.SCHEDULED)
            assert len(runs) == n
            await engine.due_now(job_id)
        await state_becomes(engine, job_id, State.DEAD)
        [fence] = await engine.enqueue()  # one that is claimed after it: whatever was still to come has come
        await state_becomes(engine, fence, State.SCHEDULED)
    assert runs == [1, 2, 3, 1]
    assert [(n, o) for n, _, o in await engine.attempts(job_id)] == [(n, "http_error") for n in (1, 2, 3)]
    assert (await engine.view(job_id)).reason == "attempts_exhausted"


async def test_nothing_runs_before_its_transaction_commits(database: Database, database_url: str) -> None:
    """FO-029: enqueued on the caller's own connection; an idle worker looks meanwhile (it runs a job that came later)
    and does not see it. Rolled back it never runs; committed it starts.
    """
    engine = await Engine.start(database)
    runs: Counter[UUID] = Counter()

    async def handler(job: ClaimedJob) -> Outcome:
        runs[job.id] += 1
        return Success()

    async def pass_by() -> None:
        [later] = await engine.enqueue()
        await state_becomes(engine, later, State.SUCCEEDED)

    async with working(database, database_url, {"k": handler}):
        await pass_by()  # the lane is there: who makes one lets others wait for it until the commit
        async with database.session() as session:
            for committed in (False, True):
                transaction = session.connection.transaction()
                await transaction.start()
                job_id = await engine.enqueue_on(session)
                await pass_by()
                assert runs[job_id] == 0
                await (transaction.commit() if committed else transaction.rollback())
                if committed:
                    await state_becomes(engine, job_id, State.SUCCEEDED)
                else:
                    await pass_by()
                assert runs[job_id] == committed
    assert await queue.get_job(database, None, job_id) is not None
    assert (await engine.sound()).jobs == 5
