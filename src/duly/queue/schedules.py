"""Firing: which schedules are due, taking their fires, putting them off, parking them; and how all of them stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from duly.queue.database import Executor, Session

OVERDUE_AFTER = timedelta(minutes=1)
START_OF_FIRES = datetime.fromisoformat("0001-01-01T00:00:00+00:00")

_DUE = """
    select schedule_id, seen_at, revision, next_fire_at, since_at, made, waiting, busy
    from duly.due_schedules($1, $2, $3, $4)
"""
_TAKE = """
    select schedule_id, fire_at from duly.take_fires($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_HEALTH = """
    select count(*) filter (where h.state = 'active') as active,
           count(*) filter (where h.state = 'paused') as paused,
           count(*) filter (where h.state = 'parked') as parked,
           count(*) filter (where h.late > $1::interval) as overdue,
           coalesce(extract(epoch from max(h.late) filter (where h.late > $1::interval)), 0)::float8 as late_seconds
    from (select t.state, clock_timestamp() - case when t.waiting_since is null then t.next_fire_at else t.look_at end
                 as late
          from duly.schedule_turn t) h
"""


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose time has come, as it stood at `seen_at` by the database's clock. `busy`: a job of it has not
    ended (asked only where that matters); `waiting`: a fire waits for that.
    """

    schedule_id: UUID
    seen_at: datetime
    revision: int
    next_fire_at: datetime
    since_at: datetime
    made: int
    waiting: bool
    busy: bool


class Fire(NamedTuple):
    """A row of the ledger of fires. `covers`: how many fires it tells of."""

    fire_at: datetime
    outcome: Literal["made", "missed", "skipped"]
    covers: int = 1
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """What is to become of a due schedule: its next fire (None: it ends), when to look at it, and the fires between."""

    due: DueSchedule
    next_fire_at: datetime | None
    look_at: datetime | None
    fires: tuple[Fire, ...] = ()

    @property
    def since_at(self) -> datetime:
        """A moment that the next fire is the first after."""
        seen_at = self.due.seen_at
        return seen_at if self.next_fire_at is None else min(seen_at, self.next_fire_at - timedelta(microseconds=1))


@dataclass(frozen=True, slots=True)
class ScheduleHealth:
    """How many schedules there are. `overdue`: they should have fired more than a minute ago and did not."""

    active: int
    paused: int
    parked: int
    overdue: int
    most_late: timedelta


async def due_schedules(
    db: Executor, limit: int, limit_bytes: int, *, sweep: bool = False, tasks_only: bool = False
) -> list[DueSchedule]:
    """The schedules that came due in the last minute, with `sweep` in all the past, the longest due first: `limit` at
    most, and only as many as weigh `limit_bytes`, but one in any case.
    """
    return [DueSchedule(*row.values()) for row in await db.fetch(_DUE, limit, limit_bytes, sweep, tasks_only)]


async def until_next_look(db: Executor, at_most: timedelta, *, tasks_only: bool = False) -> timedelta:
    """How long no schedule is due, `at_most` if it is longer."""
    seconds: float = await db.fetchval("select duly.until_next_look($1, $2)", at_most.total_seconds(), tasks_only)
    return timedelta(seconds=seconds)


async def take_fires(tx: Session, turned: Sequence[Turned]) -> set[tuple[UUID, datetime]]:
    """Turn schedules that are still as they were read; returns (schedule, fire) of every fire whose job the caller has
    to make in the same transaction, at once.
    """
    fires = [(turn.due.schedule_id, fire) for turn in turned for fire in turn.fires]
    rows = await tx.fetch(
        _TAKE,
        [turn.due.schedule_id for turn in turned],
        [turn.due.revision for turn in turned],
        [turn.due.next_fire_at for turn in turned],
        [turn.next_fire_at for turn in turned],
        [turn.since_at for turn in turned],
        [turn.look_at for turn in turned],
        [schedule_id for schedule_id, _ in fires],
        [fire.fire_at for _, fire in fires],
        [fire.outcome for _, fire in fires],
        [fire.covers for _, fire in fires],
        [fire.job_id for _, fire in fires],
    )
    return {(row["schedule_id"], row["fire_at"]) for row in rows}


async def refuse_fires(tx: Session, refused: Sequence[tuple[UUID, datetime, str]]) -> None:
    """Fires that were taken and made no job after all, with the reason: they show as skipped."""
    await tx.execute("select duly.refuse_fires($1, $2, $3)", *map(list, zip(*refused, strict=True)))


async def put_off(db: Executor, due: DueSchedule, pause: timedelta, *, waits: bool) -> None:
    """Look at a due schedule again after a pause. `waits`: for the end of the job before, which is no fault."""
    await db.execute(
        "select duly.put_off($1, $2, $3, $4, $5)",
        due.schedule_id,
        due.revision,
        due.next_fire_at,
        pause.total_seconds(),
        waits,
    )


async def park(db: Executor, due: DueSchedule, why: str) -> bool:
    """Take a schedule that cannot fire out of the round; False if it is not as it was read."""
    parked: bool = await db.fetchval(
        "select duly.park($1, $2, $3, $4)", due.schedule_id, due.revision, due.next_fire_at, why
    )
    return parked


async def prune_fires(db: Executor, after: datetime, before: datetime, limit: int) -> datetime | None:
    """Forget up to `limit` fires older than `before`, from a moment on; returns where to go on, None at the end."""
    last: datetime | None = await db.fetchval("select duly.prune_fires($1, $2, $3)", after, before, limit)
    return last


async def schedule_health(db: Executor) -> ScheduleHealth:
    """How all schedules stand. Reads all of them."""
    row = await db.fetchrow(_HEALTH, OVERDUE_AFTER)
    assert row is not None  # an aggregate
    return ScheduleHealth(
        row["active"], row["paused"], row["parked"], row["overdue"], timedelta(seconds=row["late_seconds"])
    )
