"""No connection to be had: the pool taken by handlers, the server full."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from duly.model import ClaimedJob, Outcome, State, Success
from duly.model.errors import DatabaseUnavailableError, InvalidInputError
from duly.queue import Database
from duly.queue import database as database_module
from duly.worker import Wakeups, Worker, WorkerConfig
from support.crash_ledger import all_succeeded
from support.engine import Engine
from support.roles import new_role
from support.sessions import until, until_true
from support.working import Holding, state_becomes, working


async def test_jobs_that_hold_every_pooled_connection_do_not_stall(database: Database, database_url: str) -> None:
    """FO-036: pool and concurrency are four, each of fifty jobs holds a connection while it runs and enqueues another
    job on it: all hundred run, each once.
    """
    async with await Database.open(database_url, max_size=4) as db:
        engine = await Engine.start(database)

        async def handler(job: ClaimedJob) -> Outcome:
            async with db.session() as session:
                if job.kind == "k":
                    await engine.enqueue_on(session, kind="next")
                await session.execute("select pg_sleep(0.01)")
            return Success()

        async with working(db, database_url, {"k": handler, "next": handler}, concurrency=4) as it:
            await engine.enqueue(50)
            await all_succeeded(database, 100)
            assert (await it.drained()).clean
    assert await database.fetchval("select max(attempt) from duly.outcome") == 1


async def test_a_settle_does_not_wait_for_the_pool(database: Database, database_url: str) -> None:
    """FO-036: with every connection of the pool held by handlers, outcomes are written, the lease is renewed, and the
    drain deregisters: they have connections of their own, opened at the start.
    """
    async with await Database.open(database_url, max_size=2) as db:
        engine = await Engine.start(database)
        hold, end_one = asyncio.Event(), asyncio.Event()
        holding: set[UUID] = set()

        async def handler(job: ClaimedJob) -> Outcome:
            if job.kind == "free":
                await end_one.wait()
                return Success()
            async with db.session():
                holding.add(job.id)
                await hold.wait()
            return Success()

        async with working(db, database_url, {"holds": handler, "free": handler}, concurrency=3) as it:
            [free] = await engine.enqueue(kind="free")
            await state_becomes(engine, free, State.RUNNING)
            await engine.enqueue(2, kind="holds")
            await until_true(lambda: len(holding) == 2)
            end_one.set()
            await state_becomes(engine, free, State.SUCCEEDED)
            hold.set()
            assert (await it.drained()).clean
    await engine.sound()


async def test_a_taken_pool_says_so(database_url: str, impatient: None) -> None:
    """The message names the size and what to do."""
    async with await Database.open(database_url, max_size=1) as db, db.session():
        with pytest.raises(DatabaseUnavailableError, match="all 1 connections of the pool were in use"):
            await db.fetchval("select 1")


async def test_a_pool_too_small_for_a_worker_is_refused(database_url: str) -> None:
    """FO-036: before anything is claimed, by a message that says how large it must be."""
    async with await Database.open(database_url, max_size=1) as db:
        with pytest.raises(InvalidInputError, match="max_size 1: claims and upkeep need 2 or more"):
            Worker(WorkerConfig({"k": Holding()}), db, database_url, Wakeups(database_url))


async def test_a_server_that_is_full_at_the_start_is_waited_for(database_url: str) -> None:
    """53300 at the start: as soon as there is room the database is open; the wait is told."""
    async with new_role(database_url, "connection limit 0") as role:
        opening = asyncio.create_task(Database.open(role.url))
        done, _ = await asyncio.wait({opening}, timeout=0.3)
        assert not done
        await role.alter("connection limit -1")
        async with asyncio.timeout(10):
            db = await opening
        assert await db.fetchval("select 1") == 1
        await db.close()


async def test_a_server_that_stays_full_ends_the_start(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is bounded, and the error is the server's."""
    monkeypatch.setattr(database_module, "ROOM_LIMIT", database_module.ROOM_LIMIT / 60)
    async with new_role(database_url, "connection limit 0") as role:
        with pytest.raises(DatabaseUnavailableError, match="too many connections"):
            await Database.open(role.url)


async def test_a_server_that_fills_up_under_a_worker_is_survived(database: Database, database_url: str) -> None:
    """FO-036: 53300 for every connection it asks for: it backs off, and goes on when there is room again."""
    engine = await Engine.start(database)
    handler = Holding()
    async with new_role(database_url) as role, await Database.open(role.url) as db:
        async with working(db, role.url, {"k": handler}) as it:
            ids = await engine.enqueue(8)
            await until_true(lambda: len(handler.started) == 8)
            await role.alter("connection limit 0")
            await role.cut()
            handler.go.set()
            await until_true(lambda: {"claim", "settle", "listen"} <= db.trouble.failing)
            await role.alter("connection limit -1")
            ids += await engine.enqueue(2)
            for job_id in ids:
                await state_becomes(engine, job_id, State.SUCCEEDED)
            await until_true(lambda: not db.trouble.failing)
            assert (await it.drained()).clean
    assert {(await engine.view(job_id)).attempts for job_id in ids} == {1}


async def test_the_reserve_is_open_before_it_is_needed(database: Database, database_url: str) -> None:
    """A server that fills up later cannot keep a worker from settling: it holds its connections from the start."""
    handler = Holding()
    engine = await Engine.start(database)
    async with new_role(database_url) as role, await Database.open(role.url) as db:
        async with working(db, role.url, {"k": handler}):
            [job_id] = await engine.enqueue()
            await until_true(lambda: handler.started)
            await role.alter("connection limit 0")
            handler.go.set()
            await state_becomes(engine, job_id, State.SUCCEEDED)
            await role.alter("connection limit -1")
        await until(lambda: engine.sound())
