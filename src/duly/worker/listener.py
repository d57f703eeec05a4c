"""Wake-ups: one LISTEN connection per process, and whoever wants to know.

A hint may be lost, so everything works by polling alone; each new connection is followed by one wake-up to catch up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import asyncpg

from duly.queue.database import CONNECT_LIMIT, server_settings
from duly.queue.trouble import Trouble
from duly.schema.naming import DEFAULT_SCHEMA, named
from duly.worker.backing_off import database_pause
from duly.worker.waiting import first_of

_PROBE_EVERY = timedelta(seconds=10)
_ANSWER_LIMIT = timedelta(seconds=5)
_AWAY = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # asked after the server's last error and before the end of the connection
    OSError,
    TimeoutError,
)


class Wakeups:
    """Listens on the schema's channel and sets every subscribed event when work came in."""

    def __init__(self, dsn: str, schema: str = DEFAULT_SCHEMA, trouble: Trouble | None = None) -> None:
        self._dsn = dsn
        self._trouble = trouble or Trouble()
        self._channel = named("duly.wake", schema)
        self._events: list[asyncio.Event] = []

    def subscribe(self) -> asyncio.Event:
        """An event that is set at each wake-up; its owner clears it."""
        event = asyncio.Event()
        self._events.append(event)
        return event

    def ring(self) -> None:
        """Wake everybody in this process."""
        for event in self._events:
            event.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Listen until `stopping`; reconnect when the connection is lost or no longer answers, each time after a pause
        that grows unless the last connection stood for a while.
        """
        pause = database_pause()
        while not stopping.is_set():
            try:
                await self._listen(stopping, pause.reset)
            except _AWAY as error:
                self._trouble.failed("listen", error)
            await first_of(stopping, limit_s=pause.next_s())

    async def _listen(self, stopping: asyncio.Event, on_proven: Callable[[], None]) -> None:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_LIMIT.total_seconds(),
            command_timeout=_ANSWER_LIMIT.total_seconds(),
            server_settings=server_settings("duly-listener"),
        )
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(self._channel, lambda *_: self.ring())
            self._trouble.fine("listen")
            self.ring()
            while True:
                await first_of(stopping, gone, limit_s=_PROBE_EVERY.total_seconds())
                if stopping.is_set():
                    return
                if gone.is_set():
                    raise ConnectionResetError("the server closed the wake-up connection")
                await connection.execute("select 1")  # a dead link says nothing by itself
                on_proven()
        finally:
            connection.terminate()
