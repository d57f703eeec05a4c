"""Saying something again, but not each time: one line when it begins, then one every half minute."""

from __future__ import annotations

from collections.abc import Callable, Hashable

REMIND_EVERY_S = 30.0


class Reminder:
    """Remembers when each thing was said last, by a monotonic clock in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[Hashable, float] = {}

    def is_due(self, what: Hashable) -> bool:
        """Whether it is time to say this; whoever asks says it then."""
        now = self._clock()
        if now - self._told.get(what, -REMIND_EVERY_S) < REMIND_EVERY_S:
            return False
        self._told[what] = now
        return True
