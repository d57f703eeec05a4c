"""The answers about schedules: for the OpenAPI document, and as JSON."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from duly.api.documents import Headers, Moment, RedactDocument, RetryDocument, Seconds, _Document
from duly.api.render import _callback_url, _retry_json, _unique_for
from duly.service.jobs import KIND
from duly.service.moments import show_moment
from duly.service.redaction import Redaction
from duly.service.schedules import FireView, Schedule
from duly.service.templates import Template


class ScheduleJobDocument(_Document):
    """What the jobs of a schedule are made of."""

    kind: str
    url: str | None
    method: str | None
    headers: Headers
    redact: RedactDocument | None
    has_body: bool
    queue: str
    concurrency_key: str | None
    priority: int
    tags: list[str]
    metadata: Any
    timeout: Seconds
    retry: RetryDocument
    expires_after: Seconds | None
    unique_key: str | None
    unique_for: str | float | None
    on_conflict: str | None
    on_success: str | None
    on_dead: str | None


class ScheduleDocument(_Document):
    """A schedule as it stands now."""

    id: str
    name: str | None
    declared_by: Annotated[str | None, Field(description="the set of declarations it belongs to")]
    state: Literal["active", "paused", "parked", "ended"]
    parked_why: Annotated[str | None, Field(description="why it cannot fire; mend it, or resume it")]
    revision: int
    cron: str | None
    timezone: str | None
    every: Seconds | None
    at: Moment | None
    start_at: Moment | None
    end_at: Moment | None
    count: int | None
    missed: Literal["skip", "one", "all"]
    missed_limit: int
    missed_after: Seconds
    overlap: Literal["allow", "skip", "wait"]
    jitter: Seconds
    next_fire_at: Moment | None
    waiting: Annotated[bool, Field(description="its fire waits for the job before it")]
    last_fire_at: Moment | None
    made: Annotated[int, Field(description="jobs made by the calendar")]
    created_at: Moment
    updated_at: Moment
    job: ScheduleJobDocument


class ScheduleListDocument(_Document):
    """A page of schedules, the newest first. `next_cursor` null: there are no more."""

    data: list[ScheduleDocument]
    next_cursor: str | None


class FireDocument(_Document):
    """One fire, or several that were passed over together (`covers`)."""

    fire_at: Moment
    trigger: Literal["schedule", "manual"]
    outcome: Literal["made", "missed", "skipped"]
    covers: int
    job_id: str | None
    why: str | None
    made_at: Annotated[Moment, Field(description="when it was written down")]
    late_ms: int


class FireListDocument(_Document):
    """Fires of a schedule, the latest first."""

    data: list[FireDocument]
    next_cursor: str | None


class PreviewDocument(_Document):
    """The next fires, in UTC."""

    fires: list[Moment]


class RunDocument(_Document):
    """The job that was made."""

    job_id: str


def schedule_json(schedule: Schedule, template: Template) -> dict[str, Any]:
    """A schedule with its template in the clear, or closed; without the body."""
    timing, policy = schedule.timing, schedule.policy
    return {
        "id": str(schedule.id),
        "name": schedule.name,
        "declared_by": schedule.declared_by,
        "state": schedule.state,
        "parked_why": schedule.parked_why,
        "revision": schedule.revision,
        "cron": timing.cron,
        "timezone": timing.timezone,
        "every": _seconds(timing.every),
        "at": _moment(timing.at),
        "start_at": _moment(timing.start_at),
        "end_at": _moment(timing.end_at),
        "count": timing.most_fires,
        "missed": policy.missed,
        "missed_limit": policy.missed_limit,
        "missed_after": _seconds(policy.missed_after),
        "overlap": policy.overlap,
        "jitter": _seconds(policy.jitter),
        "next_fire_at": _moment(schedule.next_fire_at),
        "waiting": schedule.waiting_since is not None,
        "last_fire_at": _moment(schedule.last_fire_at),
        "made": schedule.made,
        "created_at": show_moment(schedule.created_at),
        "updated_at": show_moment(schedule.updated_at),
        "job": template_json(template, has_body=schedule.template.body is not None),
    }


def template_json(template: Template, *, has_body: bool) -> dict[str, Any]:
    """What the jobs are made of, as a job shows it."""
    request = template.payload if template.kind == KIND and isinstance(template.payload, dict) else {}
    redaction = Redaction.of(request)
    return {
        "kind": template.kind,
        "url": request.get("url"),
        "method": request.get("method"),
        "headers": redaction.masked(request.get("headers") or ()),
        "redact": redaction.to_json() if "redact" in request else None,
        "has_body": has_body,
        "queue": template.queue,
        "concurrency_key": template.concurrency_key,
        "priority": template.priority,
        "tags": list(template.tags),
        "metadata": template.metadata,
        "timeout": _seconds(template.timeout),
        "retry": _retry_json(template.retry),
        "expires_after": _seconds(template.expires_after),
        "unique_key": template.unique and template.unique.key,
        "unique_for": template.unique and _unique_for(template.unique),
        "on_conflict": template.unique and template.unique.on_conflict,
        "on_success": _callback_url(template.on_success),
        "on_dead": _callback_url(template.on_dead),
    }


def fire_json(fire: FireView) -> dict[str, Any]:
    """A row of the ledger."""
    return {
        "fire_at": show_moment(fire.fire_at),
        "trigger": fire.trigger,
        "outcome": fire.outcome,
        "covers": fire.covers,
        "job_id": None if fire.job_id is None else str(fire.job_id),
        "why": fire.why,
        "made_at": show_moment(fire.made_at),
        "late_ms": max(0, (fire.made_at - fire.fire_at) // timedelta(milliseconds=1)),
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else show_moment(moment)


def _seconds(duration: timedelta | None) -> int | float | None:
    if duration is None:
        return None
    seconds = duration.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
