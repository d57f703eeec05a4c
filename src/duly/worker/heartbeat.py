"""One heartbeat per process, in a thread and a loop of its own: job code that blocks its loop does not stop it.

It renews every quarter of the lease. When the last confirmed renewal is nearly a lease old by the monotonic clock, it
fences: the process must stop what it runs before others may start it. It also watches the main loop and reports the
stack that blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.queue.database import Database
from duly.queue.trouble import Trouble

log = logging.getLogger("duly.worker")

_BLOCKED_AFTER_S = 1.0
_CLOSE_LIMIT = timedelta(seconds=1)


class Heartbeat:
    """Renews worker `worker_id` until stopped; `registered_at` is the monotonic time before it asked to be registered.

    Callbacks run on the main loop:

    `on_fenced()`: renewal failed for too long; stop everything that runs. `on_unknown()`: the worker is not
    registered any more.
    `on_abort(attempts)`: these attempts were asked to stop. `on_failed(error)`: the heartbeat itself broke,
    and the process must end.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        worker_id: int,
        registered_at: float,
        lease: timedelta,
        trouble: Trouble,
        loop: asyncio.AbstractEventLoop,
        on_fenced: Callable[[], None],
        on_unknown: Callable[[], None],
        on_abort: Callable[[frozenset[tuple[UUID, int]]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self.worker_id = worker_id
        self._lease_s = lease.total_seconds()
        self._loop = loop
        self._trouble = trouble
        self._on_fenced = on_fenced
        self._on_unknown = on_unknown
        self._on_abort = on_abort
        self._on_failed = on_failed
        self._confirmed = registered_at
        self._fenced = False
        self._stop = threading.Event()
        self._ticked = time.monotonic()
        self._main_thread = threading.get_ident()
        self._blocked = False
        self._thread = threading.Thread(target=self._run, name="duly-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing; returns when the thread has ended (at most a few seconds)."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 5.0)

    @property
    def fenced(self) -> bool:
        """True while the lease may have run out."""
        return self._fenced

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        except BaseException as error:
            self._fenced = True
            self._call(self._on_failed, error)

    async def _beat(self) -> None:
        renewing = asyncio.create_task(self._renew_again_and_again())
        try:
            while not self._stop.is_set():  # never waits for the database: a fence must not come late
                now = time.monotonic()
                self._watch_loop(now)
                if not self._fenced and now >= self._confirmed + self._lease_s * 0.9:
                    self._fenced = True
                    log.warning("lease not renewed in time, stopping what runs", extra={"worker_id": self.worker_id})
                    self._call(self._on_fenced)
                if renewing.done():
                    renewing.result()
                await asyncio.sleep(min(0.1, self._lease_s / 16))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_again_and_again(self) -> None:
        interval_s = self._lease_s / 4
        db: Database | None = None
        try:
            while True:
                fresh = time.monotonic() < self._confirmed + interval_s
                wait_s = interval_s if fresh else min(interval_s, 1.0)
                await asyncio.sleep(wait_s * random.uniform(0.8, 1.0))  # workers that started together drift apart
                if db is None:
                    db = await self._connect()
                if db is not None:
                    await self._renew(db)
        finally:
            if db is not None:
                await db.close(_CLOSE_LIMIT)

    async def _connect(self) -> Database | None:
        try:
            async with asyncio.timeout(self._lease_s / 4):
                return await Database.open(
                    self._dsn, schema=self._schema, max_size=1, name="duly-heartbeat", trouble=self._trouble
                )
        except (DatabaseUnavailableError, asyncpg.PostgresError, TimeoutError) as error:
            self._trouble.failed("heartbeat", error)
            return None

    async def _renew(self, db: Database) -> None:
        sent = time.monotonic()  # counted from before the question: the database's lease is at least that long
        try:
            async with asyncio.timeout(self._lease_s / 4):
                renewal = await queue.heartbeat(db, self.worker_id)
        except (DatabaseUnavailableError, asyncpg.PostgresError, TimeoutError) as error:
            self._trouble.failed("heartbeat", error)
            return
        self._trouble.fine("heartbeat")
        if renewal is None:
            self._call(self._on_unknown)
            return
        self._confirmed = sent
        self._fenced = False
        if renewal.abort:
            self._call(self._on_abort, renewal.abort)

    def _watch_loop(self, now: float) -> None:
        if now - self._ticked > _BLOCKED_AFTER_S and not self._blocked:
            self._blocked = True
            frame = sys._current_frames().get(self._main_thread)
            stack = "".join(traceback.format_stack(frame)) if frame else "(unknown)"
            log.warning("job code blocks the event loop:\n%s", stack, extra={"worker_id": self.worker_id})
        self._call(self._tick)

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._blocked = False

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the main loop has ended
            self._stop.set()
