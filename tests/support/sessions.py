"""Two sessions and who waits for whom: order forced by held locks, never by sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from duly.queue import Database, Session

PATIENCE_S = 20.0


@asynccontextmanager
async def autocommitting(url: str) -> AsyncIterator[Session]:
    """A session of its own, each statement its own transaction."""
    connection = await asyncpg.connect(url)
    try:
        yield Session(connection, "duly")
    finally:
        await connection.close()


@asynccontextmanager
async def holding(
    url: str, isolation: Any = "read_committed"
) -> AsyncIterator[tuple[Session, asyncpg.transaction.Transaction]]:
    """A session inside an open transaction, which the test commits or rolls back; rolled back if it does neither."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    try:
        yield Session(connection, "duly"), transaction
    finally:
        if connection.is_in_transaction():
            await transaction.rollback()
        await connection.close()


async def until(what: Callable[[], Awaitable[Any]], patience_s: float = PATIENCE_S) -> Any:
    """Ask again and again until the answer is truthy; fail after `patience_s` seconds."""
    async with asyncio.timeout(patience_s):
        while not (answer := await what()):
            await asyncio.sleep(0.01)
        return answer


async def until_true(what: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """The same for a plain function."""
    async with asyncio.timeout(patience_s):
        while not what():
            await asyncio.sleep(0.005)


async def until_waiting(db: Database, session: Session) -> None:
    """Return once the session's statement waits for a lock that another session holds."""
    pid = session.connection.get_server_pid()
    await until(lambda: db.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))


@asynccontextmanager
async def server_up_for(db: Database, ago: timedelta) -> AsyncIterator[Session]:
    """A session for which the server started `ago` ago, so that the grace after a start is over, or is not, as the
    test wants it.
    """
    await db.execute("create schema if not exists pretended")
    await db.execute(
        f"""create or replace function pretended.pg_postmaster_start_time() returns timestamptz language sql
            return pg_catalog.clock_timestamp() - interval '{ago.total_seconds()} seconds'"""
    )
    async with db.session() as session:
        await session.execute("set search_path = pretended, pg_catalog")
        try:
            yield session
        finally:
            await session.execute("reset search_path")


@asynccontextmanager
async def held_up(url: str, table: str) -> AsyncIterator[None]:
    """Meanwhile whoever writes to the table waits."""
    async with holding(url) as (session, transaction):
        await session.execute(f"lock table duly.{table} in exclusive mode")
        yield
        await transaction.commit()


async def somebody_waits(database: Database) -> None:
    """Return once a statement of this database waits for a lock."""
    waiting = """select exists (select from pg_stat_activity
                 where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0)"""
    await until(lambda: database.fetchval(waiting))


async def overlapping(
    database: Database,
    first: Session,
    one: Callable[[Session], Awaitable[Any]],
    second: Session,
    other: Callable[[Session], Awaitable[Any]],
    *,
    commit: bool,
) -> bool:
    """Run `one` in a transaction that ends only when `other`, in the second session, is done or waits for it. Returns
    whether it waited.
    """
    transaction = first.connection.transaction()
    await transaction.start()
    await one(first)
    task = asyncio.ensure_future(other(second))
    waiting = asyncio.ensure_future(until_waiting(database, second))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waited = not task.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await (transaction.commit() if commit else transaction.rollback())
    await asyncio.wait_for(task, 10)
    return waited
