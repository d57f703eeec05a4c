"""What an account uses and what is left to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duly.queue import Executor, account_usage
from duly.service.plans import AccountLimits

COUNTED_TO = 10_000
"""Backlogs are counted so far: the answer costs the same however long they are."""


@dataclass(frozen=True, slots=True)
class Usage:
    """An account at one moment.

    `due_backlog`, `stored`: counted to COUNTED_TO; that number means so many or more. `oldest_due_age_s`: how long the
    first at the head of a lane has been due, None if nothing waits. `quota_used`, `quota_left`: None without a quota,
    since nothing is counted then.
    """

    slots_in_use: int
    due_backlog: int
    oldest_due_age_s: float | None
    stored: int
    quota_used: int | None
    quota_left: int | None
    quota_resets_at: datetime
    limits: AccountLimits


async def read_usage(db: Executor, account_id: int, limits: AccountLimits, held: int = 0) -> Usage:
    """Read it. `held`: what the asking process holds of the quota and has not used."""
    now = await account_usage(db, account_id, COUNTED_TO)
    used = max(0, now.quota_taken - held)
    age_s = None if now.oldest_due_at is None else max(0.0, (now.asked_at - now.oldest_due_at).total_seconds())
    return Usage(
        now.slots_in_use,
        now.due,
        age_s,
        now.stored,
        None if limits.monthly_quota is None else used,
        None if limits.monthly_quota is None else max(0, limits.monthly_quota - used),
        now.quota_resets_at,
        limits,
    )
