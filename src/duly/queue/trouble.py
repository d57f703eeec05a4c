"""An outage told in few lines: one when it begins, one every half minute while it lasts, one when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("duly.database")

REMIND_EVERY_S = 30.0


class Trouble:
    """What the loops of one process report of their database. They may be in several threads.

    It begins with the first part that fails and is over once every part that failed has succeeded. Two troubles within
    half a minute share their first line, so that a database that comes and goes does not fill the log either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._failures = 0
        self._since = 0.0
        self._warned_at: float | None = None
        self._told = False

    @property
    def failing(self) -> frozenset[str]:
        """The parts that failed and have not succeeded since."""
        with self._lock:
            return frozenset(self._failing)

    def failed(self, part: str, error: BaseException) -> None:
        """`part` did not get its work done and will try again."""
        with self._lock:
            now = self._clock()
            if not self._failing:
                self._since, self._failures = now, 0
            self._failing.add(part)
            self._failures += 1
            if self._warned_at is not None and now - self._warned_at < REMIND_EVERY_S:
                return
            fields: dict[str, object] = {"part": part, "error": str(error) or type(error).__name__}
            if self._told:
                fields |= {"seconds": round(now - self._since, 1), "failures": self._failures}
            log.warning("the database is %sin trouble, trying again", "still " if self._told else "", extra=fields)
            self._warned_at, self._told = now, True

    def fine(self, part: str) -> None:
        """`part` got its work done. Costs nothing while there is no trouble."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            if self._failing or not self._told:
                return
            self._told = False
            seconds = round(self._clock() - self._since, 1)
            log.warning("the database answers again", extra={"seconds": seconds, "failures": self._failures})
