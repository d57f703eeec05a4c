"""Segments: note who could still write to a closed one, carry survivors over, retire what is empty.

Segments open by themselves as rows come and go (`advance_after` in schema/functions/segments.sql). Who held the line's
table when a segment was first seen closed is kept in memory: noted later the set only grows, so a new process may
note afresh.
"""

from __future__ import annotations

from collections.abc import Iterable

from duly import queue
from duly.queue.database import Executor
from duly.queue.segments import Line

_MOVE_BELOW = 2000  # a closed segment with fewer rows than this may be carried over …
_CROWDED: dict[Line, int] = {"ready": 8, "lease": 16}  # … once there are more closed segments than this
_MOVE_BATCH = 500


class SegmentKeeper:
    """Keeps the segments of one line. `step` is safe beside other keepers of the same line."""

    def __init__(self, db: Executor, line: Line, *, crowded: int | None = None, move_below: int = _MOVE_BELOW) -> None:
        self._db = db
        self._line = line
        self._crowded = _CROWDED[line] if crowded is None else crowded
        self._move_below = move_below
        self._holders: dict[int, frozenset[str]] = {}
        self.closed = 0
        self.moved_total = 0
        self.retired_total = 0

    async def step(self) -> None:
        """One round over the closed segments, oldest first."""
        closed = (await queue.live_segments(self._db, self._line)).closed
        self._forget_all_but(closed)
        fresh = [segment for segment in closed if segment not in self._holders]
        if fresh:
            holders = await queue.segment_holders(self._db, self._line)
            self._holders.update((segment, holders) for segment in fresh)
        left = len(closed)
        for segment in closed:
            rows = await queue.segment_rows(self._db, self._line, segment, self._move_below)
            if 0 < rows < self._move_below and left > self._crowded:
                rows -= await self._carry_over(segment, rows)
            if rows <= 0 and await queue.retire(self._db, self._line, segment, sorted(self._holders[segment])):
                self.retired_total += 1
                left -= 1
        self.closed = left
        await queue.raise_floor(self._db, self._line)

    async def _carry_over(self, segment: int, rows: int) -> int:
        moved = 0
        for _ in range(rows // _MOVE_BATCH + 2):
            batch = await queue.move(self._db, self._line, segment, _MOVE_BATCH)
            moved += batch
            if batch < _MOVE_BATCH:
                break
        self.moved_total += moved
        return moved

    def _forget_all_but(self, closed: Iterable[int]) -> None:
        keep = set(closed)
        self._holders = {segment: who for segment, who in self._holders.items() if segment in keep}
