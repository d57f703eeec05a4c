"""Leases that others hold locked, releases whose answer was lost, and two attempts of one job in one process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly import queue
from duly.model import ClaimedJob, Outcome, Success, uuid7
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError
from duly.model.settlement import Edge, Settlement, release
from duly.queue import ClaimCursor, Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from duly.worker.executor import Executor
from duly.worker.settler import Settler
from support.engine import Engine, new_worker
from support.sessions import autocommitting, holding, until, until_true
from support.working import Holding, working


async def test_one_locked_lease_holds_up_no_other_outcome(database: Database, database_url: str) -> None:
    """A caller cancels one of six running jobs in a transaction that stays open: the other five are settled meanwhile,
    and the sixth when the transaction has ended.
    """
    engine, handler = await Engine.start(database), Holding()
    ids = await engine.enqueue(6)
    done = "select count(*) from duly.outcome"
    async with working(database, database_url, {"k": handler}):
        await until_true(lambda: len(handler.started) == 6)
        async with holding(database_url) as (session, transaction):
            assert await queue.cancel(session, engine.owner, ids[0]) == "requested"
            handler.go.set()
            await until(lambda: database.fetchval(f"{done} where state = 'succeeded' having count(*) = 5"))
            assert await database.fetchval(done) == 5
            await transaction.commit()
        await until(lambda: database.fetchval(f"{done} having count(*) = 6"))
    assert [number for number, *_ in await engine.attempts(ids[0])] == [1]
    await engine.sound()


async def test_when_every_lease_is_locked_all_wait(database: Database, database_url: str) -> None:
    """It is told as trouble of the settling, and over when the locks are gone; nothing runs again."""
    engine, handler = await Engine.start(database), Holding()
    ids = await engine.enqueue(6)
    async with working(database, database_url, {"k": handler}):
        await until_true(lambda: len(handler.started) == 6)
        async with holding(database_url) as (session, transaction):
            for job_id in ids:
                assert await queue.cancel(session, engine.owner, job_id) == "requested"
            handler.go.set()
            await until_true(lambda: "settle" in database.trouble.failing)
            await transaction.commit()
        await until(lambda: database.fetchval("select count(*) = 6 from duly.outcome where state = 'succeeded'"))
        await until_true(lambda: "settle" not in database.trouble.failing)
    assert len(handler.started) == 6
    await engine.sound()


async def test_a_release_whose_answer_was_lost_is_not_sent_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, and the same worker has claimed the job again, under the same number: the lease stays."""
    engine = await Engine.start(database)
    job = await engine.running()
    settle, sent, unsure, freed = queue.settle, [0], [0], [0]

    async def lost(db: Any, worker_id: int, settlements: list[Settlement]) -> frozenset[UUID]:
        sent[0] += 1
        await settle(db, worker_id, settlements)
        raise DatabaseUnavailableError("the answer was lost")

    def doubt() -> None:
        unsure[0] += 1

    def free(n: int) -> None:
        freed[0] += n

    monkeypatch.setattr(queue, "settle", lost)
    settler, stopping = Settler(database, 100, free, doubt), asyncio.Event()
    settler.add(release(job), engine.worker_id)
    run = asyncio.create_task(settler.run(stopping))
    await until_true(lambda: unsure[0])
    again = await engine.claim_one()
    assert (again.id, again.attempt) == (job.id, job.attempt)
    stopping.set()
    async with asyncio.timeout(10):
        await run
    assert (sent[0], freed[0], settler.unsettled) == (1, 1, 0)
    assert (await engine.sound()).running == 1


@pytest.mark.parametrize("edge", ["release", "succeeded"])
async def test_an_answer_lost_while_a_batch_is_written_apart(
    database: Database, monkeypatch: pytest.MonkeyPatch, edge: Edge
) -> None:
    """Behind a locked lease each outcome goes by itself, and the link fails at the first: a release is left to be
    looked up, anything else is sent again; the second outcome is written in either case.
    """
    first, second = (Settlement(uuid7(), 1, "succeeded") for _ in range(2))
    first = first._replace(edge=edge)
    sent: list[list[UUID]] = []
    unsure: list[bool] = []
    freed: list[int] = []

    async def settle(db: Any, worker_id: int, settlements: list[Settlement]) -> frozenset[UUID]:
        sent.append([one.job_id for one in settlements])
        if len(sent) == 1:
            raise DatabaseBusyError("locked")
        if len(sent) == 2:
            raise DatabaseUnavailableError("the answer was lost")
        return frozenset()

    monkeypatch.setattr(queue, "settle", settle)
    settler, stopping = Settler(database, 100, freed.append, lambda: unsure.append(True)), asyncio.Event()
    settler.add(first, 1)
    settler.add(second, 1)
    stopping.set()
    async with asyncio.timeout(10):
        await settler.run(stopping)
    assert sent[:2] == [[first.job_id, second.job_id], [first.job_id]]
    again = {job_id for batch in sent[2:] for job_id in batch}
    assert again == ({second.job_id} if edge == "release" else {first.job_id, second.job_id})
    assert (len(unsure), sum(freed), settler.unsettled) == (int(edge == "release"), 2, 0)


async def test_an_old_attempt_that_still_ends_is_not_the_new_one(database: Database) -> None:
    """Both run in one process: each is stopped, counted and ended for itself."""
    engine = await Engine.start(database)
    first = await engine.running()
    second = first._replace(attempt=2)
    stopped: list[int] = []

    async def handler(job: ClaimedJob) -> Outcome:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append(job.attempt)
            raise
        return Success()

    executor = Executor({"k": handler})
    tasks = []
    for job in (first, second):
        tasks.append(asyncio.ensure_future(executor.execute(job)))
        executor.started(job, tasks[-1])  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    executor.abort(first.id, 2)
    assert (await tasks[1]).edge == "cancelled"
    executor.ended(second)
    assert (stopped, executor.running, executor.job_ids()) == ([2], 1, {first.id})
    executor.abort_all()
    assert (await tasks[0]).edge == "interrupted"
    executor.ended(first)
    assert executor.running == 0


async def test_a_claim_that_nobody_reads_is_ended(database: Database, database_url: str) -> None:
    """A stopped process does not read its answer: the backend cannot commit, and keeps what it locked, until it is
    ended; then the jobs and the limit are there for others.
    """
    engine = await Engine.start(database)
    await queue.set_queue(database, engine.owner.project_id, "default", queue.QueueSettings(concurrency=30))
    await engine.enqueue(30, body=b"x" * 250_000)
    stopped = await new_worker(database)
    waiting = "select exists (select from pg_stat_activity where wait_event = 'ClientWrite')"
    async with autocommitting(database_url) as session:
        segments = await queue.live_segments(session, "ready")
        assert await queue.claim(session, stopped, 30, ["none"], None, ClaimCursor(), segments) == []  # it is prepared
        connection: Any = session.connection
        connection._transport.pause_reading()
        unread = asyncio.ensure_future(queue.claim(session, stopped, 30, ["k"], None, ClaimCursor(), segments))
        await until(lambda: database.fetchval(waiting))
        assert await engine.claim() == []
        upkeep = Upkeep(database, Wakeups(database_url))
        await upkeep.unread_step()  # it is not old enough
        assert await database.fetchval(waiting)
        upkeep._unread_after = timedelta(0)
        await upkeep.unread_step()
        await until(lambda: database.fetchval(f"select not ({waiting})"))
        assert len(await engine.claim()) == 30
        unread.cancel()
        await asyncio.gather(unread, return_exceptions=True)
        session.connection.terminate()
    await engine.sound()
