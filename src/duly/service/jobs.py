"""From what a caller asks for to a job of kind "http": every rule between fields, all faults at once. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from duly.http.errors import TargetNotAllowedError
from duly.http.headers import check_headers, check_method
from duly.http.policy import EgressPolicy
from duly.http.request import MAX_HOPS, StoredRequest
from duly.http.url import Target, parse_target
from duly.model import NewJob, RetryPolicy, Unique, uuid7, uuid7_time
from duly.model.errors import InvalidInputError
from duly.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, DEFAULT_TIMEOUT
from duly.service.durations import show_duration
from duly.service.faults import BodyTooLargeError, Fault, FieldError, InvalidJobError
from duly.service.moments import in_zone
from duly.service.redaction import Redaction

KIND = "http"
ID_OLDEST = timedelta(hours=24)
ID_AHEAD = timedelta(minutes=10)

_BODYLESS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator lets a job be. `horizon`: how far ahead it may be due."""

    body_bytes: int = 256 * 1024
    metadata_bytes: int = 4 * 1024
    horizon: timedelta = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a caller asks for, each field already of its type; how they fit together is for `new_http_job`.

    At most one of `json` (exact text), `body`, `body_base64` (decoded) may be given, and at most one of `run_at`,
    `delay`, `run_at_local` (with `timezone`). `on_success` and `on_dead` are URLs. `inherits`
    names what the caller left to the queue's defaults. `hops` is how many job services the
    request came through.
    """

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    json: bytes | None = None
    body: bytes | None = None
    body_base64: bytes | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    run_at_local: datetime | None = None
    timezone: ZoneInfo | None = None
    id: UUID | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    queue: str = DEFAULT_QUEUE
    concurrency_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    tags: tuple[str, ...] = ()
    metadata: Any = None
    expires_at: datetime | None = None
    unique_key: str | None = None
    unique_for: Literal["start", "final"] | timedelta | None = None
    on_conflict: Literal["error", "keep", "replace"] | None = None
    on_success: str | None = None
    on_dead: str | None = None
    redact: Redaction | None = None
    inherits: frozenset[str] = frozenset()
    hops: int = 0


def new_http_job(spec: JobSpec, *, now: datetime, policy: EgressPolicy, limits: Limits) -> NewJob:
    """Check a spec as a whole and make the job. Raises InvalidJobError with every fault, or BodyTooLargeError.

    `now` is for telling the past from the future; what is due and when is the database's to say.
    """
    faults: list[Fault] = []
    body = _body(spec, limits, faults)
    request = _request(spec, body, policy, faults)
    run_at = _run_at(spec, now, limits, faults)
    check_id(spec.id, now, faults)
    _check_expiry(spec, run_at, now, faults)
    _check_metadata(spec.metadata, limits, faults)
    unique = _unique(spec, faults)
    on_success = _callback("on_success", spec.on_success, spec.hops, policy, faults)
    on_dead = _callback("on_dead", spec.on_dead, spec.hops, policy, faults)
    if faults or request is None:
        raise InvalidJobError(faults)
    return NewJob(
        kind=KIND,
        payload=request.to_payload()
        if spec.redact is None
        else request.to_payload() | {"redact": spec.redact.to_json()},
        body=body,
        id=spec.id or uuid7(int(now.timestamp() * 1000)),
        queue=spec.queue,
        concurrency_key=spec.concurrency_key,
        priority=spec.priority,
        run_at=run_at,
        delay=spec.delay or None,
        timeout=spec.timeout,
        retry=spec.retry,
        expires_at=spec.expires_at,
        unique=unique,
        tags=spec.tags,
        metadata=spec.metadata,
        on_success=on_success,
        on_dead=on_dead,
        inherits=spec.inherits,
    )


def _body(spec: JobSpec, limits: Limits, faults: list[Fault]) -> bytes | None:
    given = _one_of({"json": spec.json, "body": spec.body, "body_base64": spec.body_base64}, faults)
    if given is None:
        return None
    name, body = given
    if len(body) > limits.body_bytes:
        raise BodyTooLargeError(limits.body_bytes)
    if spec.method in _BODYLESS:
        faults.append(Fault(f"/{name}", f"a {spec.method} request has no body: use POST, or leave the body out"))
    return bytes(body)


def _request(spec: JobSpec, body: bytes | None, policy: EgressPolicy, faults: list[Fault]) -> StoredRequest | None:
    target = _target("url", spec.url, policy, faults)
    method = _method(spec.method, faults)
    headers = _headers(spec, faults)
    if spec.hops >= MAX_HOPS:
        faults.append(Fault("", f"the request came through {MAX_HOPS} job services already: break the loop"))
    if target is None or method is None or headers is None:
        return None
    return StoredRequest(method, target, headers, body, spec.hops)


def _callback(
    name: str, url: str | None, hops: int, policy: EgressPolicy, faults: list[Fault]
) -> dict[str, Any] | None:
    """The payload of a callback, as strict as any other. It counts as many hops as the job: what it sets off may go
    round, but not for ever.
    """
    target = None if url is None else _target(name, url, policy, faults)
    if target is None:
        return None
    return StoredRequest("POST", target, (("Content-Type", "application/json"),), None, hops).to_payload()


def _target(name: str, url: str, policy: EgressPolicy, faults: list[Fault]) -> Target | None:
    try:
        target = parse_target(url)
        policy.check_target(target)
    except (InvalidInputError, TargetNotAllowedError) as error:
        faults.append(Fault(f"/{name}", str(error)))
        return None
    return target


def _method(method: str, faults: list[Fault]) -> str | None:
    try:
        return check_method(method)
    except InvalidInputError as error:
        faults.append(Fault("/method", str(error)))
        return None


def _headers(spec: JobSpec, faults: list[Fault]) -> tuple[tuple[str, str], ...] | None:
    given = spec.headers
    if spec.json is not None and not any(name.lower() == "content-type" for name, _ in given):
        given = (*given, ("Content-Type", "application/json"))
    try:
        return check_headers(given)
    except InvalidInputError as error:
        faults.extend(_header_faults(spec.headers) or [Fault(error.pointer, str(error))])
        return None


def _header_faults(headers: Sequence[tuple[str, str]]) -> list[Fault]:
    faults: list[Fault] = []
    for place, pair in enumerate(headers):
        try:
            check_headers([pair])
        except InvalidInputError as error:
            if error.pointer != "/headers":
                faults.append(Fault(f"/headers/{place}", str(error)))
    return faults


def _run_at(spec: JobSpec, now: datetime, limits: Limits, faults: list[Fault]) -> datetime | None:
    """When it is due, None for now. A time in the past is now: counted from then, its age might be used up already."""
    given = _one_of({"run_at": spec.run_at, "delay": spec.delay, "run_at_local": spec.run_at_local}, faults)
    run_at: datetime | None = None
    if (spec.run_at_local is None) != (spec.timezone is None):
        there, missing = ("run_at_local", "timezone") if spec.timezone is None else ("timezone", "run_at_local")
        faults.append(Fault(f"/{there}", f"goes together with {missing}, which is missing"))
    if given is None:
        return None
    name, _ = given
    if spec.run_at is not None:
        run_at = spec.run_at
    elif spec.run_at_local is not None and spec.timezone is not None:
        try:
            run_at = in_zone(spec.run_at_local, spec.timezone)
        except FieldError as error:
            faults.append(Fault("/run_at_local", str(error)))
    ahead = spec.delay if spec.delay is not None else run_at - now if run_at is not None else timedelta(0)
    if ahead > limits.horizon:
        faults.append(
            Fault(f"/{name}", f"is more than {show_duration(limits.horizon)} ahead, the most this service keeps")
        )
    return run_at if run_at is not None and run_at > now else None


def check_id(job_id: UUID | None, now: datetime, faults: list[Fault]) -> None:
    """Add what is wrong with an id that a client chose."""
    if job_id is None:
        return
    made_at = uuid7_time(job_id)
    if made_at is None:
        faults.append(Fault("/id", "must be a UUID version 7 (RFC 9562): it carries the time at which it was made"))
    elif made_at < now - ID_OLDEST:
        faults.append(Fault("/id", f"was made more than {show_duration(ID_OLDEST)} ago: make a new one for a new job"))
    elif made_at > now + ID_AHEAD:
        ahead = show_duration(ID_AHEAD)
        faults.append(
            Fault("/id", f"carries a time more than {ahead} ahead: set the clock of the machine that makes the ids")
        )


def _check_expiry(spec: JobSpec, run_at: datetime | None, now: datetime, faults: list[Fault]) -> None:
    if spec.expires_at is None:
        return
    if spec.expires_at <= now:
        faults.append(Fault("/expires_at", "is in the past: the job would never start"))
    elif spec.expires_at <= (run_at or now + (spec.delay or timedelta(0))):
        faults.append(Fault("/expires_at", "is not after the time at which the job is due: it would never start"))


def _unique(spec: JobSpec, faults: list[Fault]) -> Unique | None:
    if spec.unique_key is not None:
        return Unique(spec.unique_key, spec.unique_for or "final", spec.on_conflict or "error")
    for name, value in (("unique_for", spec.unique_for), ("on_conflict", spec.on_conflict)):
        if value is not None:
            faults.append(Fault(f"/{name}", "goes together with unique_key, which is missing"))
    return None


def _check_metadata(metadata: Any, limits: Limits, faults: list[Fault]) -> None:
    if metadata is None:
        return
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text.encode()) > limits.metadata_bytes:
        faults.append(Fault("/metadata", f"is longer than {limits.metadata_bytes} bytes of JSON"))


def _one_of(members: Mapping[str, Any], faults: list[Fault]) -> tuple[str, Any] | None:
    """The one member that is given; a fault at every further one."""
    given = [(name, value) for name, value in members.items() if value is not None]
    for name, _ in given[1:]:
        faults.append(Fault(f"/{name}", f"excludes {given[0][0]}: give one of {', '.join(members)}"))
    return given[0] if given else None
