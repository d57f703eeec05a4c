"""What an account has in the queue, and what it has taken of its monthly quota: counted, never kept in a counter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from duly.queue.database import Executor

_USAGE = """
    select slots_in_use, due, oldest_due_at, stored, quota_taken, quota_resets_at, asked_at
    from duly.usage($1, $2)
"""


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """An account at one moment.

    `due`: jobs that wait for a slot; `stored`: jobs that have not ended; both counted up to a bound. `oldest_due_at`:
    when the first of those at the head of a lane became due; None if none waits. `quota_taken`: jobs created this
    month, and what API processes hold for the next ones.
    """

    slots_in_use: int
    due: int
    oldest_due_at: datetime | None
    stored: int
    quota_taken: int
    quota_resets_at: datetime
    asked_at: datetime


class QuotaTaken(NamedTuple):
    """What a process got of a quota: `taken` jobs, none if there is not enough; what `remains` for others; the seconds
    until the month ends.
    """

    taken: int
    remains: int
    ends_in_s: float


async def account_usage(db: Executor, account_id: int, at_most: int) -> AccountUsage:
    """What an account uses now; backlogs are counted no further than `at_most`."""
    row = await db.fetchrow(_USAGE, account_id, at_most)
    assert row is not None  # a function with out parameters returns one row
    return AccountUsage(**dict(row))


async def stored_jobs(db: Executor, account_id: int, at_most: int) -> int:
    """How many jobs of an account have not ended, counted no further than `at_most`."""
    stored: int = await db.fetchval("select duly.stored($1, $2)", account_id, at_most)
    return stored


async def project_has_jobs(db: Executor, account_id: int, project_id: int) -> bool:
    """Whether a job of the project has not ended."""
    has: bool = await db.fetchval("select duly.project_has_jobs($1, $2)", account_id, project_id)
    return has


async def take_quota(db: Executor, account_id: int, quota: int, wanted: int, block: int) -> QuotaTaken:
    """Take at least `wanted` jobs of this month's quota, up to a whole block if they are there; or none."""
    row = await db.fetchrow(
        "select taken, remains, ends_in from duly.take_quota($1, $2, $3, $4)", account_id, quota, wanted, block
    )
    assert row is not None  # a function with out parameters returns one row
    return QuotaTaken(row["taken"], row["remains"], row["ends_in"])


async def give_back_quota(db: Executor, account_id: int, size: int, ends_in_s: float) -> None:
    """Give back what was taken and not used; nothing happens if its month has ended (`ends_in_s` below zero)."""
    await db.execute("select duly.give_back_quota($1, $2, $3)", account_id, size, ends_in_s)


async def forget_quotas(db: Executor, limit: int) -> int:
    """Delete rows of months long ended; returns how many, call again while that is `limit`."""
    gone: int = await db.fetchval("select duly.forget_quotas($1)", limit)
    return gone


async def apply_limits(db: Executor, account_id: int) -> None:
    """Make an account's limits, as they are written down, those that claiming and pruning go by."""
    await db.execute("select duly.apply_limits($1)", account_id)


async def apply_plan(db: Executor, plan: str) -> None:
    """The same for every account of a plan."""
    await db.execute("select duly.apply_limits(null, $1)", plan)
