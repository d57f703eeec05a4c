"""scheduled → ready at the right moment: sleeps exactly until the next job is due, at most a second."""

from __future__ import annotations

import time
from datetime import timedelta

from duly import queue
from duly.queue.database import Database

_BATCH = 1000
_AT_MOST = timedelta(seconds=1)
_SWEEP_EVERY_S = 60.0


class Promoter:
    """One `step` promotes what is due and says how long to sleep."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._swept_at = -_SWEEP_EVERY_S
        self.promoted_total = 0

    async def step(self) -> timedelta:
        """Promote one batch; returns the delay until the next step (0: there was more)."""
        now = time.monotonic()
        sweep = now - self._swept_at >= _SWEEP_EVERY_S
        promoted = await queue.promote(self._db, _BATCH, sweep=sweep, at_most=_AT_MOST)
        self.promoted_total += promoted.count
        if sweep and promoted.count < _BATCH:
            self._swept_at = now
        return promoted.sleep
