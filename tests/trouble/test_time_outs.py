"""Time-outs of the server's and of our own: waited out, never hammered, and no statement stays behind."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from duly.model import State
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError
from duly.queue import Database, Session
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.engine import Engine
from support.roles import new_role
from support.sessions import holding, somebody_waits, until, until_true
from support.working import Holding, state_becomes, working

LIMIT = timedelta(milliseconds=300)
HELD_S = 3.2

TIME_OUTS = {
    "statement_timeout": ("set statement_timeout = '300ms'", timedelta(seconds=30)),
    "lock_timeout": ("set lock_timeout = '300ms'", timedelta(seconds=30)),
    "our own": ("set statement_timeout = 0", LIMIT),
}


@pytest.mark.parametrize("which", TIME_OUTS)
async def test_a_database_that_is_too_slow_is_asked_less_and_less(
    database: Database,
    database_url: str,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """FO-020: while a table is locked, claims and upkeep run into their time-outs at a falling rate; afterwards all
    jobs run, without an attempt lost, and the log has two lines.
    """
    setting, limit = TIME_OUTS[which]
    engine = await Engine.start(database)
    sent: list[float] = []
    fetch, fetchval = Session.fetch, Session.fetchval

    async def counting_fetch(self: Session, statement: str, *args: Any) -> Any:
        if "duly.claim(" in statement:
            sent.append(time.monotonic())
        return await fetch(self, statement, *args)

    async def counting_fetchval(self: Session, statement: str, *args: Any) -> Any:
        if "duly.give_back(" in statement:  # what a claim without an answer may have taken, asked before the next
            sent.append(time.monotonic())
        return await fetchval(self, statement, *args)

    monkeypatch.setattr(Session, "fetch", counting_fetch)
    monkeypatch.setattr(Session, "fetchval", counting_fetchval)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    handler = Holding()
    handler.go.set()
    stopping = asyncio.Event()
    async with new_role(database_url, setting) as role, await Database.open(role.url, limit=limit) as db:
        upkeep = asyncio.create_task(Upkeep(db, Wakeups(role.url)).run(stopping))
        async with working(db, database_url, {"k": handler}):
            async with holding(database_url) as (lock, transaction):
                await lock.execute("lock table duly.lease in access exclusive mode")
                ids = await engine.enqueue(20)
                began = time.monotonic()
                await until(lambda: _passed(began + HELD_S))
                await transaction.commit()
            for job_id in ids:
                await state_becomes(engine, job_id, State.SUCCEEDED)
        await until_true(lambda: not db.trouble.failing)
        stopping.set()
        await upkeep
    claims = [at for at in sent if began <= at < began + HELD_S]
    gaps = [later - earlier for earlier, later in pairwise(claims)]
    assert 4 <= len(claims) <= 8
    assert gaps[-1] > 1.5 * gaps[0]
    assert {(await engine.view(job_id)).attempts for job_id in ids} == {1}
    lines = [record.getMessage() for record in caplog.records if record.name == "duly.database"]
    assert lines == ["the database is in trouble, trying again", "the database answers again"]


async def _passed(moment: float) -> bool:
    return time.monotonic() >= moment


@pytest.mark.parametrize("which", ["statement_timeout", "lock_timeout"])
async def test_the_servers_time_out_keeps_the_connection(database_url: str, which: str) -> None:
    """DatabaseBusyError: the statement was rolled back for certain, and the next one uses the same connection."""
    setting, _ = TIME_OUTS[which]
    async with new_role(database_url, setting) as role, await Database.open(role.url, max_size=1) as db:
        before = await db.fetchval("select pg_backend_pid()")
        async with holding(database_url) as (lock, _transaction):
            await lock.execute("lock table duly.ready in access exclusive mode")
            with pytest.raises(DatabaseBusyError):
                await db.fetchval("select count(*) from duly.ready")
            assert await db.fetchval("select pg_backend_pid()") == before


@pytest.mark.parametrize("how", ["limit", "cancel"])
async def test_a_statement_that_nobody_waits_for_ends_at_the_server_too(
    database: Database, database_url: str, how: str
) -> None:
    """Given up by its limit or by its caller, it is cancelled: it must not queue for the lock for ever, and later do
    what nobody expects any more. The pool serves at once.
    """
    limit = LIMIT if how == "limit" else timedelta(seconds=30)
    mine = "select count(*) from pg_stat_activity where application_name = 'given-up' and wait_event_type = 'Lock'"
    async with await Database.open(database_url, max_size=2, name="given-up", limit=limit) as db:
        async with holding(database_url) as (lock, _):
            await lock.execute("lock table duly.ready in access exclusive mode")
            tasks = [asyncio.create_task(db.execute("delete from duly.ready")) for _ in range(2)]
            await somebody_waits(database)
            if how == "cancel":
                for task in tasks:
                    task.cancel()
            for task in tasks:
                with pytest.raises((DatabaseUnavailableError, asyncio.CancelledError)):
                    await task

            async def none_left() -> bool:
                return bool(await database.fetchval(mine) == 0)

            await until(none_left, 5)
            assert await db.fetchval("select 1") == 1


async def test_cancelled_callers_leave_nothing_behind(database: Database, database_url: str) -> None:
    """FO-035: 300 rounds of three short statements on a pool of two, cancelled at random moments, some with a row
    locked: the pool still serves at once, and no statement and no lock is left at the server.
    """
    rng = random.Random(35)
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    mine = "application_name = 'cancelled' and pid <> pg_backend_pid()"

    async def use(db: Database, n: int) -> None:
        if n == 0:
            async with db.transaction() as session:
                await session.execute("select from duly.ready where job_id = $1 for update", job_id)
                await session.execute("select pg_sleep(0.002)")
        else:
            await db.fetchval("select pg_sleep(0.002)")

    async with await Database.open(database_url, max_size=2, name="cancelled") as db:
        for _ in range(300):
            tasks = [asyncio.create_task(use(db, n)) for n in range(3)]
            await asyncio.sleep(rng.uniform(0.0, 0.008))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(5):
            assert [await db.fetchval("select 1") for _ in range(4)] == [1] * 4

        async def nothing_left() -> bool:
            busy = await database.fetchval(f"select count(*) from pg_stat_activity where {mine} and state <> 'idle'")
            locks = await database.fetchval(
                f"select count(*) from pg_locks join pg_stat_activity using (pid) where {mine} and relation is not null"
            )
            return (busy, locks) == (0, 0)

        await until(nothing_left, 5)
        assert await engine.claim_one()
