"""Which part of a worker's slots one account may hold: never all of them."""

from __future__ import annotations

from collections.abc import Mapping

from duly.queue import Shares

PARTS = 4
LEAST_SLOTS = 16


def shares(slots: int, running: int, by_account: Mapping[int, int], wanted: int) -> Shares:
    """How many jobs a claim of `wanted` may take of each account.

    An account may run 4 times as many jobs as it leaves slots free of running ones: alone 4 of 5 slots, and a second
    one whose jobs hang, too, 4 of 5 of what that leaves. So there is room for an account that has nothing running. The
    last slot is for such a one only. A worker of fewer than 16 slots does not share: to leave some free would cost it
    too much.
    """
    if slots < LEAST_SLOTS:
        return Shares()
    free = slots - running
    cap = max(1, _more(free, 0))
    capped = {account: more for account, held in by_account.items() if (more := _more(free, held)) < min(cap, wanted)}
    return Shares(cap if cap < wanted else None, capped)


def _more(free: int, held: int) -> int:
    """The largest m with held + m ≤ 4 × (free − m)."""
    return max(0, (PARTS * free - held) // (PARTS + 1))
