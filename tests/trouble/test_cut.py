"""Backends terminated under load, and the listener's above all."""

from __future__ import annotations

import asyncio
import socket
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.model import ClaimedJob, Outcome, State, Success
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.crash_ledger import all_succeeded
from support.engine import Engine
from support.proxy import proxied
from support.roles import cut_all
from support.sessions import until, until_true
from support.working import state_becomes, working

SECOND = timedelta(seconds=1)
LISTENER = "select pid from pg_stat_activity where application_name = 'duly-listener' and datname = current_database()"
ASLEEP = "select last_value / 1000.0 - extract(epoch from clock_timestamp()) > 3.5 from duly.idle_until"


class Noting:
    """Succeeds; notes when each job started."""

    def __init__(self) -> None:
        self.started_at: dict[UUID, float] = {}

    async def __call__(self, job: ClaimedJob) -> Outcome:
        self.started_at[job.id] = time.monotonic()
        return Success()


async def test_backends_terminated_under_load_cost_nothing(database_url: str) -> None:
    """FO-034: all connections cut six times while 600 jobs run: each runs once, and the worker is still whole."""
    handler, stopping = Noting(), asyncio.Event()
    async with await Database.open(database_url) as db:
        engine = await Engine.start(db)
        upkeep = asyncio.create_task(Upkeep(db, Wakeups(database_url)).run(stopping))
        async with working(db, database_url, {"k": handler}, concurrency=20, claim_batch=20) as it:
            for n in range(6):
                await until(lambda: _enqueued(engine, 100))
                await until_true(lambda n=n: len(handler.started_at) > n * 100)  # type: ignore[misc]
                await cut_all(database_url)
            await until(lambda: _counted(db, 600))
            await all_succeeded(db, 600)
            assert (await it.drained()).clean
        stopping.set()
        await upkeep
        assert await db.fetchval("select max(attempt) from duly.outcome") == 1


async def _enqueued(engine: Engine, n: int) -> bool:
    try:
        await engine.enqueue(n)
    except DatabaseUnavailableError:
        return False
    return True


async def _counted(db: Database, n: int) -> bool:
    try:
        return bool(await db.fetchval("select count(*) from duly.outcome") == n)
    except DatabaseUnavailableError:
        return False


async def test_a_terminated_listener_listens_again_and_catches_up(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-032: ten jobs come while it is away and their hint is lost: its next connection is followed by a poll at once.
    Ten more, enqueued after that, are started within a moment. The log has two lines.
    """
    engine = await Engine.start(database)
    handler = Noting()
    async with proxied(database_url) as proxy, await Database.open(database_url) as db:
        async with working(
            db, database_url, {"k": handler}, listener_url=proxy.url, poll_min=SECOND / 5, poll_max=60 * SECOND
        ):
            pid = await until(lambda: database.fetchval(LISTENER))
            await until(lambda: database.fetchval(ASLEEP))
            proxy.mode = "refuse"
            await database.execute("select pg_terminate_backend($1)", pid)
            await until_true(lambda: "listen" in db.trouble.failing)
            lost = await engine.enqueue(10)
            await until(lambda: _none(database))
            proxy.mode = "pass"
            back_at = time.monotonic()
            await until_true(lambda: handler.started_at.keys() >= set(lost), 10)
            assert max(handler.started_at.values()) - back_at < 7  # the longest pause of the listener, and a poll

            await until(lambda: database.fetchval(ASLEEP))
            enqueued_at = time.monotonic()
            found = await engine.enqueue(10)
            await until_true(lambda: handler.started_at.keys() >= set(found))
            assert max(handler.started_at.values()) - enqueued_at < 2
    lines = [record.getMessage() for record in caplog.records if record.name == "duly.database"]
    assert lines == ["the database is in trouble, trying again", "the database answers again"]


async def _none(database: Database) -> bool:
    """Nobody listens, so the hint reached nobody."""
    return await database.fetchval(LISTENER) is None


async def test_a_name_that_does_not_resolve_for_a_while(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-022: eight jobs fail while the database's name does not resolve: the worker comes back by itself, their
    failures are recorded and one more job runs.
    """
    engine = await Engine.start(database)
    loop = asyncio.get_running_loop()
    resolve, broken, failing = loop.getaddrinfo, asyncio.Event(), asyncio.Event()
    started: list[ClaimedJob] = []

    async def getaddrinfo(*args: Any, **settings: Any) -> Any:
        if broken.is_set():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await resolve(*args, **settings)

    async def handler(job: ClaimedJob) -> Outcome:
        started.append(job)
        if len(started) > 8:
            return Success()
        await failing.wait()
        raise RuntimeError("no way to the network")

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with proxied(database_url) as proxy:
        url = proxy.url.replace("127.0.0.1", "localhost")
        async with await Database.open(url) as db, working(db, url, {"k": handler}) as it:
            ids = await engine.enqueue(8)
            await until_true(lambda: len(started) == 8)
            broken.set()
            proxy.cut()
            failing.set()
            await until_true(lambda: it.worker._settler.unsettled == 8)
            await until_true(lambda: {"claim", "settle", "listen"} <= db.trouble.failing)
            broken.clear()
            [one_more] = await engine.enqueue()
            await state_becomes(engine, one_more, State.SUCCEEDED)
            for job_id in ids:
                await state_becomes(engine, job_id, State.SCHEDULED)
            assert (await it.drained()).clean
    assert {tuple(await engine.attempts(job_id)) for job_id in ids} == {((1, "schedule", "error"),)}
