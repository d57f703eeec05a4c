"""What Python programs hold when they enqueue: every kind of connection, behind one face, so that one test runs over
all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from duly.queue import Database


class Caller(Protocol):
    """A connection inside a transaction that it has not ended. `on` is what is handed to Duly."""

    on: Any

    async def write(self, statement: str) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class _Sync:
    """One whose calls block; they run where the test does, as in a program."""

    def __init__(self, on: Any, run: Callable[[str], Any]) -> None:
        self.on = on
        self._run = run

    async def write(self, statement: str) -> None:
        self._run(statement)

    async def commit(self) -> None:
        self.on.commit()

    async def rollback(self) -> None:
        self.on.rollback()


class _Async:
    def __init__(self, on: Any, run: Callable[[str], Any]) -> None:
        self.on = on
        self._run = run

    async def write(self, statement: str) -> None:
        await self._run(statement)

    async def commit(self) -> None:
        await self.on.commit()

    async def rollback(self) -> None:
        await self.on.rollback()


class _Transaction(_Async):
    """asyncpg's: the transaction is an object beside the connection."""

    def __init__(self, on: Any, transaction: Any, run: Callable[[str], Any]) -> None:
        super().__init__(on, run)
        self._transaction = transaction

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        yield _Sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_dict_rows(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        yield _Sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_raw_cursors(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        yield _Sync(connection, connection.execute)


@asynccontextmanager
async def _psycopg_async_raw_cursors(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, cursor_factory=psycopg.AsyncRawCursor) as connection:
        yield _Async(connection, connection.execute)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield _Async(connection, connection.execute)


@asynccontextmanager
async def _psycopg2(url: str) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(url)
    try:
        yield _Sync(connection, connection.cursor().execute)
    finally:
        connection.close()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield _Transaction(connection, transaction, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_lent(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield _Transaction(connection, transaction, connection.execute)


def _engine_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def _sqlalchemy(driver: str) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    @asynccontextmanager
    async def connected(url: str) -> AsyncIterator[Caller]:
        engine = sqlalchemy.create_engine(_engine_url(url, driver))
        try:
            with engine.connect() as connection:
                yield _Sync(connection, lambda statement: connection.execute(sqlalchemy.text(statement)))
        finally:
            engine.dispose()

    return connected


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(_engine_url(url, "psycopg"))
    try:
        with orm.Session(engine) as session:
            yield _Sync(session, lambda statement: session.execute(sqlalchemy.text(statement)))
    finally:
        engine.dispose()


@asynccontextmanager
async def _async_connection(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy_asyncio.create_async_engine(_engine_url(url, "asyncpg"))
    try:
        async with engine.connect() as connection:
            yield _Async(connection, lambda statement: connection.execute(sqlalchemy.text(statement)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def _async_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy_asyncio.create_async_engine(_engine_url(url, "psycopg"))
    try:
        async with sqlalchemy_asyncio.AsyncSession(engine) as session:
            yield _Async(session, lambda statement: session.execute(sqlalchemy.text(statement)))
    finally:
        await engine.dispose()


def django_connection(url: str) -> Any:
    """A Django connection to the database, made as `django.db.connections` makes them; closed by the caller."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    from django.db.utils import ConnectionHandler

    parts = psycopg.conninfo.conninfo_to_dict(url)
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.get("dbname"),
                "USER": parts.get("user", ""),
                "PASSWORD": parts.get("password", ""),
                "HOST": parts.get("host", ""),
                "PORT": parts.get("port", ""),
            }
        }
    )
    return handler["default"]


@asynccontextmanager
async def _django(url: str) -> AsyncIterator[Caller]:
    connection = django_connection(url)

    def run(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def begin() -> None:
        connection.inc_thread_sharing()
        connection.set_autocommit(False)

    # Django refuses its connections where a loop runs (they block), so the test's is hidden from it here
    allowed = _without_loop(connection)
    try:
        allowed(begin)
        yield _DjangoCaller(connection, run, allowed)
    finally:
        allowed(connection.close)


def _without_loop(connection: Any) -> Callable[[Callable[[], Any]], Any]:
    def call(what: Callable[[], Any]) -> Any:
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return what()
        finally:
            asyncio._set_running_loop(running)

    return call


class _DjangoCaller:
    def __init__(self, on: Any, run: Callable[[str], Any], allowed: Callable[[Callable[[], Any]], Any]) -> None:
        self.on = on
        self._run = run
        self.allowed = allowed

    async def write(self, statement: str) -> None:
        self.allowed(lambda: self._run(statement))

    async def commit(self) -> None:
        self.allowed(self.on.commit)

    async def rollback(self) -> None:
        self.allowed(self.on.rollback)


@asynccontextmanager
async def _own_session(url: str) -> AsyncIterator[Caller]:
    async with await Database.open(url, max_size=1) as db, db.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        yield _Transaction(session, transaction, session.execute)


CALLERS: dict[str, Callable[[str], AbstractAsyncContextManager[Caller]]] = {
    "psycopg": _psycopg,
    "psycopg with dict rows": _psycopg_dict_rows,
    "psycopg with raw cursors": _psycopg_raw_cursors,
    "psycopg async": _psycopg_async,
    "psycopg async with raw cursors": _psycopg_async_raw_cursors,
    "psycopg2": _psycopg2,
    "asyncpg": _asyncpg,
    "asyncpg from a pool": _asyncpg_lent,
    "sqlalchemy connection on psycopg": _sqlalchemy("psycopg"),
    "sqlalchemy connection on psycopg2": _sqlalchemy("psycopg2"),
    "sqlalchemy session": _session,
    "sqlalchemy async connection on asyncpg": _async_connection,
    "sqlalchemy async session on psycopg": _async_session,
    "django": _django,
    "duly session": _own_session,
}


def _autocommitting(driver: str, kind: Any, **engine_options: Any) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def connected(url: str) -> AsyncIterator[Any]:
        engine = sqlalchemy.create_engine(_engine_url(url, driver), **engine_options)
        try:
            with kind(engine) as connection:
                yield connection
        finally:
            engine.dispose()

    return connected


def _autocommitting_async(driver: str, kind: Any) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def connected(url: str) -> AsyncIterator[Any]:
        engine = sqlalchemy_asyncio.create_async_engine(_engine_url(url, driver), isolation_level="AUTOCOMMIT")
        try:
            async with kind(engine) as connection:
                yield connection
        finally:
            await engine.dispose()

    return connected


@asynccontextmanager
async def _autocommitting_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def _autocommitting_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _autocommitting_psycopg2(url: str) -> AsyncIterator[Any]:
    connection = psycopg2.connect(url)
    connection.set_isolation_level(0)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def _own_database(url: str) -> AsyncIterator[Any]:
    async with await Database.open(url, max_size=1) as db:
        yield db


_BY_ENGINE = {"isolation_level": "AUTOCOMMIT"}
_BY_OPTION = {"execution_options": {"isolation_level": "AUTOCOMMIT"}}

AUTOCOMMITTING: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "psycopg": _autocommitting_psycopg,
    "psycopg2": _autocommitting_psycopg2,
    "asyncpg": _autocommitting_asyncpg,
    "asyncpg pool": lambda url: asyncpg.create_pool(url, min_size=1, max_size=1),
    "duly database": _own_database,
    "sqlalchemy engine on psycopg": _autocommitting("psycopg", lambda engine: engine.connect(), **_BY_ENGINE),
    "sqlalchemy engine on psycopg, begun": _autocommitting("psycopg", lambda engine: engine.begin(), **_BY_ENGINE),
    "sqlalchemy engine on psycopg2": _autocommitting("psycopg2", lambda engine: engine.connect(), **_BY_ENGINE),
    "sqlalchemy engine's option": _autocommitting("psycopg", lambda engine: engine.connect(), **_BY_OPTION),
    "sqlalchemy connection's option": _autocommitting(
        "psycopg", lambda engine: engine.connect().execution_options(**_BY_ENGINE)
    ),
    "sqlalchemy session": _autocommitting("psycopg", orm.Session, **_BY_ENGINE),
    "sqlalchemy session, engine's option": _autocommitting("psycopg2", orm.Session, **_BY_OPTION),
    "sqlalchemy async connection on asyncpg": _autocommitting_async("asyncpg", lambda engine: engine.connect()),
    "sqlalchemy async connection on psycopg": _autocommitting_async("psycopg", lambda engine: engine.connect()),
    "sqlalchemy async session on asyncpg": _autocommitting_async("asyncpg", sqlalchemy_asyncio.AsyncSession),
    "sqlalchemy async session on psycopg": _autocommitting_async("psycopg", sqlalchemy_asyncio.AsyncSession),
}
"""Connections that commit each statement by themselves, whoever told them to."""
