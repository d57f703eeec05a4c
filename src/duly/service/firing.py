"""Firing schedules: small steps that any worker takes, any number of times, beside any number of others.

The next fire is stored, and the database's clock says when it is due. A step reads what is due, works out what becomes
of it (zones are Python's to know), and writes in one transaction: the schedule turns to its next fire if it still
stands as it was read, each fire gets its row, unique by schedule and moment, and each row its job. A process that dies
anywhere leaves all of it or nothing. Who comes second finds the schedule turned and makes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from duly.http.errors import TargetNotAllowedError
from duly.http.policy import EgressPolicy
from duly.http.request import StoredRequest
from duly.model import NewJob, uuid7
from duly.model.errors import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    InvalidInputError,
    NotFoundError,
    UniqueKeyTakenError,
)
from duly.model.reminding import Reminder
from duly.model.storable import storable_text
from duly.queue import (
    Database,
    DueSchedule,
    Enqueued,
    Fire,
    Owner,
    Session,
    Turned,
    due_schedules,
    enqueue,
    park,
    prune_fires,
    put_off,
    refuse_fires,
    server_now,
    take_fires,
    until_next_look,
)
from duly.queue.failures import ROLLED_BACK
from duly.queue.schedules import START_OF_FIRES
from duly.service.accounts import closed_accounts
from duly.service.faults import Fault, FieldError, InvalidScheduleError
from duly.service.fire_plan import Turn, first_due, plan_fires
from duly.service.jobs import KIND
from duly.service.keyring import NO_KEYRING, KeyMissingError, Keyring, TamperedError
from duly.service.schedules import Schedule, list_schedules, many_schedules
from duly.service.sealing import sealed_job
from duly.service.templates import Template, job_at
from duly.upkeep.running import every

log = logging.getLogger("duly.service")

BATCH = 100
BATCH_BYTES = 8 * 1024 * 1024
PATIENCE = timedelta(seconds=1)  # for a rival's open transaction that holds a unique key
KEEP = timedelta(days=30)

_AT_MOST = timedelta(seconds=1)
_SWEEP_EVERY_S = 60.0
_WAIT = timedelta(seconds=1)  # until a fire that waits for a job looks again
_BUSY = timedelta(seconds=2)
_KEY_AGAIN = timedelta(seconds=30)
_RIVALS = timedelta(milliseconds=50)
_TRIES = 3
_PRUNED = 1_000
_PRUNE_EVERY = timedelta(hours=1)
_RECHECKED = 200
_RECHECK_EVERY = timedelta(hours=1)
_BREATH = timedelta(milliseconds=100)
_LONGEST_BREATH_S = 0.01

_CLOSED = timedelta(minutes=1)
_UNFIT = (FieldError, InvalidInputError, TargetNotAllowedError, TamperedError)
"""What a schedule cannot fire for until somebody mends it."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A due schedule that was planned, and the jobs of its fires, sealed."""

    turned: Turned
    owner: Owner
    jobs: Mapping[datetime, NewJob]


