"""The figures that pages show, asked for once for all tabs: at most every two seconds, and never for longer than a
tenth of the time.

A page waits for them a little and is rendered without those that take longer; the next look finds them. What failed is
shown as it was last known, and marked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Executor, Owner, WorkerView, list_workers, overview
from duly.queue.breaker import OpenBreaker, list_breakers
from duly.queue.overview import Backlog, DeadLetters, InUse, Recent, RunningJob, Sizes

log = logging.getLogger("duly.dashboard")

FRESH_S = 2.0
SHARE = 10
"""A question that took a second is asked every ten seconds at most."""
PATIENCE_S = 0.4
LIMIT = timedelta(seconds=3)
AT_ONCE = 2
LOOKED_AT = 2_000
LOOKED_AT_FOR_ONE = 10_000
KEPT = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure(Generic[T]):
    """What is known. `value` None: nothing yet. `trouble`: why it is not of this moment."""

    value: T | None
    trouble: str | None = None


@dataclass(slots=True)
class _Entry:
    figure: Figure[Any] = field(default_factory=lambda: Figure(None, "being looked up"))
    good_until_s: float = 0.0
    looking: asyncio.Task[None] | None = None


class Figures:
    """One per dashboard. Each question is asked once at a time, two of them at once; `patience_s`: how long one who
    looks waits for an answer.
    """

    def __init__(
        self, db: Database, clock: Callable[[], float] = time.monotonic, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._db = db
        self._clock = clock
        self._patience_s = patience_s
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def recent(self, owner: Owner | None) -> Figure[Recent]:
        return await self._get(("recent", owner), lambda db: overview.recent(db, owner))

    async def backlog(self, owner: Owner | None) -> Figure[list[Backlog]]:
        return await self._get(("backlog", owner), lambda db: overview.backlog(db, owner))

    async def in_use(self, owner: Owner | None) -> Figure[list[InUse]]:
        return await self._get(("in use", owner), lambda db: overview.in_use(db, owner))

    async def running(self, owner: Owner | None) -> Figure[list[RunningJob]]:
        return await self._get(("running", owner), lambda db: overview.running_jobs(db, owner))

    async def dead(self, owner: Owner | None) -> Figure[DeadLetters]:
        """Those of a project are looked for among more: they lie between everybody's."""
        look = LOOKED_AT if owner is None else LOOKED_AT_FOR_ONE
        return await self._get(("dead", owner), lambda db: overview.dead_letters(db, owner, look=look))

    async def sizes(self) -> Figure[Sizes]:
        return await self._get(("sizes",), overview.sizes)

    async def workers(self) -> Figure[list[WorkerView]]:
        return await self._get(("workers",), list_workers)

    async def breakers(self, owner: Owner | None) -> Figure[list[OpenBreaker]]:
        account_id = None if owner is None else owner.account_id
        return await self._get(("breakers", account_id), lambda db: list_breakers(db, account_id))

    def forget(self, owner: Owner | None) -> None:
        """Something was changed: the next look at what is dead and what waits is a new one."""
        for key in ("dead", owner), ("backlog", owner), ("dead", None), ("backlog", None):
            if key in self._entries:
                self._entries[key].good_until_s = 0.0

    async def _get(self, key: Hashable, ask: Callable[[Executor], Awaitable[T]]) -> Figure[T]:
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if entry.looking is None and self._clock() >= entry.good_until_s:
            entry.looking = asyncio.create_task(self._look(entry, ask))
        if entry.looking is not None:
            await asyncio.wait({entry.looking}, timeout=self._patience_s)
        self._drop_oldest()
        return cast("Figure[T]", entry.figure)

    async def _look(self, entry: _Entry, ask: Callable[[Executor], Awaitable[Any]]) -> None:
        began_s = self._clock()
        try:
            async with self._room:
                began_s = self._clock()
                async with overview.quick(self._db, LIMIT) as db:
                    entry.figure = Figure(await ask(db))
        except (DatabaseUnavailableError, TimeoutError):
            entry.figure = Figure(entry.figure.value, "the database did not answer in time")
        except Exception:
            log.exception("figures of the dashboard cannot be read")
            entry.figure = Figure(entry.figure.value, "they cannot be read; the log says why")
        finally:
            now_s = self._clock()
            entry.good_until_s = now_s + max(FRESH_S, SHARE * (now_s - began_s))
            entry.looking = None

    def _drop_oldest(self) -> None:
        idle = [key for key, entry in self._entries.items() if entry.looking is None]
        for key in idle[: max(len(self._entries) - KEPT, 0)]:
            del self._entries[key]
