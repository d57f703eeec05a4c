"""What callers hold, told apart by its type: psycopg, psycopg2, asyncpg, SQLAlchemy, Django. None of them is
imported here; whoever holds one of their connections has imported it.

Every statement returns one text, so that no driver's own types, row factories or codecs matter. It runs in the caller's
transaction; nothing here commits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeAlias

from duly.model.errors import InvalidInputError
from duly.model.storable import class_name

Param: TypeAlias = str | None

_NUMBERED = re.compile(r"\$(\d+)")


class SyncLink(Protocol):
    """A connection whose statements block. Statements are written with $1, $2 …, each once and in order."""

    def text(self, statement: str, *params: Param) -> str | None:
        """The one value of the one row that the statement returns."""
        ...

    def run(self, statement: str) -> None:
        """Run a statement without parameters and answers."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open now."""
        ...

    def autocommits(self) -> bool:
        """Whether a statement that is sent now is a transaction of its own."""
        ...

    def end(self) -> None:
        """End a transaction that a read of ours began."""
        ...


class AsyncLink(Protocol):
    """The same for one whose statements are awaited."""

    async def text(self, statement: str, *params: Param) -> str | None: ...
    async def run(self, statement: str) -> None: ...
    async def is_in_transaction(self) -> bool: ...
    async def autocommits(self) -> bool: ...
    async def end(self) -> None: ...

    def one(self) -> AbstractAsyncContextManager[AsyncLink]:
        """Meanwhile one connection: itself, or one of its pool's."""
        ...


class _One:
    """What is one connection already."""

    @asynccontextmanager
    async def one(self: Any) -> AsyncIterator[AsyncLink]:
        yield self


def link(connection: Any) -> SyncLink | AsyncLink:
    """How to talk to it. Raises InvalidInputError for what is no connection that is known."""
    for module, name, make in _KNOWN:
        kind = _loaded(module, name)
        if kind is not None and isinstance(connection, kind):
            return make(connection)
    raise InvalidInputError(
        f"{class_name(connection)} is no connection that Duly knows: hand over one of psycopg, psycopg2, asyncpg, "
        "SQLAlchemy or Django, "
        "or call duly.enqueue_task in SQL"
    )


def _loaded(module: str, name: str) -> type | None:
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) else None


def _with_percent_s(statement: str) -> str:
    return _NUMBERED.sub("%s", statement)


def _with_names(statement: str) -> str:
    return _NUMBERED.sub(r":p\1", statement)


def _named(params: tuple[Param, ...]) -> dict[str, Param]:
    return {f"p{n}": value for n, value in enumerate(params, 1)}


class _Psycopg:
    """psycopg 3."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _cursor(self) -> Any:
        """A plain one: the connection's own factory may make cursors that read statements otherwise."""
        return sys.modules["psycopg"].Cursor(self._connection, row_factory=sys.modules["psycopg.rows"].tuple_row)

    def text(self, statement: str, *params: Param) -> str | None:
        with self._cursor() as cursor:
            return _only(cursor.execute(_with_percent_s(statement), params).fetchone())

    def run(self, statement: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement)

    def is_in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status != 0)  # 0: idle, in libpq's words

    def autocommits(self) -> bool:
        return bool(self._connection.autocommit) and not self.is_in_transaction()

    def end(self) -> None:
        if not self._connection.autocommit:
            self._connection.rollback()


class _AsyncPsycopg(_One):
    """psycopg 3, awaited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _cursor(self) -> Any:
        return sys.modules["psycopg"].AsyncCursor(self._connection, row_factory=sys.modules["psycopg.rows"].tuple_row)

    async def text(self, statement: str, *params: Param) -> str | None:
        async with self._cursor() as cursor:
            await cursor.execute(_with_percent_s(statement), params)
            return _only(await cursor.fetchone())

    async def run(self, statement: str) -> None:
        async with self._cursor() as cursor:
            await cursor.execute(statement)

    async def is_in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status != 0)

    async def autocommits(self) -> bool:
        return bool(self._connection.autocommit) and not await self.is_in_transaction()

    async def end(self) -> None:
        if not self._connection.autocommit:
            await self._connection.rollback()


class _Psycopg2:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def _cursor(self) -> Any:
        return self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)

    def text(self, statement: str, *params: Param) -> str | None:
        with self._cursor() as cursor:
            cursor.execute(_with_percent_s(statement), params)
            return _only(cursor.fetchone())

    def run(self, statement: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement)

    def is_in_transaction(self) -> bool:
        return bool(self._connection.get_transaction_status() != 0)

    def autocommits(self) -> bool:
        return bool(self._connection.autocommit) and not self.is_in_transaction()

    def end(self) -> None:
        if not self._connection.autocommit:
            self._connection.rollback()


class _Asyncpg(_One):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def text(self, statement: str, *params: Param) -> str | None:
        return _as_text(await self._connection.fetchval(statement, *params))

    async def run(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def autocommits(self) -> bool:
        return not await self.is_in_transaction()

    async def end(self) -> None:
        return None  # outside a block each statement is its own


class _AsyncpgPool(_Asyncpg):
    """Each statement alone."""

    async def is_in_transaction(self) -> bool:
        return False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncLink]:
        async with self._connection.acquire() as connection:
            yield _Asyncpg(connection)


class _OwnDatabase(_AsyncpgPool):
    """Duly's own pool."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncLink]:
        async with self._connection.session() as session:
            yield _OwnSession(session)


