"""Schedules declared elsewhere (in a file, beside tasks) and reconciled with what is stored: shown first, then applied.

A set of declarations has a name. Only schedules that belong to the set are changed or removed by it; those made by
hand, or by another set, are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from duly.queue import Database, Owner, server_now
from duly.service.faults import Fault, InvalidScheduleError
from duly.service.fire_plan import Policy
from duly.service.keyring import Keyring, SealedError
from duly.service.schedules import (
    NewSchedule,
    Schedule,
    ScheduleConflictError,
    create_schedule,
    delete_schedule,
    edit_schedule,
    list_schedules,
    named_schedule,
)
from duly.service.templates import Template
from duly.service.timing import Asked, Timing, new_timing

HORIZON = timedelta(days=366)
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as declared, its template in the clear."""

    name: str
    asked: Asked
    policy: Policy
    template: Template


@dataclass(frozen=True, slots=True)
class Change:
    """What applying a declaration does to a schedule; `parts`: which parts of it differ. "passed": nothing, since its
    last moment was over before it was applied first; one that is stored otherwise is removed for that.
    """

    name: str
    what: Literal["added", "changed", "removed", "passed"]
    parts: tuple[str, ...] = ()


class ForeignScheduleError(ScheduleConflictError):
    """A declared name is that of a schedule outside the set. `declared_by`: the set of that one, None: made by hand."""

    def __init__(self, name: str, other: Schedule) -> None:
        super().__init__("/name", other.id)
        self.declared_by = other.declared_by
        whose = "made by hand" if other.declared_by is None else f"of the set {other.declared_by!r}"
        mend = "" if other.declared_by is None else ", or apply the declarations as that set"
        self.args = (f"schedule {name!r} is there already, {whose}: choose another name, delete that one{mend}",)


async def reconcile(
    db: Database,
    owner: Owner,
    declared: Sequence[Declared],
    *,
    declared_by: str,
    keyring: Keyring,
    dry_run: bool = False,
    horizon: timedelta = HORIZON,
) -> list[Change]:
    """Make the schedules of a set what is declared; returns the changes, in order of their names. With `dry_run`
    nothing is changed. Repeated it changes nothing more; broken off, the next call does the rest.

    A schedule whose timing is declared as before keeps its next fire and its phase. Raises InvalidScheduleError with
    every fault, its pointer beginning with the place in `declared`; ForeignScheduleError if a name is that of a
    schedule outside the set. Nothing is changed then.
    """
    now = await server_now(db)
    stored = {schedule.name: schedule for schedule in await _stored(db, owner, declared_by)}
    _check_names(declared)
    changes: list[tuple[Change, Schedule | None, NewSchedule | None]] = []
    faults: list[Fault] = []
    for place, one in enumerate(declared):
        before = stored.pop(one.name, None)
        if before is None and (other := await named_schedule(db, owner, one.name)) is not None:
            raise ForeignScheduleError(one.name, other)
        try:
            new = _new(one, before, declared_by, now, horizon)
        except InvalidScheduleError as error:
            if _has_passed(one.asked, error.faults, now):
                what = Change(one.name, "removed", ("passed",)) if before else Change(one.name, "passed")
                changes.append((what, before, None))
                continue
            faults.extend(Fault(f"/{place}{fault.pointer}", fault.detail) for fault in error.faults)
            continue
        parts = () if before is None else _differences(before, new, keyring)
        if before is None or parts:
            changes.append((Change(one.name, "changed" if before else "added", parts), before, new))
    if faults:
        raise InvalidScheduleError(faults)
    changes += [(Change(before.name or "", "removed"), before, None) for before in stored.values()]
    changes.sort(key=lambda change: change[0].name)
    if not dry_run:
        for _, before, wanted in changes:
            await _apply(db, owner, before, wanted, keyring, now)
    return [change for change, _, _ in changes]


async def _apply(
    db: Database, owner: Owner, before: Schedule | None, new: NewSchedule | None, keyring: Keyring, now: datetime
) -> None:
    if new is None:
        if before is not None:
            await delete_schedule(db, owner, before.id)
    elif before is None:
        await create_schedule(db, owner, new, keyring=keyring, now=now)
    else:
        await edit_schedule(db, before, new, keyring=keyring, now=now)


async def _stored(db: Database, owner: Owner, declared_by: str) -> list[Schedule]:
    found: list[Schedule] = []
    while True:
        before = found[-1].id if found else None
        page = await list_schedules(db, owner, declared_by=declared_by, before=before, limit=_PAGE)
        found.extend(page)
        if len(page) < _PAGE:
            return found


def _check_names(declared: Sequence[Declared]) -> None:
    seen: set[str] = set()
    faults = []
    for place, one in enumerate(declared):
        if one.name in seen:
            faults.append(Fault(f"/{place}/name", "is declared twice in this set"))
        seen.add(one.name)
    if faults:
        raise InvalidScheduleError(faults)


def _new(one: Declared, before: Schedule | None, declared_by: str, now: datetime, horizon: timedelta) -> NewSchedule:
    if before is not None and _asks_for(one.asked, before.timing):
        timing = before.timing
    else:
        timing = new_timing(one.asked, now=now, jitter=one.policy.jitter, horizon=horizon)
        if before is not None and before.timing.every is not None and one.asked.start_at is None:
            timing = replace(timing, anchor=before.timing.anchor)
    return NewSchedule(timing, one.policy, one.template, one.name, declared_by)


def _has_passed(asked: Asked, faults: Sequence[Fault], now: datetime) -> bool:
    """Whether nothing else is wrong with it."""
    over = {f"/{name}" for name in ("at", "end_at") if (moment := getattr(asked, name)) is not None and moment <= now}
    return {fault.pointer for fault in faults} <= over


def _asks_for(asked: Asked, timing: Timing) -> bool:
    """Whether the stored timing is what is asked for; a delay was counted from when it was declared first."""
    starts = asked.start_at == timing.start_at or (asked.delay is not None and timing.start_at is not None)
    return starts and (asked.cron, asked.timezone, asked.every, asked.at, asked.end_at, asked.count) == (
        timing.cron,
        timing.timezone,
        timing.every,
        timing.at,
        timing.end_at,
        timing.most_fires,
    )


def _differences(before: Schedule, new: NewSchedule, keyring: Keyring) -> tuple[str, ...]:
    parts = []
    if before.timing != new.timing:
        parts.append("timing")
    if before.policy != new.policy:
        parts.append("policy")
    try:
        same = before.unreadable is None and before.opened(keyring) == new.template
    except SealedError:
        same = False
    if not same:
        parts.append("job")
    if before.state == "parked":
        parts.append("parked")
    return tuple(parts)
