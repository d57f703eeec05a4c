"""A schedule as clients write it, and from its text to a checked schedule; all faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, WithJsonSchema

from duly.api.creation import fitted_job, job_values, shape_faults
from duly.api.inputs import _DURATION, Delay, Id, Input, Moment, _between, _printable
from duly.api.problems import Problem
from duly.api.strict_json import MalformedJsonError, Member, read_members
from duly.http.policy import EgressPolicy
from duly.http.url import Target, parse_target
from duly.model import NewJob
from duly.model.errors import InvalidInputError
from duly.service.declaring import Declared
from duly.service.faults import Fault, FieldError, InvalidScheduleError
from duly.service.fire_plan import Policy
from duly.service.jobs import KIND, Limits
from duly.service.redaction import Redaction
from duly.service.schedules import NewSchedule, Schedule
from duly.service.templates import Template, template_of
from duly.service.timing import LONGEST, SHORTEST, Asked, Timing, new_timing
from duly.service.views import MASK

_NOT_HERE = {
    "run_at": "is the schedule's to say: use cron, every or at",
    "delay": "is the schedule's to say: use delay beside job",
    "run_at_local": "is the schedule's to say: use cron with timezone",
    "timezone": "is the schedule's to say: use timezone beside job",
    "id": "is made anew for each job",
    "expires_at": "would be the same for all jobs: use expires_after",
}
_TIMING = ("cron", "timezone", "every", "at", "start_at", "delay", "end_at", "count")
_WAYS = ("cron", "every", "at")
_BODIES = ("json", "body", "body_base64")
_NAME_LIMIT = 100

Every = Annotated[timedelta, PlainValidator(_between(SHORTEST, LONGEST)), WithJsonSchema(_DURATION)]
Jitter = Annotated[timedelta, PlainValidator(_between(timedelta(0), timedelta(hours=24))), WithJsonSchema(_DURATION)]
MissedAfter = Annotated[
    timedelta, PlainValidator(_between(timedelta(seconds=1), timedelta(days=31))), WithJsonSchema(_DURATION)
]


class ScheduleInput(Input):
    """A schedule to create: what it makes (`job`), and one of `cron`, `every` and `at`."""

    job: Annotated[
        dict[str, Any],
        Field(
            description="a job as POST /v1/jobs takes it, without id and times; and expires_after",
            json_schema_extra={"required": ["url"]},
        ),
    ]
    id: Id | None = None
    name: Annotated[str, AfterValidator(_printable(_NAME_LIMIT)), Field(max_length=_NAME_LIMIT)] | None = None
    cron: Annotated[str, Field(description="five fields, or six with seconds in front, or @daily …")] | None = None
    timezone: Annotated[str, Field(description="an IANA time zone, for cron; UTC if left out")] | None = None
    every: Every | None = None
    at: Moment | None = None
    start_at: Moment | None = None
    delay: Annotated[Delay | None, Field(description="before the first fire; instead of start_at")] = None
    end_at: Moment | None = None
    count: Annotated[int, Field(ge=1, le=2_000_000_000, description="how many jobs in all")] | None = None
    missed: Literal["skip", "one", "all"] = "one"
    missed_limit: Annotated[int, Field(ge=1, le=500, description="how many are made up for by all")] | None = None
    missed_after: Annotated[MissedAfter | None, Field(description="how late a fire is missed; 1m if left out")] = None
    overlap: Literal["allow", "skip", "wait"] = "allow"
    jitter: Jitter | None = None
    paused: bool = False

    def asked(self) -> Asked:
        """When it is to fire."""
        return Asked(
            self.cron,
            self.timezone,
            self.every,
            self.at,
            self.start_at,
            self.delay,
            self.end_at,
            self.count,
        )

    def policy(self) -> Policy:
        """What becomes of missed and overlapping fires. Raises InvalidScheduleError for a limit without `all`."""
        default = Policy()
        if self.missed_limit is not None and self.missed != "all":
            raise InvalidScheduleError([Fault("/missed_limit", 'goes together with missed "all"')])
        return Policy(
            self.missed,
            self.missed_limit or default.missed_limit,
            self.missed_after or default.missed_after,
            self.overlap,
            self.jitter or default.jitter,
        )


class Reading:
    """What reading needs to know beside the text."""

    def __init__(self, now: datetime, policy: EgressPolicy, limits: Limits) -> None:
        self.now = now
        self.policy = policy
        self.limits = limits


def read_schedule(text: str, reading: Reading, *, hops: int = 0) -> NewSchedule:
    """A schedule as given. Raises Problem 400 if it is no JSON object, InvalidScheduleError with all that is wrong."""
    given, policy, template, faults = _read(text, reading, hops)
    timing: Timing | None = None
    if given is not None:
        jitter, horizon = given.jitter or timedelta(0), reading.limits.horizon
        asked = given.asked()
        timing = _checked(faults, lambda: new_timing(asked, now=reading.now, jitter=jitter, horizon=horizon))
    if faults or given is None or template is None or timing is None or policy is None:
        raise InvalidScheduleError(faults)
    new = NewSchedule(timing, policy, template, given.name, None, given.paused)
    return new if given.id is None else replace(new, id=given.id)


def read_declared(text: str, reading: Reading) -> Declared:
    """A schedule of a file. Its timing is checked when it is reconciled: what was declared once may be past by now."""
    given, policy, template, faults = _read(text, reading, 0)
    if given is not None:
        for name in ("id", "paused"):
            if name in given.model_fields_set:
                faults.append(Fault(f"/{name}", "has no place in a declaration"))
        if given.name is None:
            faults.append(Fault("/name", "is required: a declared schedule is known by its name"))
    if faults or given is None or given.name is None or template is None or policy is None:
        raise InvalidScheduleError(faults)
    return Declared(given.name, given.asked(), policy, template)


def _read(
    text: str, reading: Reading, hops: int
) -> tuple[ScheduleInput | None, Policy | None, Template | None, list[Fault]]:
    members, faults = _members(text)
    job = members.pop("job", None)
    template = None if job is None else _new_template(job, {}, reading, hops, faults)
    values = {name: member.value for name, member in members.items()}
    given = _shaped(values, job is not None or _is_bad(faults, "job"), faults)
    policy: Policy | None = None if given is None else _checked(faults, given.policy)
    return given, policy, template, faults


def read_edit(text: str, schedule: Schedule, template: Template, reading: Reading) -> NewSchedule:
    """A schedule with what is given changed. What is left out stays, null takes it back to its default; `job` is
    changed member by member. `template`: the schedule's, in the clear.
    """
    members, faults = _members(text)
    for name in ("id", "paused"):
        if members.pop(name, None) is not None:
            why = "cannot be changed" if name == "id" else "is changed by the calls pause and resume"
            faults.append(Fault(f"/{name}", why))
    job = members.pop("job", None)
    new_template: Template | None = template
    if job is not None and template.kind != KIND:
        faults.append(Fault("/job", "is no HTTP request: change it where it is declared"))
    elif job is not None:
        new_template = _new_template(job, template_values(template), reading, _hops(template), faults, template)
    values = {name: member.value for name, member in members.items()}
    timed = any(name in values for name in _TIMING)
    given = _shaped(_merged(values, schedule), True, faults)
    policy = None if given is None else _checked(faults, given.policy)
    timing: Timing | None = schedule.timing
    if given is not None and (timed or "jitter" in values):
        timing = _checked(faults, lambda: _edited_timing(given, values, schedule, reading))
    if faults or given is None or new_template is None or policy is None or timing is None:
        raise InvalidScheduleError(faults)
    return NewSchedule(timing, policy, new_template, given.name, schedule.declared_by)


def template_values(template: Template) -> dict[str, Any]:
    """The job of a template as a client would write it; its body in bytes, under its own name."""
    request = template.payload if isinstance(template.payload, dict) else {}
    backoff = template.retry.backoff
    redact = Redaction.of(request)
    values: dict[str, Any] = {
        "url": request.get("url"),
        "method": request.get("method"),
        "headers": request.get("headers", []),
        "queue": template.queue,
        "concurrency_key": template.concurrency_key,
        "priority": template.priority,
        "tags": list(template.tags),
        "metadata": template.metadata,
        "timeout": template.timeout.total_seconds(),
        "retry": {
            "max_attempts": template.retry.max_attempts,
            "backoff": {
                "kind": backoff.kind,
                "base": None if backoff.kind == "steps" else backoff.base.total_seconds(),
                "factor": backoff.factor if backoff.kind == "exponential" else None,
                "max": backoff.max.total_seconds(),
                "jitter": backoff.jitter,
                "steps": [step.total_seconds() for step in backoff.steps] or None,
            },
            "max_age": template.retry.max_age.total_seconds(),
            "on": template.retry.on if isinstance(template.retry.on, str) else list(template.retry.on),
        },
        "expires_after": None if template.expires_after is None else template.expires_after.total_seconds(),
        "on_success": _url(template.on_success),
        "on_dead": _url(template.on_dead),
        "redact": redact.to_json() if "redact" in request else None,
    }
    if template.unique is not None:
        until = template.unique.until
        values["unique_key"] = template.unique.key
        values["unique_for"] = until.total_seconds() if isinstance(until, timedelta) else f"until_{until}"
        values["on_conflict"] = template.unique.on_conflict
    return values


def _members(text: str) -> tuple[dict[str, Member], list[Fault]]:
    try:
        return read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None


def _shaped(values: Mapping[str, Any], has_job: bool, faults: list[Fault]) -> ScheduleInput | None:
    """The fields beside the job, each of its type; None if one of them is not, with its fault."""
    placeholder: dict[str, Any] = {"job": {}} if has_job else {}
    try:
        return ScheduleInput.model_validate({**values, **placeholder})
    except ValidationError as error:
        known = {fault.pointer for fault in faults}
        found = (
            Fault(f.pointer, f.detail.replace("that a job has", "that a schedule has")) for f in shape_faults(error, {})
        )
        faults.extend(fault for fault in found if fault.pointer not in known)
        return None


def _new_template(
    member: Member,
    stored: Mapping[str, Any],
    reading: Reading,
    hops: int,
    faults: list[Fault],
    before: Template | None = None,
) -> Template | None:
    """The job's members laid over those that are stored."""
    if not isinstance(member.value, dict):
        faults.append(Fault("/job", "must be an object"))
        return None
    members, found = read_members(member.text)
    for name in set(members) & set(_NOT_HERE):
        found.append(Fault(f"/{name}", _NOT_HERE[name]))
        del members[name]
    given = job_values(members)
    if before is not None:
        found.extend(_kept_secrets(given, stored, before))
    values: dict[str, Any] = {**stored, **given}
    if values.get("unique_key") is None and "unique_key" in given:
        values = {name: value for name, value in values.items() if name not in ("unique_for", "on_conflict")} | given
    expires_after = _expires_after(values.pop("expires_after", None), found)
    job, more = fitted_job(values, found, now=reading.now, policy=reading.policy, limits=reading.limits, hops=hops)
    found.extend(more)
    faults.extend(Fault(f"/job{fault.pointer}", fault.detail) for fault in found)
    if job is None or found:
        return None
    return template_of(_with_body(job, given, before), expires_after)


