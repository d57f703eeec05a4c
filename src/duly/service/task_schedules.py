"""Schedules that a program declares beside its tasks, reconciled as those of a file are. They belong to the project of
tasks; a set of them to what declared it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta

from duly.queue import Database, task_owner
from duly.service.declaring import HORIZON, Change, Declared, ForeignScheduleError, reconcile
from duly.service.faults import Fault, InvalidScheduleError
from duly.service.fire_plan import Policy
from duly.service.keyring import NO_KEYRING
from duly.service.schedules import ScheduleChangedError, ScheduleConflictError
from duly.service.templates import Template
from duly.service.timing import Asked
from duly.tasks.app import App
from duly.tasks.scheduling import DeclaredSchedule
from duly.tasks.task import KIND_PREFIX

_TRIES = 3


async def reconcile_apps(
    db: Database, apps: Iterable[App], *, declared_by: str, dry_run: bool = False, horizon: timedelta = HORIZON
) -> list[Change]:
    """Make the schedules of a set what the apps declare; with `dry_run` only say what that changes. Any number of
    processes may do it at once. Raises as `reconcile`, faults by the schedule's name.
    """
    schedules = [schedule for app in apps for schedule in app.schedules]
    declared = [declared_of(schedule) for schedule in schedules]
    owner = await task_owner(db)
    for tries_left in reversed(
        range(len(declared) + _TRIES)
    ):  # each conflict with a rival is one schedule less to apply
        try:
            return await reconcile(
                db, owner, declared, declared_by=declared_by, keyring=NO_KEYRING, dry_run=dry_run, horizon=horizon
            )
        except (ScheduleConflictError, ScheduleChangedError) as error:
            is_foreign = isinstance(error, ForeignScheduleError) and error.declared_by != declared_by
            if is_foreign or not tries_left:
                raise
        except InvalidScheduleError as error:
            raise InvalidScheduleError([_named(fault, schedules) for fault in error.faults]) from error
    raise AssertionError("the last try returns or raises")


def declared_of(schedule: DeclaredSchedule) -> Declared:
    """The declaration as the service stores schedules."""
    call, options = schedule.call, schedule.call.options
    asked = Asked(
        schedule.cron,
        schedule.timezone,
        schedule.every,
        schedule.at,
        schedule.start_at,
        None,
        schedule.end_at,
        schedule.count,
    )
    policy = Policy(schedule.missed, schedule.missed_limit, schedule.missed_after, schedule.overlap, schedule.jitter)
    template = Template(
        KIND_PREFIX + call.task.name,
        call.stored,
        queue=options.queue,
        concurrency_key=call.concurrency_key,
        priority=options.priority,
        timeout=options.timeout,
        retry=options.policy(call.task.options),
        expires_after=options.expires_after,
        unique=call.unique,
        tags=options.tags,
        metadata=json.loads(json.dumps(options.metadata)),  # as it is read back
    )
    return Declared(schedule.name, asked, policy, template)


def _named(fault: Fault, schedules: list[DeclaredSchedule]) -> Fault:
    place, _, where = fault.pointer.removeprefix("/").partition("/")
    return Fault(f"{schedules[int(place)].name}/{where}".rstrip("/"), fault.detail)
