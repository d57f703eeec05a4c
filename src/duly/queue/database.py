"""Connections: a pool whose every statement has a time limit, runs in READ COMMITTED, and fails in our words.

READ COMMITTED is forced at connect, whatever the role's default: the engine's statements rely on each taking its locks
before its snapshot. The pool does not reset connections on release (one round trip saved per statement), so nothing
here may leave session state behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import asyncpg

from duly.model.errors import DatabaseUnavailableError, LeaseLostError
from duly.schema.connection import Connection
from duly.schema.naming import DEFAULT_SCHEMA, checked_name, named

CONNECT_LIMIT = timedelta(seconds=10)
STATEMENT_LIMIT = timedelta(seconds=30)

_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # admin_shutdown, crash_shutdown, cannot_connect_now
    asyncpg.InsufficientResourcesError,  # too_many_connections, out_of_memory, disk_full
    asyncpg.ReadOnlySQLTransactionError,  # a standby, or a primary that was demoted
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


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

    Raises DatabaseUnavailableError whenever the server cannot be reached, is shutting down, has turned read-only or
    does not answer in time; the connection is dropped then, so the next statement asks a fresh one.
    """

    def __init__(self, pool: asyncpg.Pool, schema: str) -> None:
        self._pool = pool
        self.schema = schema

    @classmethod
    async def open(
        cls, dsn: str, *, schema: str = DEFAULT_SCHEMA, min_size: int = 1, max_size: int = 8, name: str = "duly"
    ) -> Database:
        """Connect. Raises DatabaseUnavailableError if the server cannot be reached."""
        checked_name(schema)
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=min_size,
                max_size=max_size,
                timeout=CONNECT_LIMIT.total_seconds(),
                command_timeout=STATEMENT_LIMIT.total_seconds(),
                max_inactive_connection_lifetime=0,
                reset=_keep_as_is,
                server_settings=server_settings(name),
            )
        except _AWAY as error:
            raise _unavailable(error) from error
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError, ValueError) as error:
            raise DatabaseUnavailableError(
                f"the database refused the connection: {error}; check the database URL"
            ) from error
        return cls(pool, schema)

    async def close(self) -> None:
        """Close every connection, waiting a bounded time for statements in flight."""
        try:
            async with asyncio.timeout(10):
                await self._pool.close()
        except _AWAY:
            self._pool.terminate()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Hold one connection, each statement its own transaction."""
        with our_errors():
            connection = await self._pool.acquire(timeout=CONNECT_LIMIT.total_seconds())
        try:
            with our_errors():
                yield Session(connection, self.schema)
        except (DatabaseUnavailableError, asyncio.CancelledError):
            with suppress(asyncpg.InterfaceError):  # one that was cut off has left the pool by itself
                connection.terminate()  # whatever it was doing is not to be waited for
            raise
        finally:
            await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Hold one connection inside one transaction: committed at the end of the block, rolled back on an
        exception.
        """
        async with self.session() as session:
            async with session.connection.transaction():
                yield session

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.fetch(statement, *args)

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        async with self.session() as session:
            return await session.fetchrow(statement, *args)

    async def fetchval(self, statement: str, *args: Any) -> Any:
        async with self.session() as session:
            return await session.fetchval(statement, *args)

    async def execute(self, statement: str, *args: Any) -> str:
        async with self.session() as session:
            return await session.execute(statement, *args)


def server_settings(name: str) -> dict[str, str]:
    """Settings that every connection of ours starts with."""
    return {
        "application_name": name,
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": "60s",
        "jit": "off",
    }


@contextmanager
def our_errors() -> Iterator[None]:
    """Map what the driver raises to what callers of the queue handle."""
    try:
        yield
    except asyncpg.PostgresError as error:
        if error.sqlstate == "DU001":
            raise LeaseLostError(str(error)) from error
        if isinstance(error, _AWAY):
            raise _unavailable(error) from error
        raise
    except _AWAY as error:
        raise _unavailable(error) from error


async def _keep_as_is(connection: object) -> None:
    """Instead of asyncpg's reset: no session state is ever left behind here."""


def _unavailable(error: BaseException) -> DatabaseUnavailableError:
    what = str(error) or type(error).__name__
    return DatabaseUnavailableError(f"the database is not available: {what}")