def _with_body(job: NewJob, given: Mapping[str, Any], before: Template | None) -> NewJob:
    """The stored body, unless one is given, or null in its place."""
    if before is None or any(name in given for name in _BODIES):
        return job
    return replace(job, body=before.body)


def _kept_secrets(given: dict[str, Any], stored: Mapping[str, Any], before: Template) -> list[Fault]:
    """Headers that come back masked keep their stored values, and these stay bound to scheme, host and port: whoever
    may edit a schedule but not read its secrets must not have them sent elsewhere.
    """
    faults: list[Fault] = []
    kept = {str(name).lower(): str(value) for name, value in stored.get("headers") or []}
    keeps_headers = "headers" not in given and bool(kept)
    headers = given.get("headers")
    pairs = list(headers.items()) if isinstance(headers, dict) else headers if isinstance(headers, list) else []
    if all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        unmasked = []
        for name, value in pairs:
            if value == MASK and isinstance(name, str) and name.lower() in kept:
                keeps_headers = True
                value = kept[name.lower()]
            unmasked.append([name, value])
        if headers is not None:
            given["headers"] = unmasked
    if _moves(given.get("url"), stored.get("url")):
        if keeps_headers:
            faults.append(
                Fault("/headers", "must be given again, in full: the target is another, and secrets do not follow")
            )
        if before.body is not None and not any(name in given for name in _BODIES):
            faults.append(
                Fault("/body", "must be given again (or null): the target is another, and the body does not follow")
            )
    elif given.get("method") in ("GET", "HEAD") and before.body and not any(name in given for name in _BODIES):
        faults.append(Fault("/method", f"{given['method']} has no body: take it away with body null"))
    return faults


