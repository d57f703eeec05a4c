"""A job as one line of NDJSON: the body of POST /v1/jobs, and beside it whose it is, what sort, and what became of it.

Pure. What `line_of` writes `read_line` reads; a line written by hand may leave out everything but the URL.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from duly.api.creation import fitted_job, job_values
from duly.api.inputs import read_uuid
from duly.api.strict_json import MalformedJsonError, Member, pointer, read_members
from duly.http import EgressPolicy
from duly.model import FINAL, NewJob, RetryPolicy
from duly.model.jobs import Unique
from duly.queue import JobView
from duly.service import BodyTooLargeError, FieldError, Keyring, Limits, SealedError
from duly.service.durations import parse_duration
from duly.service.faults import Fault
from duly.service.jobs import KIND
from duly.service.moments import parse_moment, show_moment
from duly.service.redaction import Redaction
from duly.service.sealing import closed_view, opened_view

MASKED = "was masked when it was exported: export it with --secrets"
_OF_HTTP: Final = ("url", "method", "headers", "json", "body", "redact")
_ANY_URL: Final = "https://example.com/"
_LONGEST_KIND: Final = 200
_ENDED: Final = [str(state) for state in FINAL]


@dataclass(frozen=True, slots=True)
class Given:
    """What a line asks for. `id`: the job's where it came from, None if it names none; `job` has another one."""

    job: NewJob
    id: UUID | None = None
    account: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A line that asks for nothing any more: its job had ended where it came from, or may not start any more."""

    why: str


def line_of(job: JobView, account: str, project: str, keyring: Keyring | None) -> dict[str, Any]:
    """A job, read with its body, as a line. Without a keyring what is sealed or secret is masked, and `was.masked`
    says what; so it is with one that cannot open it.
    """
    masked: list[str] = []
    is_sealed = False
    if keyring is not None:
        try:
            job = opened_view(keyring, job)
        except SealedError:
            is_sealed = True
    payload = job.payload if isinstance(job.payload, dict) else {}
    shown = closed_view(job)
    body, headers = shown.body, [list(pair) for pair in payload.get("headers") or ()]
    if job.kind == KIND and (keyring is None or is_sealed):
        redaction = Redaction.of(payload)
        found, headers = headers, redaction.masked(headers)
        masked += [f"headers/{place}" for place, pair in enumerate(headers) if pair != found[place]]
        body = None if redaction.body else body
    if job.has_body and body is None:
        masked.append("body")
    line: dict[str, Any] = {"id": str(job.id), "account": account, "project": project}
    if job.kind == KIND:
        line |= {"url": payload.get("url"), "method": payload.get("method"), "headers": headers}
        line["redact"] = Redaction.of(payload).to_json() if "redact" in payload else None
        line["retry"] = _retry_input(job.retry)
    else:
        line |= {"kind": job.kind, "payload": job.payload}
        line["retry"] = {"max_attempts": job.max_attempts, **(job.retry.to_json() or {})}
    line |= _body(body, job.kind)
    line |= {
        "queue": job.queue,
        "concurrency_key": job.concurrency_key,
        "priority": job.priority,
        "tags": list(job.tags) or None,
        "metadata": job.metadata,
        "timeout": round(job.timeout.total_seconds(), 3),  # a four-byte float in the table
        "run_at": show_moment(job.next_run_at or job.run_at),
        "expires_at": _moment(job.expires_at),
        "unique_key": job.unique and job.unique.key,
        "unique_for": job.unique and _unique_for(job.unique),
        "on_success": _url(job.on_success),
        "on_dead": _url(job.on_dead),
    }
    return {name: value for name, value in line.items() if value is not None} | {"was": _was(job, masked)}


def read_line(
    text: str, *, now: datetime, policy: EgressPolicy, limits: Limits, with_ended: bool = False
) -> Given | LeftOut | list[Fault]:
    """Read a line, or say what is wrong with it. `with_ended`: jobs that had ended are read too."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        return [Fault("", str(error).replace("the body", "it").replace("line 1, ", ""))]
    was = members.pop("was", Member({}, "")).value
    if not isinstance(was, dict):
        faults.append(Fault("/was", "must be an object"))
        was = {}
    if (why := _left_out(was, members, now, with_ended)) and not faults:
        return LeftOut(why)
    masked = was.get("masked")
    faults += [Fault(f"/{place}", MASKED) for place in masked] if isinstance(masked, list) else []
    account, project = (_name(name, members, faults) for name in ("account", "project"))
    job_id = _id(members, faults)
    kind = members.pop("kind", Member(KIND, "")).value
    try:
        if kind == KIND:
            job, more = fitted_job(job_values(members), faults, now=now, policy=policy, limits=limits)
        else:
            job, more = _other_kind(kind, members, faults, now=now, policy=policy, limits=limits)
    except BodyTooLargeError as error:
        job, more = None, [Fault("/body", str(error))]
    faults += more
    return faults if faults or job is None else Given(job, job_id, account, project)


