"""Schedules as they are stored: create, read, edit, pause, resume, delete, and the ledger of their fires.

Where a schedule stands (its next fire) is moved by `firing`; what moves it otherwise is an edit, and both match the
row as they read it, so that neither undoes the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.errors import DulyError, InvalidInputError
from duly.model.storable import read_json
from duly.queue import Database, Executor, Owner
from duly.service.fire_plan import Policy
from duly.service.keyring import Keyring
from duly.service.templates import Template, opened_template, read_template, sealed_template, stored_options
from duly.service.timing import Timing, fires_after

State = Literal["active", "paused", "parked", "ended"]

_ROW_BYTES = 1_024

_COLUMNS = """
    s.id, s.account_id, s.project_id, s.name, s.declared_by, s.cron, s.timezone, s.every, s.at, s.anchor_at, s.start_at,
    s.end_at, s.most_fires, s.missed, s.missed_limit, s.missed_after, s.overlap, s.jitter, s.kind, s.payload, s.body,
    s.options, s.created_at, s.updated_at, t.state, t.revision, t.next_fire_at, t.since_at, t.waiting_since, t.made,
    t.last_fire_at, t.parked_why
"""
_FROM = "from duly.schedule s join duly.schedule_turn t on t.schedule_id = s.id"
_GET = f"select {_COLUMNS} {_FROM} where s.id = $1 and ($2::integer is null or s.project_id = $2)"
_BY_NAME = f"select {_COLUMNS} {_FROM} where s.project_id = $1 and s.name = $2"
_LIST = f"""
    select {_COLUMNS} {_FROM}
    where ($1::integer is null or s.project_id = $1) and ($2::uuid is null or s.id < $2)
      and ($3::text is null or t.state = $3) and ($4::text is null or s.declared_by = $4)
    order by s.id desc limit $5
"""
_MANY = f"select {_COLUMNS} {_FROM} where s.id = any ($1::uuid[])"
_CREATE = """
    with made as (
        insert into duly.schedule (
            id, account_id, project_id, name, declared_by, cron, timezone, every, at, anchor_at, start_at, end_at,
            most_fires, missed, missed_limit, missed_after, overlap, jitter, kind, payload, body, options, weight_bytes)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20::jsonb, $21,
                $22::jsonb, $23)
        on conflict do nothing
        returning id, kind
    )
    insert into duly.schedule_turn (schedule_id, is_task, state, next_fire_at, since_at, look_at)
    select m.id, m.kind like 'task:%', $24, $25, $26, $25 from made m
    returning schedule_id
"""
_EDIT_TURN = """
    update duly.schedule_turn t
    set revision = t.revision + 1, is_task = $7 like 'task:%', state = case when $3 then t.state else $4 end,
        next_fire_at = case when $3 then t.next_fire_at else $5 end, look_at = case when $3 then t.look_at else $5 end,
        since_at = case when $3 then t.since_at else $6 end,
        waiting_since = case when $3 then t.waiting_since end, parked_why = case when $3 then t.parked_why end
    where t.schedule_id = $1 and t.revision = $2
"""
_EDIT = """
    update duly.schedule
    set name = $4, declared_by = $5, cron = $6, timezone = $7, every = $8, at = $9, anchor_at = $10, start_at = $11,
        end_at = $12, most_fires = $13, missed = $14, missed_limit = $15, missed_after = $16, overlap = $17,
        jitter = $18, kind = $19, payload = $20::jsonb, body = $21, options = $22::jsonb, weight_bytes = $23,
        updated_at = clock_timestamp()
    where id = $1 and account_id = $2 and project_id = $3
"""
_FIRES = """
    select f.fire_at, f.trigger, f.outcome, f.covers, f.job_id, f.why, f.made_at
    from duly.fire f
    where f.schedule_id = $1 and ($2::timestamptz is null or f.fire_at < $2)
    order by f.fire_at desc limit $3
"""
_LAST_FIRES = """
    select s.id, f.fire_at, f.trigger, f.outcome, f.covers, f.job_id, f.why, f.made_at
    from unnest($1::uuid[]) s (id)
    cross join lateral (
        select f.fire_at, f.trigger, f.outcome, f.covers, f.job_id, f.why, f.made_at
        from duly.fire f where f.schedule_id = s.id order by f.fire_at desc limit 1) f
"""


class ScheduleConflictError(DulyError):
    """Another schedule has the id or the name. `holder`: its id, None where it is another project's."""

    def __init__(self, pointer: str, holder: UUID | None) -> None:
        what = "name" if pointer == "/name" else "id"
        super().__init__(f"the {what} is another schedule's: choose another {what}, or edit that one")
        self.pointer = pointer
        self.holder = holder


class ScheduleChangedError(DulyError):
    """The schedule was edited since it was read."""

    def __init__(self) -> None:
        super().__init__("the schedule was edited since you read it: read it again, and decide anew")