def _moves(url: Any, stored: Any) -> bool:
    """Whether a new URL has another scheme, host or port."""
    if not isinstance(url, str) or not isinstance(stored, str):
        return False
    try:
        new, old = parse_target(url), parse_target(stored)
    except InvalidInputError:
        return False  # its own fault is told
    return _origin(new) != _origin(old)


def _origin(target: Target) -> tuple[str, str, int]:
    return target.scheme, str(target.host), target.port


def _merged(values: Mapping[str, Any], schedule: Schedule) -> dict[str, Any]:
    """What is stored, with what is given laid over it; one way of timing replaces another."""
    timing, policy = schedule.timing, schedule.policy
    stored: dict[str, Any] = {
        "name": schedule.name,
        "cron": timing.cron,
        "timezone": timing.timezone,
        "every": None if timing.every is None else timing.every.total_seconds(),
        "at": _moment(timing.at),
        "start_at": _moment(timing.start_at),
        "end_at": _moment(timing.end_at),
        "count": timing.most_fires,
        "missed": policy.missed,
        "missed_limit": policy.missed_limit if policy.missed == "all" else None,
        "missed_after": policy.missed_after.total_seconds(),
        "overlap": policy.overlap,
        "jitter": policy.jitter.total_seconds(),
    }
    ways = [name for name in _WAYS if values.get(name) is not None]
    if ways:
        stored.update(dict.fromkeys(_WAYS))
        if ways != ["cron"]:
            stored["timezone"] = None
        if ways == ["at"]:
            stored.update(dict.fromkeys(("start_at", "end_at", "count")))
    if values.get("delay") is not None and "start_at" not in values:
        stored["start_at"] = None
    if values.get("missed", policy.missed) != "all":
        stored["missed_limit"] = None
    return {**stored, **values}


