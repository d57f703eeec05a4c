"""What of a job is sealed at rest, and how it is opened again: header values, the body, the answer's excerpt.

Stored payload of a sealed job: `headers` with null for every value, and `sealed`, an object with the id of the `key`
and, if there are headers, all names and values in one envelope (base64). With `sealed` there, the body is an envelope
too. The mark is in the payload, which only this service writes: no bytes of a caller's can pass for it.

An envelope belongs to job, project and URL: a row that was changed to send a secret elsewhere does not open.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from duly.model import ClaimedJob, NewJob
from duly.model.outcomes import Hold, Outcome, Report
from duly.queue import AttemptView, JobView, Owner
from duly.service.jobs import KIND
from duly.service.keyring import Keyring, SealedError, TamperedError, place_of
from duly.service.redaction import Redaction
from duly.service.views import is_secret_header

Place: TypeAlias = Callable[[str, str], bytes]

_QUOTED = re.compile(r'"([^"]+)"')  # as in Digest
_SHORTEST_HIDDEN = 8
"""Shorter values are not searched for in answers: a mask over every "true" says more than it hides."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A claimed job as it is to be sent: its body, and what is stored of its request (`payload`), in the clear.
    `hidden`: the secrets in its headers, which no record of an answer may repeat.
    """

    job: ClaimedJob
    payload: Any
    hidden: tuple[bytes, ...]
    redaction: Redaction


def sealed_job(keyring: Keyring, owner: Owner, job: NewJob, key_id: str | None = None) -> NewJob:
    """The job as it is stored, sealed with the first key or the one named; unchanged if the ring seals nothing.

    The same job, owner and key give the same bytes. Raises KeyMissingError for an id that is not in the ring.
    """
    if not keyring.seals or job.kind != KIND or not isinstance(job.payload, dict):
        return job
    headers = job.payload.get("headers") or []
    if not headers and job.body is None:
        return job
    payload, body = sealed_request(
        keyring, job.payload, job.body, lambda what, url: place_of(what, job.id, owner.project_id, url), key_id
    )
    return replace(job, payload=payload, body=body)


def sealed_request(
    keyring: Keyring, payload: Mapping[str, Any], body: bytes | None, place: Place, key_id: str | None = None
) -> tuple[dict[str, Any], bytes | None]:
    """A request in the clear as it is stored. `place`: of "headers" or "body", with the URL."""
    used = key_id or keyring.first
    url = str(payload.get("url", ""))
    headers = payload.get("headers") or []
    mark: dict[str, Any] = {"key": used}
    if headers:
        pairs = json.dumps(headers, ensure_ascii=False).encode()
        mark["headers"] = base64.b64encode(keyring.seal(pairs, place("headers", url), used)).decode("ascii")
    stored = {**payload, "headers": [[name, None] for name, _ in headers], "sealed": mark}
    return stored, None if body is None else keyring.seal(body, place("body", url), used)


def opened_request(
    keyring: Keyring, payload: Mapping[str, Any], body: bytes | None, place: Place
) -> tuple[dict[str, Any], bytes | None]:
    """What `sealed_request` stored, in the clear. Raises KeyMissingError or TamperedError."""
    url = str(payload.get("url", ""))
    opened = _opened_headers(keyring, payload, place("headers", url))
    return opened, None if body is None else keyring.open(body, place("body", url))


def key_of(payload: Any) -> str | None:
    """The id of the key that a stored payload is sealed with; None: it is not sealed."""
    mark = payload.get("sealed") if isinstance(payload, dict) else None
    return str(mark.get("key")) if isinstance(mark, dict) else None


def opened_claim(keyring: Keyring, job: ClaimedJob) -> Opened:
    """A claimed job with its headers and its body in the clear. Raises KeyMissingError or TamperedError."""
    payload = json.loads(job.payload_json)
    if key_of(payload) is not None:
        payload, body = opened_request(
            keyring, payload, job.body, lambda what, url: place_of(what, job.id, job.project_id, url)
        )
        job = job._replace(body=body)
    redaction = Redaction.of(payload)
    return Opened(job, payload, _hidden(payload, redaction), redaction)


def opened_view(keyring: Keyring, job: JobView) -> JobView:
    """A job as read, its headers (and its body, if it was read) in the clear. Raises KeyMissingError or TamperedError.

    `closed_view` is for those who cannot, or need not, look inside.
    """
    if job.kind != KIND or key_of(job.payload) is None:
        return job
    payload, body = opened_request(
        keyring, job.payload, job.body, lambda what, url: place_of(what, job.id, job.project_id, url)
    )
    return replace(job, payload=payload, body=body)


def closed_view(job: JobView) -> JobView:
    """A job as read without what is sealed in it: header names without values, no body."""
    if job.kind != KIND or key_of(job.payload) is None:
        return job
    payload = {name: value for name, value in job.payload.items() if name != "sealed"}
    return replace(job, payload=payload, body=None)


def kept_outcome(keyring: Keyring, opened: Opened, outcome: Outcome) -> Outcome:
    """The outcome as the ledger may keep it: secrets masked, what is to be redacted left out, the excerpt sealed."""
    if isinstance(outcome, Hold) or outcome.report is None:
        return outcome
    return replace(outcome, report=_kept_report(keyring, opened, outcome.report))


def opened_excerpt(keyring: Keyring, attempt: AttemptView, project_id: int) -> AttemptView:
    """An attempt with its excerpt in the clear, or without it where the key is missing."""
    if not attempt.detail.get("excerpt_sealed") or attempt.excerpt is None:
        return attempt
    try:
        excerpt = keyring.open(attempt.excerpt, place_of(f"excerpt {attempt.number}", attempt.job_id, project_id))
    except SealedError:
        return closed_excerpt(attempt)
    return replace(attempt, excerpt=excerpt)


def closed_excerpt(attempt: AttemptView) -> AttemptView:
    """An attempt without the excerpt if that is sealed."""
    return replace(attempt, excerpt=None) if attempt.detail.get("excerpt_sealed") else attempt


def _opened_headers(keyring: Keyring, payload: Mapping[str, Any], place: bytes) -> dict[str, Any]:
    """The payload without its mark, and with its header values."""
    mark = payload["sealed"]
    found = {name: value for name, value in payload.items() if name != "sealed"}
    if "headers" not in mark:
        return found
    try:
        found["headers"] = json.loads(keyring.open(base64.b64decode(mark["headers"], validate=True), place))
        names_hold = [name for name, _ in found["headers"]] == [name for name, _ in payload["headers"]]
    except (ValueError, TypeError):  # not base64, no pairs: no hand of ours wrote it
        names_hold = False
    if not names_hold:  # under another name a secret value would be shown
        raise TamperedError(key_of(payload) or "?")
    return found


def _hidden(payload: Any, redaction: Redaction) -> tuple[bytes, ...]:
    """Values of secret headers: whole, without a leading scheme ("Bearer …"), each cookie, each quoted part."""
    headers = payload.get("headers") if isinstance(payload, dict) else None
    pairs = headers if isinstance(headers, list) else []  # SQL can store anything: whoever sends it will refuse it
    values = [
        pair[1]
        for pair in pairs
        if isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(part, str) for part in pair)
        and (is_secret_header(pair[0]) or redaction.names(pair[0]))
    ]
    parts = {part.encode() for value in values for part in _parts(value)}
    return tuple(sorted(part for part in parts if len(part) >= _SHORTEST_HIDDEN))


def _parts(value: str) -> Iterator[str]:
    yield value
    yield value.rpartition(" ")[2]
    yield from _QUOTED.findall(value)
    if ";" in value or "=" in value:
        yield from (cookie.partition("=")[2].strip(' "') for cookie in value.split(";"))


def _kept_report(keyring: Keyring, opened: Opened, report: Report) -> Report:
    detail = dict(report.detail)
    if "response_headers" in detail:
        detail["response_headers"] = opened.redaction.masked(detail["response_headers"])
    excerpt = report.excerpt
    if opened.redaction.response:
        excerpt = None
    elif excerpt and keyring.seals:
        place = place_of(f"excerpt {opened.job.attempt}", opened.job.id, opened.job.project_id)
        excerpt = keyring.seal(excerpt, place)
        detail["excerpt_sealed"] = True
    return replace(report, excerpt=excerpt, detail=detail)
