"""A clock for a test database: what is due, how old a job is and when a retry comes are decided by the database's
time, so that is what moves. For test databases only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from unittest import mock

import asyncpg

from duly.model.errors import InvalidInputError
from duly.model.ids import uuid7

_INSTALL = """
    create schema if not exists duly_testing;
    create sequence if not exists duly_testing.ahead_ms minvalue 0 start 0;
    select setval('duly_testing.ahead_ms', 0);
    create or replace function duly_testing.ahead() returns interval language sql volatile as
        'select make_interval(secs => last_value / 1000.0) from duly_testing.ahead_ms';
    create or replace function duly_testing.clock_timestamp() returns timestamptz language sql volatile as
        'select pg_catalog.clock_timestamp() + duly_testing.ahead()';
    create or replace function duly_testing.now() returns timestamptz language sql stable as
        'select pg_catalog.now() + duly_testing.ahead()';
"""


class Clock:
    """The time of one database, which can be moved forward while no worker runs on it (a running one would lose its
    lease).

    Enter it before other connections are opened: they see its time, those that are open already do not. New job ids
    are of its time too. Leaving puts things back for connections to come.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ahead = timedelta(0)
        self._ids: Any = None

    def __enter__(self) -> Self:
        _run(self._install())
        self._ids = mock.patch("duly.tasks.enqueueing.uuid7", self._new_id)
        self._ids.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ids.stop()
        with suppress(asyncpg.PostgresError, OSError):
            _run(self._statement("reset"))

    def advance(self, by: timedelta) -> datetime:
        """Move it forward; what the database's time is now."""
        if by < timedelta(0):
            raise InvalidInputError("a clock is moved forward only: give a positive timedelta")
        self._ahead += by
        now: datetime = _run(self._moved())
        return now

    def _new_id(self) -> Any:
        return uuid7(time.time_ns() // 1_000_000 + self._ahead // timedelta(milliseconds=1))

    async def _install(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(_INSTALL)
        finally:
            await connection.close()
        await self._statement('set search_path = duly_testing, pg_catalog, "$user", public')

    async def _statement(self, what: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            name = await connection.fetchval("select quote_ident(current_database())")
            await connection.execute(f"alter database {name} {what if what != 'reset' else 'reset search_path'}")
        finally:
            await connection.close()

    async def _moved(self) -> datetime:
        connection = await asyncpg.connect(self._dsn)
        try:
            ahead_ms = self._ahead // timedelta(milliseconds=1)
            await connection.execute("select setval('duly_testing.ahead_ms', $1::bigint)", ahead_ms)
            now: datetime = await connection.fetchval("select duly_testing.clock_timestamp()")
            return now
        finally:
            await connection.close()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """To its end, in a thread of its own: a loop may be running in this one."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(coroutine))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="duly-testing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]
