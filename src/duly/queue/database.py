"""Connections: a pool whose every statement has a time limit, runs in READ COMMITTED, and fails in our words.

READ COMMITTED is forced at connect, whatever the role's default: the engine's statements rely on each taking its locks
before its snapshot. The pool does not reset connections on release (one round trip saved per statement), so nothing
here may leave session state behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

import asyncpg

from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError
from duly.queue.failures import FULL_OR_STARTING, REFUSED_AT_THE_DOOR, ROLLED_BACK, busy, our_errors
from duly.queue.trouble import Trouble
from duly.schema.connection import Connection
from duly.schema.naming import DEFAULT_SCHEMA, checked_name, named

CONNECT_LIMIT = timedelta(seconds=10)
STATEMENT_LIMIT = timedelta(seconds=30)
CLOSE_LIMIT = timedelta(seconds=3)
ROOM_LIMIT = timedelta(seconds=30)
"""How long a start waits for a server that has no connection to give, or is starting itself."""

RESERVE = 2

_AGAIN_AFTER_S = (0.01, 0.03, 0.1)  # for the victim of a deadlock; spread by half, so that two do not meet again
_CUT_OFF_S = 1.0

Answer = TypeVar("Answer")
PooledConnection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


class Executor(Protocol):
    """Runs statements written with the qualifier `duly.`: a `Database` (each alone) or a `Session` (in one
    transaction).
    """

    schema: str

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]: ...
    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None: ...
    async def fetchval(self, statement: str, *args: Any) -> Any: ...
    async def execute(self, statement: str, *args: Any) -> str: ...


class Session:
    """One connection inside one transaction."""

    def __init__(
        self,
        connection: Connection,
        schema: str,
        limit: timedelta = STATEMENT_LIMIT,
    ) -> None:
        self.connection = connection
        self.schema = schema
        self._limit_s = limit.total_seconds()

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        return await self.connection.fetch(named(statement, self.schema), *args, timeout=self._limit_s)

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        return await self.connection.fetchrow(named(statement, self.schema), *args, timeout=self._limit_s)

    async def fetchval(self, statement: str, *args: Any) -> Any:
        return await self.connection.fetchval(named(statement, self.schema), *args, timeout=self._limit_s)

    async def execute(self, statement: str, *args: Any) -> str:
        return await self.connection.execute(named(statement, self.schema), *args, timeout=self._limit_s)


class Database:
    """A pool of connections to one database, bound to one schema name.

    A statement sent to it is a transaction of its own. One that lost against a rival (a deadlock, a serialization
    failure) was rolled back whole, and is sent again a few times before DatabaseBusyError is raised.

    Raises DatabaseUnavailableError whenever the server cannot be reached, is shutting down, has turned read-only or
    does not answer in time; the connection is dropped then, so the next statement asks a fresh one. Raises
    DatabaseBusyError when a time-out of the server's own ended the statement; the connection is kept.

    `reserve` is a small pool beside it, for what must not wait while this one is taken. `trouble` is where the loops
    that use it report, so that an outage is told once.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        schema: str,
        limit: timedelta = STATEMENT_LIMIT,
        reserve: Database | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        self._pool = pool
        self.schema = schema
        self._limit = limit
        self._cut_off: set[asyncio.Task[None]] = set()
        self.reserve = self if reserve is None else reserve
        self.trouble = trouble or Trouble()

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        min_size: int = 1,
        max_size: int = 8,
        name: str = "duly",
        limit: timedelta = STATEMENT_LIMIT,
        trouble: Trouble | None = None,
    ) -> Database:
        """Connect: `min_size` connections now, more as they are needed, each statement within `limit`. Those of the
        reserve come on top, when they are used.

        Raises DatabaseUnavailableError if the server cannot be reached. One that is full or starting is waited for.
        """
        checked_name(schema)

        async def made(size: int) -> asyncpg.Pool:
            return await asyncpg.create_pool(
                dsn,
                min_size=0,  # a floor would have the pool reconnect by itself, and log a stack each time it fails
                max_size=size,
                timeout=CONNECT_LIMIT.total_seconds(),
                command_timeout=limit.total_seconds(),
                max_inactive_connection_lifetime=0,
                reset=_keep_as_is,
                server_settings=server_settings(name),
            )

        trouble = trouble or Trouble()
        reserve = cls(await made(RESERVE), schema, limit, trouble=trouble)
        db = cls(await made(max_size), schema, limit, reserve, trouble)
        try:
            await db.connect(min_size)
        except BaseException:
            db.terminate()
            raise
        return db

    @property
    def max_size(self) -> int:
        """How many connections it may have, the reserve not counted."""
        return self._pool.get_max_size()

    async def connect(self, count: int = 1) -> None:
        """Have `count` connections open. A server that is full or starting is waited for, at most ROOM_LIMIT."""
        give_up_at = asyncio.get_running_loop().time() + ROOM_LIMIT.total_seconds()
        pause_s = 0.1
        while True:
            try:
                async with AsyncExitStack() as stack:
                    for _ in range(count):
                        await stack.enter_async_context(self.session())
                self.trouble.fine("start")
                return
            except DatabaseUnavailableError as error:
                wait_s = pause_s * random.uniform(0.5, 1.5)
                if (
                    not isinstance(error.__cause__, FULL_OR_STARTING)
                    or asyncio.get_running_loop().time() + wait_s > give_up_at
                ):
                    raise
                self.trouble.failed("start", error)
                await asyncio.sleep(wait_s)
                pause_s = min(pause_s * 2, 2.0)

    async def close(self, limit: timedelta = CLOSE_LIMIT) -> None:
        """Close every connection; what is still in flight after `limit` is cut off."""
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await asyncio.gather(*(pool.close() for pool in self._pools()))
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError):
            self.terminate()

    def terminate(self) -> None:
        """Close every connection at once, whatever it does."""
        for pool in self._pools():
            pool.terminate()

    def _pools(self) -> set[asyncpg.Pool]:
        return {self._pool, self.reserve._pool}

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Hold one connection, each statement its own transaction."""
        connection = await self._acquired()
        keep = True
        try:
            with our_errors():
                yield Session(connection, self.schema, self._limit)
        except DatabaseBusyError:
            raise
        except (DatabaseUnavailableError, asyncio.CancelledError):
            keep = False
            raise
        finally:
            if keep:
                await self._pool.release(connection)
            else:
                self._drop(connection)

    async def _acquired(self) -> PooledConnection:
        try:
            with our_errors():
                return await self._pool.acquire(timeout=CONNECT_LIMIT.total_seconds())
        except REFUSED_AT_THE_DOOR as error:
            raise DatabaseUnavailableError(
                f"the database refused the connection: {error}; check the database URL"
            ) from error
        except DatabaseUnavailableError as error:
            if isinstance(error.__cause__, TimeoutError) and self._pool.get_size() == self.max_size:
                raise DatabaseUnavailableError(
                    f"all {self.max_size} connections of the pool were in use for "
                    f"{CONNECT_LIMIT.total_seconds():g} s: hold them shorter, or open it with a larger max_size"
                ) from error
            raise

    def _drop(self, connection: Connection) -> None:
        """Close it without waiting for it, and have the server end what it may still be doing there: a statement that
        nobody waits for any more would keep its locks and its place.
        """
        closing = asyncio.create_task(_close(connection))
        self._cut_off.add(closing)
        closing.add_done_callback(self._cut_off.discard)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Hold one connection inside one transaction: committed at the end of the block, rolled back on an
        exception.
        """
        async with self.session() as session:
            async with session.connection.transaction():
                yield session

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        return await self._alone(lambda session: session.fetch(statement, *args))

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        return await self._alone(lambda session: session.fetchrow(statement, *args))

    async def fetchval(self, statement: str, *args: Any) -> Any:
        return await self._alone(lambda session: session.fetchval(statement, *args))

    async def execute(self, statement: str, *args: Any) -> str:
        return await self._alone(lambda session: session.execute(statement, *args))

    async def _alone(self, run: Callable[[Session], Awaitable[Answer]]) -> Answer:
        """Run one statement as a transaction of its own, again if it was rolled back for a rival's sake."""
        for again_after_s in _AGAIN_AFTER_S:
            try:
                async with self.session() as session:
                    return await run(session)
            except ROLLED_BACK:
                await asyncio.sleep(again_after_s * random.uniform(0.5, 1.5))
        try:
            async with self.session() as session:
                return await run(session)
        except ROLLED_BACK as error:
            raise busy(error) from error


def server_settings(name: str) -> dict[str, str]:
    """Settings that every connection of ours starts with."""
    return {
        "application_name": name,
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "60s",
        "jit": "off",
    }


async def _keep_as_is(connection: object) -> None:
    """Instead of asyncpg's reset: no session state is ever left behind here."""


async def _close(connection: Connection) -> None:
    with suppress(Exception):  # one that was cut off has left the pool by itself
        async with asyncio.timeout(_CUT_OFF_S):
            await connection.close()  # the driver asks the server to cancel first; past the limit it hangs up
