"""What a schedule's jobs are made of: kind, payload, body and every option of a job, stored and turned into jobs. Pure.

Header values and bodies are sealed at rest as those of jobs are; their place is the schedule, so that they open nowhere
else. The kind is any: a job of another kind than "http" has its payload and no secrets.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.model import NewJob, RetryPolicy, Unique
from duly.model.errors import InvalidInputError
from duly.model.ids import uuid7_with
from duly.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, DEFAULT_TIMEOUT, unique_until
from duly.service.jobs import KIND
from duly.service.keyring import Keyring, place_of
from duly.service.sealing import Place, key_of, opened_request, sealed_request

_LATE_SHARE = 10
"""A fire that is late by more than this part of its job's greatest age has its lateness added to that: the age counts
from the time at which the job was to run, and it could not run before.
"""

_OLDEST_ID = timedelta(hours=23)  # an id may carry a time of the last 24 hours


@dataclass(frozen=True, slots=True)
class Template:
    """A job without its time. `expires_after`: from its time, or from when it is made if that is later."""

    kind: str
    payload: Any
    body: bytes | None = None
    queue: str = DEFAULT_QUEUE
    concurrency_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta = DEFAULT_TIMEOUT
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    expires_after: timedelta | None = None
    unique: Unique | None = None
    tags: tuple[str, ...] = ()
    metadata: Any = None
    on_success: Any = None
    on_dead: Any = None


def template_of(job: NewJob, expires_after: timedelta | None = None) -> Template:
    """The template that makes jobs like this one."""
    return Template(
        job.kind,
        job.payload,
        job.body,
        job.queue,
        job.concurrency_key,
        job.priority,
        job.timeout,
        job.retry,
        expires_after,
        job.unique,
        job.tags,
        job.metadata,
        job.on_success,
        job.on_dead,
    )


def job_at(
    template: Template,
    schedule_id: UUID,
    fire_at: datetime,
    jitter: timedelta,
    now: datetime,
    job_id: UUID | None = None,
) -> NewJob:
    """The job of one fire, made at `now`. The same fire has the same job: its id is derived, unless it is given."""
    retry = template.retry
    if now - fire_at > retry.max_age / _LATE_SHARE:
        retry = replace(retry, max_age=retry.max_age + (now - fire_at))
    run_at = fire_at + jitter_of(schedule_id, fire_at, jitter)
    return NewJob(
        kind=template.kind,
        payload=template.payload,
        body=template.body,
        id=job_id or fire_id(schedule_id, fire_at, now),
        queue=template.queue,
        concurrency_key=template.concurrency_key,
        priority=template.priority,
        run_at=run_at,
        timeout=template.timeout,
        retry=retry,
        expires_at=None if template.expires_after is None else max(run_at, now) + template.expires_after,
        unique=template.unique,
        tags=template.tags,
        metadata=template.metadata,
        on_success=template.on_success,
        on_dead=template.on_dead,
    )


def fire_id(schedule_id: UUID, fire_at: datetime, now: datetime) -> UUID:
    """The id of a fire's job: a UUIDv7 whose random bits are a hash of schedule and fire, and whose time is the fire's.

    A fire that is too old for an id carries `now`: what keeps it single is the row of the fire.
    """
    at = fire_at if now - fire_at < _OLDEST_ID else now
    return uuid7_with(int(at.timestamp() * 1000), _digest(b"job", schedule_id, fire_at))


def jitter_of(schedule_id: UUID, fire_at: datetime, jitter: timedelta) -> timedelta:
    """How much later than its fire a job runs: evenly spread over 0 to `jitter`, and for one fire always the same."""
    share = int.from_bytes(_digest(b"jitter", schedule_id, fire_at)[:4], "big")
    return jitter * share // (1 << 32)


def stored_options(template: Template) -> dict[str, Any]:
    """The options as JSON."""
    unique = template.unique
    return {
        "queue": template.queue,
        "concurrency_key": template.concurrency_key,
        "priority": template.priority,
        "timeout": template.timeout.total_seconds(),
        "max_attempts": template.retry.max_attempts,
        "retry": template.retry.to_json(),
        "expires_after": None if template.expires_after is None else template.expires_after.total_seconds(),
        "unique": unique and {"key": unique.key, "for": unique.unique_for, "on_conflict": unique.on_conflict},
        "tags": list(template.tags),
        "metadata": template.metadata,
        "on_success": template.on_success,
        "on_dead": template.on_dead,
    }


def read_template(kind: str, payload: Any, body: bytes | None, options: Any) -> Template:
    """What was stored. Raises InvalidInputError if no hand of ours can have written it."""
    try:
        unique = options["unique"]
        expires_after = options["expires_after"]
        return Template(
            kind,
            payload,
            body,
            options["queue"],
            options["concurrency_key"],
            options["priority"],
            timedelta(seconds=options["timeout"]),
            RetryPolicy.from_json(options["retry"], options["max_attempts"]),
            None if expires_after is None else timedelta(seconds=expires_after),
            unique and Unique(unique["key"], unique_until(unique["for"]), unique["on_conflict"]),
            tuple(options["tags"]),
            options["metadata"],
            options["on_success"],
            options["on_dead"],
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError("the stored options are not those of a job: set the schedule's job anew") from error


def sealed_template(keyring: Keyring, schedule_id: UUID, project_id: int, template: Template) -> Template:
    """The template as it is stored; unchanged if the ring seals nothing or there is nothing to seal."""
    payload = template.payload
    if not keyring.seals or template.kind != KIND or not isinstance(payload, dict):
        return template
    if not payload.get("headers") and template.body is None:
        return template
    payload, body = sealed_request(keyring, payload, template.body, _place(schedule_id, project_id))
    return replace(template, payload=payload, body=body)


def opened_template(keyring: Keyring, schedule_id: UUID, project_id: int, template: Template) -> Template:
    """The template in the clear. Raises KeyMissingError or TamperedError."""
    if template.kind != KIND or key_of(template.payload) is None:
        return template
    payload, body = opened_request(keyring, template.payload, template.body, _place(schedule_id, project_id))
    return replace(template, payload=payload, body=body)


def closed_template(template: Template) -> Template:
    """The template without what is sealed in it: header names without values, no body."""
    if template.kind != KIND or key_of(template.payload) is None:
        return template
    payload = {name: value for name, value in template.payload.items() if name != "sealed"}
    return replace(template, payload=payload, body=None)


def _place(schedule_id: UUID, project_id: int) -> Place:
    return lambda what, url: place_of(f"schedule {what}", schedule_id, project_id, url)


def _digest(what: bytes, schedule_id: UUID, fire_at: datetime) -> bytes:
    return hashlib.sha256(b"\0".join((what, schedule_id.bytes, fire_at.isoformat().encode()))).digest()