def _edited_timing(given: ScheduleInput, values: Mapping[str, Any], schedule: Schedule, reading: Reading) -> Timing:
    """The timing as edited, in the same phase as before unless a new start is given."""
    before = schedule.timing
    if given.count is not None and given.count <= schedule.made:
        raise InvalidScheduleError([Fault("/count", f"is used up: {schedule.made} jobs were made already")])
    jitter = given.jitter or timedelta(0)
    timing = new_timing(given.asked(), now=reading.now, jitter=jitter, horizon=reading.limits.horizon)
    restarted = values.get("start_at") is not None or values.get("delay") is not None
    if given.every is not None and (restarted or before.every is None):
        return timing
    return replace(timing, anchor=before.anchor)


def _expires_after(value: Any, faults: list[Fault]) -> timedelta | None:
    if value is None:
        return None
    try:
        return _between(SHORTEST, LONGEST)(value)
    except FieldError as error:
        faults.append(Fault("/expires_after", str(error)))
        return None


def _checked(faults: list[Fault], make: Any) -> Any:
    """What is made, or its faults."""
    try:
        return make()
    except InvalidScheduleError as error:
        faults.extend(error.faults)
        return None


def _is_bad(faults: list[Fault], name: str) -> bool:
    return any(fault.pointer.split("/")[1:2] == [name] for fault in faults)


def _hops(template: Template) -> int:
    hops = template.payload.get("hops", 0) if isinstance(template.payload, dict) else 0
    return hops if isinstance(hops, int) else 0


def _url(payload: Any) -> str | None:
    return payload.get("url") if isinstance(payload, dict) else None


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
