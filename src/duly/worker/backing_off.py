"""Waiting longer after each failure, so that a database in trouble is not hammered."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(slots=True)
class Pause:
    """Delays that double from `shortest` to `longest`, each spread by ±50 %, so that a hundred workers whom one outage
    stopped do not come back as one; `reset` after a success.
    """

    shortest: timedelta
    longest: timedelta
    _next_s: float = 0.0

    def next_s(self) -> float:
        """How long to wait now, in seconds."""
        self._next_s = min(max(self._next_s * 2, self.shortest.total_seconds()), self.longest.total_seconds())
        return self._next_s * random.uniform(0.5, 1.5)

    def reset(self) -> None:
        self._next_s = 0.0


def database_pause() -> Pause:
    """For a database that is away or too slow: 0.1 s to 4 s."""
    return Pause(timedelta(milliseconds=100), timedelta(seconds=4))
