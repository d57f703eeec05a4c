"""Retention: what is finished and old enough goes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from duly.model.retention import Retention
from duly.queue.database import Executor


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch did.

    `count`: how many jobs were deleted. `last`: where the next batch goes on; None at the day's end. `next_at`: when
    the first of those that were kept will be old enough; None if none will. `busy`: somebody else prunes just now.
    """

    count: int
    last: UUID | None
    next_at: datetime | None
    busy: bool


async def prunable_days(db: Executor, retention: Retention) -> list[date]:
    """The days, oldest first, of which all is old enough to be looked at."""
    rows = await db.fetch("select duly.prunable_days($1, $2) as day", retention.keep, retention.keep_dead)
    return [row["day"] for row in rows]


async def look_at_day(
    db: Executor, day: date, after: UUID | None, limit: int, retention: Retention
) -> tuple[bool, UUID | None]:
    """Whether one of the next `limit` finished jobs of the day, or one that has not ended, is to be kept; and where to
    look on, None at the day's end.
    """
    row = await db.fetchrow(
        "select needed, last from duly.look_at_day($1, $2, $3, $4, $5)",
        *(day, after, limit, retention.keep, retention.keep_dead),
    )
    assert row is not None  # a function with out parameters returns one row
    return row["needed"], row["last"]


async def drop_day(db: Executor, day: date, looked_at: datetime) -> bool:
    """Drop a day of which nothing is to be kept, as a look that began at `looked_at` (the database's clock) found.

    False: its tables are in use just now, or something of it goes on again: look again later.
    """
    dropped: bool = await db.fetchval("select duly.drop_day($1, $2)", day, looked_at)
    return dropped


async def forget_redrives(db: Executor, day: date, limit: int) -> int:
    """Delete the redrives of a day that was dropped; returns how many, call again while that is `limit`."""
    gone: int = await db.fetchval("select duly.forget_redrives($1, $2)", day, limit)
    return gone


async def prune_day(db: Executor, day: date, after: UUID | None, limit: int, retention: Retention) -> Pruned:
    """Look at the next `limit` finished jobs of a day and delete those that are old enough."""
    row = await db.fetchrow(
        "select pruned, last, next_at, busy from duly.prune_day($1, $2, $3, $4, $5)",
        *(day, after, limit, retention.keep, retention.keep_dead),
    )
    assert row is not None  # a function with out parameters returns one row
    return Pruned(row["pruned"], row["last"], row["next_at"], row["busy"])