class ScheduleStateError(DulyError):
    """The schedule's state does not allow the call."""

    def __init__(self, state: str, call: str) -> None:
        super().__init__(f"the schedule is {state}: it cannot {call}")
        self.state = state


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A checked schedule, its template in the clear. `declared_by`: the set of declarations that it belongs to."""

    timing: Timing
    policy: Policy
    template: Template
    name: str | None = None
    declared_by: str | None = None
    paused: bool = False
    id: UUID = field(default_factory=uuid7)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stands. `template` is as stored: `opened` gives it in the clear. `unreadable`: why it cannot
    be read as it should be, for a row that no hand of ours wrote.
    """

    id: UUID
    owner: Owner
    name: str | None
    declared_by: str | None
    timing: Timing
    policy: Policy
    template: Template
    state: State
    revision: int
    next_fire_at: datetime | None
    since_at: datetime
    waiting_since: datetime | None
    made: int
    last_fire_at: datetime | None
    parked_why: str | None
    created_at: datetime
    updated_at: datetime
    unreadable: str | None = None

    def opened(self, keyring: Keyring) -> Template:
        """The template in the clear. Raises KeyMissingError or TamperedError."""
        return opened_template(keyring, self.id, self.owner.project_id, self.template)


@dataclass(frozen=True, slots=True)
class FireView:
    """A row of a schedule's ledger. `covers`: how many fires it tells of; `made_at`: when it was written."""

    fire_at: datetime
    trigger: Literal["schedule", "manual"]
    outcome: Literal["made", "missed", "skipped"]
    covers: int
    job_id: UUID | None
    why: str | None
    made_at: datetime


async def create_schedule(
    db: Database, owner: Owner, new: NewSchedule, *, keyring: Keyring, now: datetime
) -> tuple[Schedule, bool]:
    """Store a schedule; the second value says that this very one was there already, as after a lost reply.

    Raises ScheduleConflictError if another one has the id or the name.
    """
    next_fire_at = None if new.paused else new.timing.next_after(now)
    state = "paused" if new.paused else "active" if next_fire_at else "ended"
    made = await db.fetchval(_CREATE, *_values(keyring, owner, new), state, next_fire_at, now)
    stored = await get_schedule(db, new.id, owner.project_id)
    if made is None:
        if stored is None and new.name is not None and (other := await named_schedule(db, owner, new.name)):
            raise ScheduleConflictError("/name", other.id)
        if stored is None or not _same(stored, new, keyring):
            raise ScheduleConflictError("/id", None)
    assert stored is not None
    return stored, made is None


async def edit_schedule(db: Database, read: Schedule, new: NewSchedule, *, keyring: Keyring, now: datetime) -> Schedule:
    """Store an edit of a schedule as it was read. Its next fire stays where its timing is the same; otherwise it is the
    first after `now`, in the same phase. An edit of a parked one sets it going again.

    Raises ScheduleChangedError if it was edited, paused or the like since, ScheduleConflictError if another one has the
    name.
    """
    keeps = read.timing == new.timing and read.state != "parked"
    next_fire_at = None if read.state == "paused" else new.timing.next_after(now)
    state = "paused" if read.state == "paused" else "active" if next_fire_at else "ended"
    try:
        async with db.transaction() as tx:
            turn = (read.id, read.revision, keeps, state, next_fire_at, now, new.template.kind)
            if await tx.execute(_EDIT_TURN, *turn) != "UPDATE 1":
                raise ScheduleChangedError
            await tx.execute(_EDIT, *_values(keyring, read.owner, replace(new, id=read.id)))
    except asyncpg.UniqueViolationError:
        other = await named_schedule(db, read.owner, new.name or "")
        raise ScheduleConflictError("/name", other.id if other else None) from None
    stored = await get_schedule(db, read.id, read.owner.project_id)
    if stored is None:
        raise ScheduleChangedError
    return stored


async def pause_schedule(db: Executor, owner: Owner, schedule_id: UUID) -> bool:
    """No fires from now on, until it is resumed; what falls into the pause is not missed. False: unknown."""
    turned = await db.execute(
        """update duly.schedule_turn t
           set state = 'paused', revision = t.revision + 1, next_fire_at = null, look_at = null, waiting_since = null,
               parked_why = null
           from duly.schedule s
           where s.id = t.schedule_id and s.id = $1 and s.project_id = $2 and t.state <> 'ended'""",
        schedule_id,
        owner.project_id,
    )
    return turned == "UPDATE 1"


async def resume_schedule(db: Executor, read: Schedule, *, now: datetime) -> bool:
    """A schedule that is paused or parked fires again, at the first fire after `now`. False: it was changed since."""
    next_fire_at = read.timing.next_after(now)
    turned = await db.execute(
        """update duly.schedule_turn t
           set state = $3, revision = t.revision + 1, next_fire_at = $4, look_at = $4, since_at = $5, parked_why = null
           where t.schedule_id = $1 and t.revision = $2 and t.state in ('paused', 'parked')""",
        read.id,
        read.revision,
        "active" if next_fire_at else "ended",
        next_fire_at,
        now,
    )
    return turned == "UPDATE 1"


