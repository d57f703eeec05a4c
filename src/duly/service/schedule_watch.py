"""Whether schedules fire: asked often, looked up seldom, since the look reads all of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import asyncpg

from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, schedule_health

LOOK_EVERY_S = 15.0


class ScheduleWatch:
    """Remembers what it saw for a while; one per process."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._looked_at_s = -LOOK_EVERY_S
        self._findings: list[str] = []

    async def findings(self) -> list[str]:
        """What is wrong with the schedules as a whole, in sentences without numbers or names; empty if nothing is.

        What cannot be looked up is as it was.
        """
        now_s = self._clock()
        if now_s - self._looked_at_s < LOOK_EVERY_S:
            return self._findings
        self._looked_at_s = now_s
        try:
            seen = await schedule_health(self._db)
        except (DatabaseUnavailableError, asyncpg.PostgresError):
            return self._findings
        self._findings = ["schedules should have fired and did not"] if seen.overdue else []
        return self._findings
