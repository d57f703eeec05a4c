"""What people do with a schedule beside editing it: pause it, resume it, make a job of it now."""

from __future__ import annotations

from uuid import UUID

from duly.http.policy import EgressPolicy
from duly.model.errors import NotFoundError
from duly.queue import Database, Enqueued, Owner, server_now
from duly.service.firing import check_fit, fire_now
from duly.service.keyring import Keyring
from duly.service.schedules import (
    Schedule,
    ScheduleChangedError,
    ScheduleStateError,
    get_schedule,
    pause_schedule,
    resume_schedule,
)

_TRIES = 5


async def pause(db: Database, owner: Owner, schedule_id: UUID) -> Schedule:
    """No fires until it is resumed. Idempotent. Raises NotFoundError, or ScheduleStateError once it has ended."""
    done = await pause_schedule(db, owner, schedule_id)
    schedule = await _found(db, owner, schedule_id)
    if not done:
        raise ScheduleStateError(schedule.state, "be paused")
    return schedule


async def resume(db: Database, owner: Owner, schedule_id: UUID, *, keyring: Keyring, policy: EgressPolicy) -> Schedule:
    """A paused or parked schedule goes on with the next fire from now, in its phase. Idempotent.

    Raises NotFoundError, ScheduleStateError once it has ended, SealedError, InvalidScheduleError if it still cannot
    fire, ScheduleChangedError if others kept changing it.
    """
    for _ in range(_TRIES):
        schedule = await _found(db, owner, schedule_id)
        if schedule.state == "active":
            return schedule
        if schedule.state == "ended":
            raise ScheduleStateError(schedule.state, "be resumed")
        now = await server_now(db)
        check_fit(schedule, keyring, policy, now)
        if await resume_schedule(db, schedule, now=now):
            return await _found(db, owner, schedule_id)
    raise ScheduleChangedError


async def run(
    db: Database, owner: Owner, schedule_id: UUID, *, keyring: Keyring, policy: EgressPolicy, by: str
) -> Enqueued:
    """One job at once, whatever the schedule's state; its fires go on as they would. `by` stands in its ledger.

    Raises NotFoundError, SealedError, InvalidScheduleError if it cannot fire, UniqueKeyTakenError.
    """
    schedule = await _found(db, owner, schedule_id)
    template = check_fit(schedule, keyring, policy, await server_now(db))
    return await fire_now(db, schedule, template, keyring, by)


async def _found(db: Database, owner: Owner, schedule_id: UUID) -> Schedule:
    schedule = await get_schedule(db, schedule_id, owner.project_id)
    if schedule is None:
        raise NotFoundError("schedule", schedule_id)
    return schedule