def _left_out(was: dict[str, Any], members: dict[str, Member], now: datetime, with_ended: bool) -> str | None:
    if "state" not in was:
        return None
    if was["state"] in _ENDED and not with_ended:
        return "ended"
    try:
        return "expired" if "expires_at" in members and parse_moment(members["expires_at"].value) <= now else None
    except FieldError:  # it is told with all else
        return None


def _name(name: str, members: dict[str, Member], faults: list[Fault]) -> str | None:
    value = members.pop(name, Member(None, "")).value
    if value is None or isinstance(value, str):
        return value
    faults.append(Fault(f"/{name}", "must be a string"))
    return None


def _id(members: dict[str, Member], faults: list[Fault]) -> UUID | None:
    value = members.pop("id", Member(None, "")).value
    try:
        return None if value is None else read_uuid(value)
    except FieldError as error:
        faults.append(Fault("/id", str(error)))
        return None


def _other_kind(
    kind: Any, members: dict[str, Member], known: list[Fault], *, now: datetime, policy: EgressPolicy, limits: Limits
) -> tuple[NewJob | None, list[Fault]]:
    """A job that is no HTTP request: a kind, a payload, and what all jobs have in common."""
    faults: list[Fault] = []
    if not (isinstance(kind, str) and 0 < len(kind) <= _LONGEST_KIND and kind.isprintable()):
        faults.append(Fault("/kind", f"must be a text of 1 to {_LONGEST_KIND} characters"))
    faults += [Fault(f"/{name}", f"is for jobs of kind {KIND}") for name in _OF_HTTP if name in members]
    if "payload" not in members:
        faults.append(Fault("/payload", "is required for other kinds than http"))
    payload = members.pop("payload", Member(None, "")).value
    retry = _stored_retry(members.pop("retry", Member({}, "")).value, faults)
    timeout = _stored_timeout(members.pop("timeout", Member(30, "")).value, faults)
    common = {name: member for name, member in members.items() if name not in _OF_HTTP}
    values = {"url": _ANY_URL} | job_values(common)
    job, more = fitted_job(values, [*known, *faults], now=now, policy=policy, limits=limits)
    faults += more
    if job is None:
        return None, faults
    return replace(job, kind=str(kind), payload=payload, retry=retry, timeout=timeout, inherits=frozenset()), faults


def _stored_retry(value: Any, faults: list[Fault]) -> RetryPolicy:
    """As it was stored: tasks may have plans that the API does not take."""
    attempts = value.get("max_attempts", RetryPolicy().max_attempts) if isinstance(value, dict) else None
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= 10_000:
        faults.append(Fault(pointer("retry"), "must be an object with max_attempts, a number from 1 to 10,000"))
        return RetryPolicy()
    return RetryPolicy.from_json(value, attempts)


def _stored_timeout(value: Any, faults: list[Fault]) -> timedelta:
    try:
        return parse_duration(value)
    except FieldError as error:
        faults.append(Fault("/timeout", str(error)))
        return timedelta(0)


def _retry_input(retry: RetryPolicy) -> dict[str, Any]:
    """As the API takes it: each kind of backoff with its own parts."""
    backoff = retry.backoff
    delays: dict[str, Any] = {"kind": backoff.kind, "max": backoff.max.total_seconds(), "jitter": backoff.jitter}
    match backoff.kind:
        case "steps":
            delays["steps"] = [step.total_seconds() for step in backoff.steps]
        case "exponential":
            delays |= {"base": backoff.base.total_seconds(), "factor": backoff.factor}
        case _:
            delays["base"] = backoff.base.total_seconds()
    return {
        "max_attempts": retry.max_attempts,
        "backoff": delays,
        "max_age": retry.max_age.total_seconds(),
        "on": retry.on if isinstance(retry.on, str) else list(retry.on),
    }


def _body(body: bytes | None, kind: str) -> dict[str, str]:
    if body is None:
        return {}
    if kind == KIND:
        try:
            return {"body": body.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"body_base64": base64.b64encode(body).decode("ascii")}


def _was(job: JobView, masked: list[str]) -> dict[str, Any]:
    """How it stands where it comes from, and how it came to that."""
    was = {
        "state": str(job.state),
        "reason": job.reason,
        "created_at": show_moment(job.created_at),
        "run_at": show_moment(job.run_at),
        "started_at": _moment(job.started_at),
        "finished_at": _moment(job.finished_at),
        "attempts": job.attempts,
        "last_outcome": job.last_outcome,
        "last_status_code": job.last_status_code,
        "last_error": job.last_error,
        "callback_of": job.callback_of and str(job.callback_of),
        "replay_of": job.replay_of and str(job.replay_of),
        "masked": masked or None,
    }
    return {name: value for name, value in was.items() if value is not None}


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else show_moment(moment)


def _url(payload: Any) -> str | None:
    return payload.get("url") if isinstance(payload, dict) else None


def _unique_for(unique: Unique) -> str | float:
    return unique.until.total_seconds() if isinstance(unique.until, timedelta) else f"until_{unique.until}"
