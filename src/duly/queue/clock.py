"""The database's time, told without asking it each time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import asyncpg

from duly.model.errors import DatabaseUnavailableError
from duly.queue.database import Executor
from duly.queue.inspect import server_now

LOOK_EVERY = timedelta(seconds=30)


class DatabaseClock:
    """The database's clock as last looked at, carried on by this machine's monotonic one, which nobody sets.

    A machine's wall clock may be wrong, or be set while we run: what we sign, make ids of and compare dates with is
    right all the same, to half of the time that the question took. Until the first answer it is the machine's.
    """

    def __init__(self, db: Executor, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._monotonic = monotonic
        self._seen: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        """The time, in UTC."""
        if self._seen is None:
            return datetime.now(UTC)
        then, at_s = self._seen
        return then + timedelta(seconds=self._monotonic() - at_s)

    async def look(self) -> None:
        """Look once; if the database does not answer, go on as before."""
        with suppress(DatabaseUnavailableError, asyncpg.PostgresError):
            await self.step()

    async def step(self) -> timedelta:
        """Look at the database's clock; for a loop. Raises what the question raises."""
        asked_s = self._monotonic()
        then = await server_now(self._db)
        self._seen = then, (asked_s + self._monotonic()) / 2
        return LOOK_EVERY * random.uniform(0.75, 1.25)
