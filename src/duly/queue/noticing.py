"""What notices look at: who died lately and why, which schedules are silent, how much of a quota is taken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from duly.queue.database import Executor
from duly.queue.schedules import OVERDUE_AFTER

_DEATHS = """
    select d.project_id, d.host, d.reason, d.outcome, d.status_code, d.dead, d.since
    from duly.recent_deaths($1, $2, clock_timestamp() - $3::interval, $4) d
"""
_SILENT = """
    select s.schedule_id, s.project_id, s.name, s.state, s.due_at, s.why from duly.silent_schedules($1, $2, $3, $4) s
"""
_QUOTAS = """
    select count(*) as limited, count(*) filter (where q.share >= 0.8) as near,
           count(*) filter (where q.share >= 1) as met, coalesce(max(q.share), 0)::float8 as highest
    from (select duly.quota_taken(l.id) / l.quota as share
          from (select a.id, ((coalesce(p.limits, '{}') || a.limits) ->> 'monthly_quota')::float8 as quota
                from duly.account a left join duly.plan p on p.name = a.plan
                where a.deleted_at is null and (coalesce(p.limits, '{}') || a.limits) ->> 'monthly_quota' <> '0'
                order by a.id limit $1) l) q
"""


@dataclass(frozen=True, slots=True)
class QuotaShares:
    """How many accounts have a monthly quota, of how many 80 percent are used (`near`), or all of it (`met`); and the
    `highest` share of one that is used.
    """

    limited: int
    near: int
    met: int
    highest: float


@dataclass(frozen=True, slots=True)
class Deaths:
    """Dead letters of one project that died in the same way. `since`: when the first of them did. `outcome`: of the
    last attempt, None if none ran.
    """

    project_id: int
    host: str | None
    reason: str | None
    outcome: str | None
    status_code: int | None
    dead: int
    since: datetime


@dataclass(frozen=True, slots=True)
class SilentSchedule:
    """A schedule that does not fire. `state`: "parked", with the reason; or "active": it should have fired `due_at`."""

    schedule_id: UUID
    project_id: int
    name: str | None
    state: str
    due_at: datetime | None
    why: str | None


async def recent_deaths(
    db: Executor, account_id: int | None, project_id: int | None, window: timedelta, look: int
) -> list[Deaths]:
    """The dead letters of the last `window` of an account, one of its projects or everybody, the largest group first.
    The newest `look` are looked at; deliveries of notices are not told of.
    """
    return [Deaths(**dict(row)) for row in await db.fetch(_DEATHS, account_id, project_id, window, look)]


async def silent_schedules(
    db: Executor, account_id: int | None, project_id: int | None, limit: int
) -> list[SilentSchedule]:
    """The schedules of an account, one of its projects or everybody that are parked or overdue, by id."""
    rows = await db.fetch(_SILENT, account_id, project_id, OVERDUE_AFTER.total_seconds(), limit)
    return [SilentSchedule(**dict(row)) for row in rows]


async def quota_taken(db: Executor, account_id: int) -> int:
    """How many jobs of this month's quota are created, or held for it by processes of the API."""
    taken: int = await db.fetchval("select duly.quota_taken($1)", account_id)
    return taken


async def quota_shares(db: Executor, at_most: int) -> QuotaShares:
    """How much of their monthly quotas accounts have used; `at_most` so many accounts are looked at, the oldest."""
    row = await db.fetchrow(_QUOTAS, at_most)
    assert row is not None  # an aggregate
    return QuotaShares(**dict(row))
