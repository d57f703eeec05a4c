"""Saying something again, but not each time: one line when it begins, then one every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable

REMIND_EVERY_S = 30.0


class Reminder:
    """Remembers when each thing was said last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def is_due(self, what: str) -> bool:
        """Whether it is time to say this; whoever asks says it then."""
        now = self._clock()
        if now - self._told.get(what, -REMIND_EVERY_S) < REMIND_EVERY_S:
            return False
        self._told[what] = now
        return True
