"""What keeps the queue turning: promote, rescue, new days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from duly.queue.database import Executor
from duly.queue.segments import LiveSegments


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many jobs became ready, and how long the promoter may sleep (0: there is more)."""

    count: int
    sleep: timedelta


@dataclass(frozen=True, slots=True)
class Rescued:
    """One lease that ended without a settle, and where its job went."""

    job_id: UUID
    attempt: int
    worker_id: int
    outcome: Literal["worker_lost", "timeout"]
    way: Literal["scheduled", "dead", "cancelled"]


async def promote(
    db: Executor, limit: int, *, sweep: bool = False, at_most: timedelta = timedelta(seconds=1)
) -> Promoted:
    """scheduled → ready for up to `limit` due jobs of the last minute; with `sweep`, of all the past.

    The caller is expected to come back after `sleep`, `at_most` from now: whoever schedules something earlier wakes it.
    """
    row = await db.fetchrow(
        "select promoted, sleep_seconds from duly.promote($1, $2, $3)", limit, sweep, at_most.total_seconds()
    )
    assert row is not None  # a function with out parameters returns one row
    return Promoted(row["promoted"], timedelta(seconds=row["sleep_seconds"]))


async def rescue(db: Executor, segments: LiveSegments, limit: int, watched: timedelta | None = None) -> list[Rescued]:
    """running → scheduled | dead | cancelled for leases whose time has passed; call again while it returns `limit`.

    `watched`: for how long the database has answered without a break (None: long). Shorter than a worker's lease, that
    worker may not have had the chance to renew, and keeps what it holds.
    """
    rows = await db.fetch(
        "select job_id, attempt, worker_id, outcome, way from duly.rescue($1, $2, $3, $4)",
        segments.closed,
        segments.upwards_from,
        limit,
        None if watched is None else watched.total_seconds(),
    )
    return [Rescued(r["job_id"], r["attempt"], r["worker_id"], r["outcome"], r["way"]) for r in rows]


async def sweep_keys(db: Executor, after: tuple[int, str], limit: int) -> tuple[int, str] | None:
    """Forget unique keys that no job holds, among the next `limit` after a place (project, key). Returns the place to
    go on from, None at the end; the first place is (0, "").
    """
    row = await db.fetchrow("select p_project, p_key from duly.sweep_keys($1, $2, $3)", *after, limit)
    return None if row is None or row["p_project"] is None else (row["p_project"], row["p_key"])


async def end_unread_claims(db: Executor, after: timedelta) -> int:
    """End claims whose client has not read the answer for that long and has given up; returns how many."""
    ended: int = await db.fetchval("select duly.end_unread_claims($1)", after.total_seconds())
    return ended


async def add_days(db: Executor, ahead: int) -> int:
    """Make the day partitions of the facts up to `ahead` days from now; returns how many were made."""
    made: int = await db.fetchval("select duly.add_days($1)", ahead)
    return made
