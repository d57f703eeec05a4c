"""A server that turns read-only under load, as after a failover, and back."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

from api.harness import TARGET, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.model import ClaimedJob, Outcome, Success
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.crash_ledger import all_succeeded
from support.engine import Engine
from support.proxy import proxied
from support.roles import alter_database, cut_all
from support.sessions import until, until_true
from support.working import working

SECOND = timedelta(seconds=1)


async def turned(url: str, way: str) -> None:
    await alter_database(url, f"set default_transaction_read_only = {way}")
    await cut_all(url)


async def test_a_database_that_is_read_only_for_a_while_costs_no_job(database_url: str) -> None:
    """FO-034: error 25006 drops the connection; claims, settles, heartbeat and upkeep back off and resume by
    themselves; the API answers 503 and takes nothing in; every job runs, and no attempt is lost.
    """
    started: list[ClaimedJob] = []
    go, stopping = asyncio.Event(), asyncio.Event()

    async def handler(job: ClaimedJob) -> Outcome:
        started.append(job)
        await go.wait()
        return Success()

    async with await Database.open(database_url) as db, await Database.open(database_url) as api_db:
        engine = await Engine.start(db)
        server = ApiServer(create_app(api_db, EgressPolicy.parse(allow_loopback=True), ApiSettings()))
        host, port = await server.start("127.0.0.1", 0)
        upkeep = asyncio.create_task(Upkeep(db, Wakeups(database_url)).run(stopping))
        async with (
            httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client,
            working(db, database_url, {"k": handler}, concurrency=50, lease=4 * SECOND) as it,
        ):
            api = await new_api(api_db, client, "acme")
            await engine.enqueue(200)
            await until_true(lambda: len(started) == 50)

            await turned(database_url, "on")
            go.set()
            await until_true(lambda: it.worker._settler.unsettled == 50)
            await until_true(lambda: {"settle", "heartbeat", "promote"} <= db.trouble.failing)
            for _ in range(3):
                answer = await api.post("/v1/jobs", {"url": TARGET})
                assert_problem(answer, 503)
                assert int(answer.headers["retry-after"]) >= 1
            with pytest.raises(DatabaseUnavailableError):
                await engine.enqueue()

            await turned(database_url, "off")
            await until(lambda: _settled(db, 200))
            assert (await api.post("/v1/jobs", {"url": TARGET})).status_code == 201
            await db.execute("delete from duly.ready where job_id in (select id from duly.job where kind = 'http')")
            await db.execute("delete from duly.job where kind = 'http'")
            await all_succeeded(db, 200)
            assert (await it.drained()).clean
        stopping.set()
        await upkeep
        await server.stop()
        assert len(started) == 200
        assert await db.fetchval("select max(attempt) from duly.outcome") == 1


async def _settled(db: Database, n: int) -> bool:
    try:
        return bool(await db.fetchval("select count(*) from duly.outcome") == n)
    except DatabaseUnavailableError:  # the pool's connections from before are found dead one by one
        return False


async def test_of_several_hosts_the_writable_one_is_chosen(database_url: str) -> None:
    """FO-034: with target_session_attrs in the URL a connection to a read-only server is refused at once, and the
    next host is tried; one that does not listen is passed over too.
    """
    async with proxied(database_url) as gone, proxied(database_url) as there:
        host_list = f"127.0.0.1:{gone.port},127.0.0.1:{there.port}"
        url = there.url.replace(f"127.0.0.1:{there.port}", host_list) + "&target_session_attrs=read-write"
        await gone.stop()
        async with await Database.open(url) as db:
            assert await db.fetchval("select 1") == 1
        await turned(database_url, "on")
        with pytest.raises(DatabaseUnavailableError):
            await Database.open(url)
        await turned(database_url, "off")
