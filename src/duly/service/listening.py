"""Events for listeners: one poll of the database per process while somebody listens, shared by all of them.

What was committed a while after it happened is still told: each poll looks a little behind where the last one ended.
A listener that does not keep up is cut, so that nobody's slowness costs memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta

import asyncpg

from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Event, events_between, server_now

log = logging.getLogger("duly.service")

EVERY_S = 1.0
BEHIND = timedelta(seconds=3)
"""How long after it happened something may be committed and is still told."""
BATCH = 5_000
ROOM = 2_000
"""Events that may wait for one listener."""


class Listener:
    """What one listener has still to be told. `cut`: it did not keep up, and is told nothing more."""

    def __init__(self, project_id: int) -> None:
        self.project_id = project_id
        self.events: asyncio.Queue[Event] = asyncio.Queue(ROOM)
        self.cut = False

    def tell(self, event: Event) -> None:
        """Put it in the queue, or cut the listener if there is no room."""
        if self.cut:
            return
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self.cut = True


class EventHub:
    """Hands each event to those who listen to its project, once, in the order of time of each poll."""

    def __init__(self, db: Database, *, every_s: float = EVERY_S) -> None:
        self._db = db
        self._every_s = every_s
        self._listeners: set[Listener] = set()
        self._polling: asyncio.Task[None] | None = None
        self._place: datetime | None = None  # told up to here, but for what is committed late
        self._told: dict[tuple[object, ...], datetime] = {}
        self.polls_total = 0

    @asynccontextmanager
    async def listening(self, project_id: int) -> AsyncIterator[Listener]:
        """Listen from now on."""
        listener = Listener(project_id)
        if self._polling is None:
            self._place = await server_now(self._db)
            self._told.clear()
        if self._polling is None:  # nobody else began meanwhile
            self._polling = asyncio.create_task(self._poll(), name="duly-events")
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                await self.close()

    async def past(self, project_id: int, since: datetime) -> list[Event]:
        """What happened from a little before a moment until now; BATCH at most, the oldest first."""
        return await events_between(self._db, [project_id], since - BEHIND, await server_now(self._db), BATCH)

    async def close(self) -> None:
        """Stop polling."""
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    async def _poll(self) -> None:
        while True:
            try:
                while await self._step():
                    pass
            except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
                log.warning("events cannot be read", extra={"error": str(error)})
            await asyncio.sleep(self._every_s)

    async def _step(self) -> bool:
        """One look; True if there is more at once."""
        by_project: dict[int, list[Listener]] = defaultdict(list)
        for listener in self._listeners:
            by_project[listener.project_id].append(listener)
        assert self._place is not None
        now = await server_now(self._db)
        events = await events_between(self._db, sorted(by_project), self._place - BEHIND, now, BATCH)
        self.polls_total += 1
        fresh = [event for event in events if key_of(event) not in self._told]
        for event in fresh:
            self._told[key_of(event)] = event.at
            for listener in by_project[event.project_id]:
                listener.tell(event)
        full = len(events) == BATCH
        self._place = max(self._place, events[-1].at) if full else now
        if full and not fresh:  # more in one window than a look can hold: go on behind it
            self._place = events[-1].at + BEHIND
        oldest = self._place - 2 * BEHIND
        self._told = {key: at for key, at in self._told.items() if at >= oldest}
        return full


def key_of(event: Event) -> tuple[object, ...]:
    """What makes an event the same one."""
    return (event.job_id, event.kind, event.number, event.at)