class Firer:
    """Fires what is due. `policy`: where jobs may go, None to leave that to the delivery. `tasks_only`: schedules of
    tasks, which need neither policy nor keys; all others are left to those who have them.
    """

    def __init__(
        self,
        db: Database,
        *,
        keyring: Keyring = NO_KEYRING,
        policy: EgressPolicy | None = None,
        keep: timedelta | None = KEEP,
        batch: int = BATCH,
        reminder: Reminder | None = None,
        tasks_only: bool = False,
    ) -> None:
        self._db = db
        self._tasks_only = tasks_only
        self._keyring = keyring
        self._policy = policy
        self._keep = keep
        self._batch = batch
        self._reminder = reminder or Reminder(time.monotonic)
        self._swept_at = -_SWEEP_EVERY_S
        self._pruned_to = START_OF_FIRES
        self._rechecked_to: UUID | None = None
        self.fired_total = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Fire until `stopping`; forget old fires; see to it that next fires fit the time zones of this program."""
        async with asyncio.TaskGroup() as group:
            trouble = self._db.trouble
            group.create_task(every(self.step, stopping, trouble, "fire"))
            group.create_task(every(self.recheck_step, stopping, trouble, "schedules"))
            group.create_task(every(self.prune_step, stopping, trouble, "fires"))

    async def step(self) -> timedelta:
        """Fire one batch of what is due; returns the delay until the next step (0: there may be more)."""
        now_s = time.monotonic()
        sweep = now_s - self._swept_at >= _SWEEP_EVERY_S
        found = await due_schedules(self._db, self._batch, BATCH_BYTES, sweep=sweep, tasks_only=self._tasks_only)
        if not found:
            if sweep:
                self._swept_at = now_s
            return await until_next_look(self._db, _AT_MOST, tasks_only=self._tasks_only)
        stored = await many_schedules(self._db, [due.schedule_id for due in found])
        closed = await closed_accounts(self._db, {schedule.owner.account_id for schedule in stored.values()})
        ready: list[_Ready] = []
        breath = _Breath()
        for due in found:
            schedule = stored.get(due.schedule_id)
            if schedule is not None and schedule.owner.account_id in closed:
                await put_off(self._db, due, _CLOSED, waits=False)  # enabled again, it has missed fires
            elif schedule is not None and schedule.revision == due.revision:
                planned = await self._planned(due, schedule)
                if planned is not None:
                    ready.append(planned)
            await breath.taken()
        taken = await self._fire(ready)
        return timedelta(0) if taken or not ready else _RIVALS

    async def recheck_step(self) -> timedelta:
        """Turn schedules whose stored next fire is none any more, as after an update of the time zones' rules."""
        page = await list_schedules(self._db, None, state="active", before=self._rechecked_to, limit=_RECHECKED)
        now = await server_now(self._db)
        moved: list[Turned] = []
        breath = _Breath()
        for schedule in page:
            try:
                turned = _moved(schedule, now)
            except Exception:  # it shows when it is due, and is parked then
                log.exception("a schedule's next fire cannot be read", extra={"schedule_id": str(schedule.id)})
                continue
            if turned is not None:
                moved.append(turned)
            await breath.taken()
        if moved:
            async with self._db.transaction() as tx:
                await take_fires(tx, moved)
        self._rechecked_to = page[-1].id if len(page) == _RECHECKED else None
        return _BREATH if self._rechecked_to else _RECHECK_EVERY

    async def prune_step(self) -> timedelta:
        """Forget one batch of fires that are old enough."""
        if self._keep is None:
            return _PRUNE_EVERY
        before = await server_now(self._db) - self._keep
        place = await prune_fires(self._db, self._pruned_to, before, _PRUNED)
        if place is None:
            return _PRUNE_EVERY * random.uniform(0.75, 1.25)
        self._pruned_to = place
        return _BREATH

    async def _planned(self, due: DueSchedule, schedule: Schedule) -> _Ready | None:
        """What a schedule is to do; None if it is put off or parked."""
        try:
            return self._ready(due, schedule, checked_template(schedule, self._keyring, self._policy))
        except _Held:
            await put_off(self._db, due, _WAIT, waits=True)
        except KeyMissingError as error:
            await put_off(self._db, due, _KEY_AGAIN, waits=False)
            if self._reminder.is_due(error.key_id):
                fields = {"key_id": error.key_id, "schedule_id": str(due.schedule_id), "error": str(error)}
                log.error("schedules wait: what they need cannot be decrypted", extra=fields)
        except Exception as error:  # one that nobody foresaw is no reason for the others not to fire
            if isinstance(error, DatabaseUnavailableError | asyncpg.PostgresError):
                raise
            await self._park(due, _why(error))
        return None

    def _ready(self, due: DueSchedule, schedule: Schedule, template: Template) -> _Ready:
        turn = Turn(due.next_fire_at, due.since_at, due.made, due.busy, due.waiting)
        plan = plan_fires(schedule.timing, schedule.policy, turn, due.seen_at)
        if plan.hold:
            raise _Held
        owner = schedule.owner
        jobs = {
            at: sealed_job(self._keyring, owner, job_at(template, schedule.id, at, schedule.policy.jitter, due.seen_at))
            for at in plan.fires
        }
        passed = (Fire(over.last, over.outcome, over.count) for over in plan.passed_over)
        made = (Fire(at, "made", 1, job.id) for at, job in jobs.items())
        look_at = plan.next_fire_at
        if look_at is not None and schedule.policy.overlap == "wait" and look_at <= due.seen_at:
            look_at = due.seen_at + _WAIT  # for the job that is made now
        return _Ready(Turned(due, plan.next_fire_at, look_at, (*passed, *made)), owner, jobs)

    async def _park(self, due: DueSchedule, why: str) -> None:
        if await park(self._db, due, storable_text(why)):
            log.warning("a schedule is parked", extra={"schedule_id": str(due.schedule_id), "error": why})

    async def _fire(self, ready: Sequence[_Ready]) -> bool:
        """Write a batch; one by one if some of it is refused. False: rivals had it all."""
        if not ready:
            return False
        try:
            return await self._written(ready)
        except DatabaseBusyError:
            if len(ready) == 1:  # its unique key is in somebody's open transaction
                await put_off(self._db, ready[0].turned.due, _BUSY, waits=False)
                return True
        except _UNSTORABLE as error:
            if len(ready) == 1:
                await self._park(ready[0].turned.due, _why(error))
                return True
        return any([await self._fire([one]) for one in ready])

    async def _written(self, ready: Sequence[_Ready]) -> bool:
        for _ in range(_TRIES):
            try:
                return await self._write(ready)
            except ROLLED_BACK:
                await asyncio.sleep(random.uniform(0.01, 0.05))
        try:
            return await self._write(ready)
        except ROLLED_BACK as error:
            raise DatabaseBusyError(f"the database is busy: {error}") from error

    async def _write(self, ready: Sequence[_Ready]) -> bool:
        jobs = {(one.turned.due.schedule_id, at): (one.owner, job) for one in ready for at, job in one.jobs.items()}
        async with self._db.transaction() as tx:
            taken = await take_fires(tx, [one.turned for one in ready])
            wanted = [fire for fire in jobs if fire in taken]
            enqueued = await enqueue(tx, [jobs[fire] for fire in wanted], patience=PATIENCE)
            await _refuse(tx, wanted, enqueued)
        self.fired_total += len(wanted)
        return bool(wanted) or not jobs


