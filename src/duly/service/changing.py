"""Changing a job that waits: from what a caller asks for to what is stored, every rule, all faults at once. Pure.

The target stays: a secret that is kept with "***" can go nowhere but where it went before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duly.http.headers import check_headers
from duly.model import NewJob, RetryPolicy
from duly.model.errors import InvalidInputError
from duly.queue import Change, JobView, Owner
from duly.service.durations import show_duration
from duly.service.faults import BodyTooLargeError, Fault, InvalidJobError
from duly.service.jobs import Limits
from duly.service.keyring import Keyring
from duly.service.redaction import Redaction
from duly.service.sealing import sealed_job
from duly.service.views import MASK, is_secret_header

_BODYLESS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class ChangeSpec:
    """What a caller asks for, each field of its type; None: it stays. At most one of `json`, `body`, `body_base64`.

    `retry` makes the new policy from the present one.
    """

    run_at: datetime | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    json: bytes | None = None
    body: bytes | None = None
    body_base64: bytes | None = None
    retry: Callable[[RetryPolicy], RetryPolicy] | None = None
    priority: int | None = None
    tags: tuple[str, ...] | None = None

    @property
    def touches_the_request(self) -> bool:
        """Whether headers and body must be known in the clear to make the change."""
        return any(part is not None for part in (self.headers, self.json, self.body, self.body_base64))


def change_of(spec: ChangeSpec, job: JobView, *, now: datetime, limits: Limits, keyring: Keyring) -> Change:
    """The change as it is stored, sealed. `job` is opened, with its body, if the spec touches the request.

    Raises InvalidJobError with every fault, or BodyTooLargeError.
    """
    faults: list[Fault] = []
    if spec.run_at is not None and spec.run_at - now > limits.horizon:
        ahead = show_duration(limits.horizon)
        faults.append(Fault("/run_at", f"is more than {ahead} ahead, the most this service keeps"))
    payload, body = (None, None)
    if spec.touches_the_request:
        payload, body = _request(spec, job, limits, keyring, faults)
    if faults:
        raise InvalidJobError(faults)
    retry = None if spec.retry is None else spec.retry(job.retry)
    return Change(spec.run_at, payload, body, retry, spec.priority, spec.tags)


def _request(
    spec: ChangeSpec, job: JobView, limits: Limits, keyring: Keyring, faults: list[Fault]
) -> tuple[Any, bytes | None]:
    given = {"json": spec.json, "body": spec.body, "body_base64": spec.body_base64}
    bodies = [(name, value) for name, value in given.items() if value is not None]
    faults.extend(
        Fault(f"/{name}", f"excludes {bodies[0][0]}: give one of {', '.join(given)}") for name, _ in bodies[1:]
    )
    body = bodies[0][1] if bodies else job.body
    if body is not None and len(body) > limits.body_bytes:
        raise BodyTooLargeError(limits.body_bytes)
    if bodies and body and job.payload.get("method") in _BODYLESS:
        faults.append(Fault(f"/{bodies[0][0]}", f"a {job.payload['method']} request has no body"))
    headers = [(str(name), str(value)) for name, value in job.payload.get("headers", ())]
    if spec.headers is not None:
        headers = _unmasked(spec.headers, headers, Redaction.of(job.payload), faults)
    if spec.json is not None and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/json"))
    try:
        check_headers(headers)
    except InvalidInputError as error:
        faults.append(Fault(error.pointer, str(error)))
    payload = {**job.payload, "headers": [[name, value] for name, value in headers]}
    stored = NewJob(job.kind, payload, body, id=job.id)
    sealed = sealed_job(keyring, Owner(job.account_id, job.project_id), stored)
    return sealed.payload, sealed.body


def _unmasked(
    given: tuple[tuple[str, str], ...], present: list[tuple[str, str]], redaction: Redaction, faults: list[Fault]
) -> list[tuple[str, str]]:
    """The headers with the values that "***" stands for: the first mask of a name keeps its first value, and so on."""
    kept: dict[str, list[str]] = defaultdict(list)
    for name, value in present:
        kept[name.lower()].append(value)
    unmasked: list[tuple[str, str]] = []
    for place, (name, value) in enumerate(given):
        if value == MASK and (is_secret_header(name) or redaction.names(name)):
            if not kept[name.lower()]:
                faults.append(Fault(f"/headers/{place}", f"has no value that {MASK} could keep: give one"))
                continue
            value = kept[name.lower()].pop(0)
        unmasked.append((name, value))
    return unmasked
