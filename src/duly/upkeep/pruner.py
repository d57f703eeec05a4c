"""Finished jobs that are old enough go: a whole day by DROP, or 1,000 rows at a time, each batch committed alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal
from uuid import UUID

from duly import queue
from duly.model.retention import Retention
from duly.queue.database import Database

_BATCH = 1000
_LOOK = 20_000
_BREATH = timedelta(milliseconds=50)  # between two batches: live work goes first
_AGAIN = timedelta(minutes=1)  # after somebody was in the way
_EVERY = timedelta(hours=1)
_TRIES = 60  # to drop a day that was looked at, before it is looked at again


@dataclass(slots=True)
class _Walk:
    """One day: look through it for something to keep; delete in it if there is, drop it if not."""

    day: date
    began_at: datetime
    doing: Literal["look", "delete", "drop", "forget"] = "look"
    after: UUID | None = None
    next_at: datetime | None = None
    refused: int = 0


class Pruner:
    """One `step` looks at a part of a day, deletes a batch or drops a day, and says how long to wait until the next.

    Where it is, and when a day that it has walked will have something to prune again, is kept in memory only: a new
    process walks every day once. Pruners beside each other take turns.
    """

    def __init__(
        self, db: Database, retention: Retention | None = None, *, batch: int = _BATCH, look: int = _LOOK
    ) -> None:
        self._db = db
        self._retention = retention or Retention()
        self._batch = batch
        self._look = look
        self._walks: deque[_Walk] = deque()
        self._not_before: dict[date, datetime] = {}
        self.pruned_total = 0
        self.dropped_total = 0

    async def step(self) -> timedelta:
        """One short piece of work; returns the delay until the next."""
        if not self._walks:
            await self._find_days()
        if not self._walks:
            return _EVERY
        walk = self._walks[0]
        match walk.doing:
            case "look":
                return await self._look_on(walk)
            case "delete":
                return await self._delete(walk)
            case "drop":
                return await self._drop(walk)
            case "forget":  # pragma: no branch (the last thing to do)
                return await self._forget(walk)

    async def _find_days(self) -> None:
        now = await queue.server_now(self._db)
        days = await queue.prunable_days(self._db, self._retention)
        self._not_before = {day: when for day, when in self._not_before.items() if day in days}
        self._walks.extend(_Walk(day, now) for day in days if self._not_before.get(day, now) <= now)

    async def _look_on(self, walk: _Walk) -> timedelta:
        if walk.after is None:
            walk.began_at = await queue.server_now(self._db)
        needed, walk.after = await queue.look_at_day(self._db, walk.day, walk.after, self._look, self._retention)
        if needed:
            walk.doing, walk.after = "delete", None
        elif walk.after is None:
            walk.doing = "drop"
        return _BREATH

    async def _delete(self, walk: _Walk) -> timedelta:
        pruned = await queue.prune_day(self._db, walk.day, walk.after, self._batch, self._retention)
        if pruned.busy:
            return _AGAIN
        self.pruned_total += pruned.count
        walk.after = pruned.last
        walk.next_at = min(filter(None, (walk.next_at, pruned.next_at)), default=None)
        if walk.after is not None:
            return _BREATH
        # what has not ended yet is looked for once a day: it is kept for a while when it has
        tomorrow = walk.began_at + timedelta(days=1)
        self._not_before[walk.day] = min(walk.next_at or tomorrow, tomorrow)
        return self._done()

    async def _drop(self, walk: _Walk) -> timedelta:
        if not await queue.drop_day(self._db, walk.day, walk.began_at):
            walk.refused += 1
            if walk.refused % _TRIES == 0:  # it may not be the locks: something of the day goes on again
                walk.doing = "look"
            self._walks.rotate(-1)
            return _AGAIN
        self.dropped_total += 1
        walk.doing = "forget"
        return _BREATH

    async def _forget(self, walk: _Walk) -> timedelta:
        if await queue.forget_redrives(self._db, walk.day, self._batch) == self._batch:
            return _BREATH
        return self._done()

    def _done(self) -> timedelta:
        self._walks.popleft()
        return _BREATH if self._walks else _EVERY