class _Breath:
    """Lets this process's deliveries go on now and then; each time costs a whole round of a busy loop."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    async def taken(self) -> None:
        if time.monotonic() - self._since_s > _LONGEST_BREATH_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()


class _Held(Exception):
    """The fire waits for the job before it."""


def checked_template(schedule: Schedule, keyring: Keyring, policy: EgressPolicy | None) -> Template:
    """What the schedule's jobs are made of, in the clear, fit to be sent.

    Raises KeyMissingError while a key is missing; InvalidInputError, TargetNotAllowedError or TamperedError if it
    cannot be sent as it is.
    """
    if schedule.unreadable is not None:
        raise InvalidInputError(schedule.unreadable, "/job")
    template = schedule.opened(keyring)
    if template.kind == KIND:
        requests = [StoredRequest.from_payload(template.payload, template.body)]
        callbacks = (template.on_success, template.on_dead)
        requests += [StoredRequest.from_payload(payload, None) for payload in callbacks if payload is not None]
        if policy is not None:
            for request in requests:
                policy.check_target(request.target)
    return template


def check_fit(schedule: Schedule, keyring: Keyring, policy: EgressPolicy, now: datetime) -> Template:
    """`checked_template`, and a timing that can be read. Raises InvalidScheduleError with what is to be mended."""
    try:
        schedule.timing.next_after(now)
        return checked_template(schedule, keyring, policy)
    except FieldError as error:
        raise InvalidScheduleError([Fault("/cron", str(error))]) from error
    except (InvalidInputError, TargetNotAllowedError) as error:
        raise InvalidScheduleError([Fault("/job/url", str(error))]) from error


async def fire_now(db: Database, schedule: Schedule, template: Template, keyring: Keyring, by: str) -> Enqueued:
    """Make a job of the schedule at once, whatever its state, beside its fires: they go on as they would.

    Raises UniqueKeyTakenError if another job has its unique key, NotFoundError if the schedule is gone.
    """
    job_id = uuid7()
    async with db.transaction() as tx:
        fire_at = await tx.fetchval(
            """insert into duly.fire (schedule_id, fire_at, trigger, outcome, job_id, why)
               select s.id, clock_timestamp(), 'manual', 'made', $3, $4
               from duly.schedule s where s.id = $1 and s.project_id = $2 for share
               returning fire_at""",
            schedule.id,
            schedule.owner.project_id,
            job_id,
            by,
        )
        if fire_at is None:
            raise NotFoundError("schedule", schedule.id)
        job = job_at(template, schedule.id, fire_at, timedelta(0), fire_at, job_id)
        [enqueued] = await enqueue(tx, [(schedule.owner, sealed_job(keyring, schedule.owner, job))], patience=PATIENCE)
        if enqueued.result in ("taken", "kept"):
            raise UniqueKeyTakenError(job.unique.key if job.unique else "", enqueued.other)
    return enqueued


async def _refuse(tx: Session, fires: Sequence[tuple[UUID, datetime]], enqueued: Sequence[Enqueued]) -> None:
    """A job with the id of this fire is this fire's; one that was not made for its unique key leaves a skipped fire."""
    refused = [
        (schedule_id, at, f"the unique key is held by job {answer.other}")
        for (schedule_id, at), answer in zip(fires, enqueued, strict=True)
        if answer.result in ("taken", "kept")
    ]
    if refused:
        await refuse_fires(tx, refused)


def _moved(schedule: Schedule, now: datetime) -> Turned | None:
    """A turn to the next fire as the timing has it; None where it is the stored one, or cannot be read (which shows
    when it is due).
    """
    at = schedule.next_fire_at
    if at is None or at <= now or schedule.timing.cron is None:
        return None
    try:
        right = first_due(schedule.timing, Turn(at, schedule.since_at))
    except FieldError:
        return None
    if right == at:
        return None
    due = DueSchedule(schedule.id, schedule.since_at, schedule.revision, at, schedule.since_at, 0, False, False)
    return Turned(due, right, right)


def _why(error: BaseException) -> str:
    """The sentence of an error of ours; the kind of any other, whose text may quote what is stored."""
    return str(error) if isinstance(error, _UNFIT) else f"its job cannot be stored ({type(error).__name__})"
