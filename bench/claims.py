"""Claims, one after another, timed."""

from __future__ import annotations

import time
from datetime import timedelta

from bench.setting import NOOP, Place
from duly.model.jobs import NewJob
from duly.model.settlement import Settlement
from duly.queue import ClaimCursor, Database, LiveSegments, claim, enqueue, live_segments, register, settle

CLAIMED = 10
_SEGMENTS_EVERY_S = 1.0


class Claims:
    """One worker that claims ten jobs and settles them, again and again."""

    def __init__(self, db: Database, place: Place, worker_id: int) -> None:
        self._db = db
        self._place = place
        self._worker_id = worker_id
        self._cursor = ClaimCursor()
        self._segments: LiveSegments | None = None
        self._read_at_s = 0.0

    @classmethod
    async def on(cls, db: Database, place: Place) -> Claims:
        return cls(db, place, await register(db, "bench", [NOOP], None, CLAIMED, timedelta(hours=1)))

    async def measured(self, samples: int) -> list[float]:
        """Milliseconds of `samples` claims, as the caller sees them; the rest of the round is not timed."""
        took = []
        for _ in range(samples):
            await enqueue(self._db, [(self._place.owner, NewJob(NOOP, None)) for _ in range(CLAIMED)])
            segments = await self._live()
            began = time.perf_counter()
            jobs = await claim(self._db, self._worker_id, CLAIMED, [NOOP], None, self._cursor, segments)
            took.append((time.perf_counter() - began) * 1e3)
            refused = await settle(self._db, self._worker_id, [Settlement(j.id, j.attempt, "succeeded") for j in jobs])
            assert not refused, "a lease of the only worker was lost"
            assert jobs, "nothing was claimed"
        return took

    async def _live(self) -> LiveSegments:
        now_s = time.monotonic()
        if self._segments is None or now_s - self._read_at_s > _SEGMENTS_EVERY_S:
            self._segments = await live_segments(self._db, "ready")
            self._read_at_s = now_s
        return self._segments
