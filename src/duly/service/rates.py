"""How many calls of the API an account may make: a bucket of tokens for each, in the memory of this process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """What an account's bucket says to one call.

    `quota` calls fit in a window of `window_s` seconds; `remaining` are left now; after `reset_s` all of them are.
    `retry_after_s`: for a call that is refused, when there is one; 0 for one that may go on.
    """

    quota: int
    window_s: float
    remaining: int
    reset_s: float
    retry_after_s: float

    @property
    def refused(self) -> bool:
        return self.retry_after_s > 0


class Rates:
    """Exact for this process: in any t seconds an account makes `quota` + rate × t calls at most.

    Keyed by account alone: nothing that a client says of itself (X-Forwarded-For) opens a bucket of its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[int, float] = OrderedDict()  # an account's bucket is full again then

    def take(self, account_id: int, per_second: float) -> Rate:
        """Count one call. One that is refused does not count."""
        now = self._clock()
        quota = max(1, math.floor(per_second))
        window_s = quota / per_second
        full_at = min(max(now, self._full_at.get(account_id, now)), now + window_s)  # the rate may have been another
        self._full_at[account_id] = full_at
        self._full_at.move_to_end(account_id)
        tokens = quota - (full_at - now) * per_second
        if tokens < 1 - 1e-9:
            return Rate(quota, window_s, 0, full_at - now, (1 - tokens) / per_second)
        full_at += 1 / per_second
        self._full_at[account_id] = full_at
        self._forget(now)
        return Rate(quota, window_s, math.floor(tokens - 1 + 1e-9), full_at - now, 0)

    def _forget(self, now: float) -> None:
        """A full bucket is like none. Two at a time, so that there are never many more than are in use."""
        for _ in range(2):
            account_id, full_at = next(iter(self._full_at.items()))
            if full_at > now:
                return
            del self._full_at[account_id]
