"""Links that swallow everything and close nothing: every wait ends by itself."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from duly.model import ClaimedJob, Outcome, State, Success
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups, runtime
from support.engine import Engine
from support.proxy import proxied
from support.sessions import until, until_true
from support.working import Holding, state_becomes, working

SECOND = timedelta(seconds=1)
LIMIT = SECOND / 2
LISTENER = "select pid from pg_stat_activity where application_name = 'duly-listener' and datname = current_database()"
ASLEEP = "select last_value / 1000.0 - extract(epoch from clock_timestamp()) > 3.5 from duly.idle_until"


async def handle(job: ClaimedJob) -> Outcome:
    return Success()


async def test_a_dead_wake_up_link_is_found_and_replaced(
    database: Database, database_url: str, impatient: None
) -> None:
    """FO-033: nothing passes to the listener, and nobody says so: a poll finds the job all the same, a round trip
    finds the dead link, and once the way is free hints work as before.
    """
    engine = await Engine.start(database)
    async with proxied(database_url) as proxy, await Database.open(database_url) as db:
        async with working(
            db, database_url, {"k": handle}, listener_url=proxy.url, poll_min=SECOND / 5, poll_max=SECOND
        ) as it:
            first = await until(lambda: database.fetchval(LISTENER))
            proxy.mode = "black_hole"
            [polled] = await engine.enqueue()
            await state_becomes(engine, polled, State.SUCCEEDED)
            await until_true(lambda: "listen" in db.trouble.failing)
            proxy.mode = "pass"

            async def another() -> bool:
                return await database.fetchval(LISTENER) not in (None, first)

            await until(another)
            assert (await it.drained()).clean
        async with working(
            db, database_url, {"k": handle}, listener_url=proxy.url, poll_min=SECOND / 5, poll_max=60 * SECOND
        ):
            await until(lambda: database.fetchval(LISTENER))
            await until(lambda: database.fetchval(ASLEEP))
            before = time.monotonic()
            [woken] = await engine.enqueue()
            await state_becomes(engine, woken, State.SUCCEEDED)
            assert time.monotonic() - before < 5


async def test_claims_and_settles_get_out_of_a_black_hole(
    database: Database, database_url: str, impatient: None
) -> None:
    """FO-033: the lease is renewed by another way. Their statements are given up at the limit, and sent again on a new
    connection: each job runs once.
    """
    engine = await Engine.start(database)
    handler = Holding()
    async with proxied(database_url) as proxy, await Database.open(proxy.url, limit=LIMIT) as db:
        async with working(db, database_url, {"k": handler}) as it:
            ids = await engine.enqueue(4)
            await until_true(lambda: len(handler.started) == 4)
            proxy.mode = "black_hole"
            handler.go.set()
            await until_true(lambda: {"claim", "settle"} <= db.trouble.failing)
            ids += await engine.enqueue(4)
            proxy.mode = "pass"
            for job_id in ids:
                await state_becomes(engine, job_id, State.SUCCEEDED)
            assert (await it.drained()).clean
    assert {(await engine.view(job_id)).attempts for job_id in ids} == {1}
    await engine.sound()


async def test_upkeep_gets_out_of_a_black_hole(database: Database, database_url: str, impatient: None) -> None:
    """FO-033: what fell due meanwhile is promoted when the way is free again; segments and rescue go on too."""
    engine = await Engine.start(database)
    stopping = asyncio.Event()
    async with proxied(database_url) as proxy, await Database.open(proxy.url, limit=LIMIT) as db:
        upkeep = asyncio.create_task(Upkeep(db, Wakeups(database_url)).run(stopping))
        [job_id] = await engine.enqueue(delay=SECOND)
        proxy.mode = "black_hole"
        await until_true(lambda: {"promote", "rescue", "segments"} <= db.trouble.failing)
        proxy.mode = "pass"
        await state_becomes(engine, job_id, State.READY)
        await until_true(lambda: not db.trouble.failing)
        stopping.set()
        await upkeep


async def test_a_black_hole_does_not_hold_up_a_drain(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limits of production, and a claim, a settle and a renewal in the hole: the stop ends by the grace and
    the last words, says that it was not clean, and what could not be written is another worker's soon.
    """
    monkeypatch.setattr(runtime, "_LAST_WORDS_S", 1.0)
    engine = await Engine.start(database)
    handler = Holding()
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        async with working(db, proxy.url, {"k": handler}, grace=LIMIT, lease=SECOND) as it:
            [ended, runs] = await engine.enqueue(2)
            await until_true(lambda: len(handler.started) == 2)
            proxy.mode = "black_hole"
            await until_true(lambda: it.worker._claimer._under_way)
            handler.go.set()
            await until_true(lambda: it.worker._settler.unsettled)
            before = time.monotonic()
            drained = await it.drained()
            took_s = time.monotonic() - before
        assert took_s < 0.5 + 1.0 + 2.0
        assert not drained.clean
        await engine.expire_worker(it.worker.worker_id)
        await engine.rescue()
        assert {(await engine.view(job_id)).state for job_id in (ended, runs)} == {State.SCHEDULED}
    await engine.sound()