async def delete_schedule(db: Executor, owner: Owner, schedule_id: UUID) -> bool:
    """Forget a schedule; the jobs that it made go on, and its fires stay in the ledger as long as others do."""
    done = await db.execute(
        "delete from duly.schedule where id = $1 and project_id = $2", schedule_id, owner.project_id
    )
    return done == "DELETE 1"


async def get_schedule(db: Executor, schedule_id: UUID, project_id: int | None) -> Schedule | None:
    """One schedule of a project (None: of any)."""
    row = await db.fetchrow(_GET, schedule_id, project_id)
    return None if row is None else _read(row)


async def named_schedule(db: Executor, owner: Owner, name: str) -> Schedule | None:
    """The schedule of this name in a project."""
    row = await db.fetchrow(_BY_NAME, owner.project_id, name)
    return None if row is None else _read(row)


async def list_schedules(
    db: Executor,
    owner: Owner | None,
    *,
    state: State | None = None,
    declared_by: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[Schedule]:
    """The schedules of a project (None: all), the newest first; those with an id below `before`."""
    project_id = None if owner is None else owner.project_id
    return [_read(row) for row in await db.fetch(_LIST, project_id, before, state, declared_by, limit)]


async def many_schedules(db: Executor, ids: Sequence[UUID]) -> dict[UUID, Schedule]:
    """Those of these schedules that exist."""
    return {row["id"]: _read(row) for row in await db.fetch(_MANY, list(ids))}


async def list_fires(
    db: Executor, schedule_id: UUID, *, before: datetime | None = None, limit: int = 50
) -> list[FireView]:
    """A schedule's fires, the latest first. Whose it is must have been asked before."""
    return [FireView(*row.values()) for row in await db.fetch(_FIRES, schedule_id, before, limit)]


async def last_fires(db: Executor, ids: Sequence[UUID]) -> dict[UUID, FireView]:
    """The latest fire of each of these schedules that has any. Whose they are must have been asked before."""
    rows = await db.fetch(_LAST_FIRES, list(ids))
    return {row["id"]: FireView(*list(row.values())[1:]) for row in rows}


def next_fires(schedule: Schedule, count: int) -> list[datetime]:
    """Its next fires: the stored one, and those after it, as many as it still has."""
    if schedule.next_fire_at is None:
        return []
    left = schedule.timing.most_fires
    most = count if left is None else min(count, left - schedule.made)
    return list(islice(fires_after(schedule.timing, schedule.next_fire_at - timedelta(microseconds=1)), most))


def _same(stored: Schedule, new: NewSchedule, keyring: Keyring) -> bool:
    """Whether a stored schedule is the one that is to be made: all that was asked for, whenever it was asked."""
    timing = new.timing
    if timing.start_at is not None and stored.timing.start_at is not None and timing.start_at == timing.anchor:
        timing = replace(timing, start_at=stored.timing.start_at)  # it may have been a delay
    timing = replace(timing, anchor=stored.timing.anchor)
    return (stored.name, stored.declared_by, stored.timing, stored.policy, stored.opened(keyring)) == (
        new.name,
        new.declared_by,
        timing,
        new.policy,
        new.template,
    )


def _values(keyring: Keyring, owner: Owner, new: NewSchedule) -> list[Any]:
    template = sealed_template(keyring, new.id, owner.project_id, new.template)
    timing, policy = new.timing, new.policy
    payload, options = _json(template.payload), _json(stored_options(template))
    return [
        new.id,
        owner.account_id,
        owner.project_id,
        new.name,
        new.declared_by,
        timing.cron,
        timing.timezone,
        timing.every,
        timing.at,
        timing.anchor,
        timing.start_at,
        timing.end_at,
        timing.most_fires,
        policy.missed,
        policy.missed_limit,
        policy.missed_after,
        policy.overlap,
        policy.jitter,
        template.kind,
        payload,
        template.body,
        options,
        _ROW_BYTES + len(payload) + len(options) + len(template.body or b""),
    ]


def _read(row: asyncpg.Record) -> Schedule:
    unreadable = None
    payload = read_json(row["payload"])
    try:
        template = read_template(row["kind"], payload, row["body"], read_json(row["options"]))
    except InvalidInputError as error:
        template, unreadable = Template(row["kind"], payload, row["body"]), str(error)
    return Schedule(
        id=row["id"],
        owner=Owner(row["account_id"], row["project_id"]),
        name=row["name"],
        declared_by=row["declared_by"],
        timing=Timing(
            row["anchor_at"],
            row["cron"],
            row["timezone"],
            row["every"],
            row["at"],
            row["start_at"],
            row["end_at"],
            row["most_fires"],
        ),
        policy=Policy(row["missed"], row["missed_limit"], row["missed_after"], row["overlap"], row["jitter"]),
        template=template,
        state=row["state"],
        revision=row["revision"],
        next_fire_at=row["next_fire_at"],
        since_at=row["since_at"],
        waiting_since=row["waiting_since"],
        made=row["made"],
        last_fire_at=row["last_fire_at"],
        parked_why=row["parked_why"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        unreadable=unreadable,
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