class _OwnSession(_Asyncpg):
    async def is_in_transaction(self) -> bool:
        return bool(self._connection.connection.is_in_transaction())


class _SqlAlchemy:
    """A Connection. It says that it is in a transaction also where its driver commits each statement: the driver is
    asked.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._began = False

    def text(self, statement: str, *params: Param) -> str | None:
        self._began = self._began or not self._connection.in_transaction()
        made = sys.modules["sqlalchemy"].text(_with_names(statement))
        return _as_text(self._connection.execute(made, _named(params)).scalar())

    def run(self, statement: str) -> None:
        self._connection.execute(sys.modules["sqlalchemy"].text(statement))

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_transaction()) and not self.autocommits()

    def autocommits(self) -> bool:
        return _driver_autocommits(self._connection)

    def end(self) -> None:
        if self._began:
            self._connection.rollback()


class _SqlAlchemySession(_SqlAlchemy):
    def autocommits(self) -> bool:
        return _driver_autocommits(self._connection.connection())


class _AsyncSqlAlchemy(_One):
    """An AsyncConnection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._began = False

    async def text(self, statement: str, *params: Param) -> str | None:
        self._began = self._began or not self._connection.in_transaction()
        made = sys.modules["sqlalchemy"].text(_with_names(statement))
        return _as_text((await self._connection.execute(made, _named(params))).scalar())

    async def run(self, statement: str) -> None:
        await self._connection.execute(sys.modules["sqlalchemy"].text(statement))

    async def is_in_transaction(self) -> bool:
        return bool(self._connection.in_transaction()) and not await self.autocommits()

    async def autocommits(self) -> bool:
        return _driver_autocommits(self._connection.sync_connection)

    async def end(self) -> None:
        if self._began:
            await self._connection.rollback()


class _AsyncSqlAlchemySession(_AsyncSqlAlchemy):
    async def autocommits(self) -> bool:
        return _driver_autocommits((await self._connection.connection()).sync_connection)


def _driver_autocommits(connection: Any) -> bool:
    """Whether SQLAlchemy's driver does, whoever told it to: the engine, its options or the connection's."""
    return bool(connection.connection.dbapi_connection.autocommit)


class _Django:
    def __init__(self, connection: Any) -> None:
        if connection.vendor != "postgresql":
            raise InvalidInputError(
                f"the Django connection {connection.alias!r} is to {connection.vendor}, not to PostgreSQL: "
                "hand over another, "
                "as django.db.connections['name']"
            )
        self._connection = connection

    def text(self, statement: str, *params: Param) -> str | None:
        with self._connection.cursor() as cursor:
            cursor.execute(_with_percent_s(statement), list(params))
            return _only(cursor.fetchone())

    def run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _driver(self) -> SyncLink:
        self._connection.ensure_connection()
        return link(self._connection.connection)  # type: ignore[return-value]

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block) or self._driver().is_in_transaction()

    def autocommits(self) -> bool:
        return not self._connection.in_atomic_block and self._driver().autocommits()

    def end(self) -> None:
        if not self._connection.in_atomic_block and not self._connection.get_autocommit():
            self._connection.rollback()


def _only(row: Any) -> str | None:
    return None if row is None else _as_text(row[0])


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


_KNOWN: tuple[tuple[str, str, Callable[[Any], SyncLink | AsyncLink]], ...] = (
    ("psycopg", "Connection", _Psycopg),
    ("psycopg", "AsyncConnection", _AsyncPsycopg),
    ("psycopg2.extensions", "connection", _Psycopg2),
    ("asyncpg", "Connection", _Asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _Asyncpg),
    ("asyncpg.pool", "Pool", _AsyncpgPool),
    ("sqlalchemy", "Connection", _SqlAlchemy),
    ("sqlalchemy.orm", "Session", _SqlAlchemySession),
    ("sqlalchemy.orm", "scoped_session", _SqlAlchemySession),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _AsyncSqlAlchemy),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _AsyncSqlAlchemySession),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _AsyncSqlAlchemySession),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _Django),
    ("django.utils.connection", "ConnectionProxy", _Django),
    ("duly.queue.database", "Database", _OwnDatabase),
    ("duly.queue.database", "Session", _OwnSession),
)
