"""What happened to jobs, read off the facts: nothing is written for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.queue.database import Executor

_EVENTS = """
    select project_id, at, kind, job_id, number, queue, state, reason, outcome, status_code, next_run_at
    from duly.events($1, $2, $3, $4)
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a job at a moment of the database's clock. `kind`: job.created, attempt.ended,
    job.succeeded, job.dead, job.cancelled; `number`: of the attempt, 0 for none.
    """

    project_id: int
    at: datetime
    kind: str
    job_id: UUID
    number: int
    queue: str
    state: str | None
    reason: str | None
    outcome: str | None
    status_code: int | None
    next_run_at: datetime | None


async def events_between(
    db: Executor, project_ids: Sequence[int], since: datetime, until: datetime, limit: int
) -> list[Event]:
    """Events of these projects from `since` until `until` (excluded), the oldest first, at most `limit`."""
    rows = await db.fetch(_EVENTS, list(project_ids), since, until, limit)
    return [Event(*row) for row in rows]
