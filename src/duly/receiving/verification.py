"""Is it from Duly? Signature and time of one request, from its headers and exact body bytes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from duly.model.errors import DulyError, InvalidInputError
from duly.model.webhooks import decode_secret, signature

Secrets: TypeAlias = str | Sequence[str]
"""A signing secret in its text form (whsec_…), or several: the new one and the old while they change."""

TOLERANCE = timedelta(minutes=5)
_SIGNATURES = 20  # looked at; a request with more is no delivery


class VerificationError(DulyError):
    """A request that is not from Duly, or is too old, or was changed on the way."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request that was verified. `job_id` and `body` are signed; `attempt` and `trigger` come from headers that
    are not, and are None where those are missing or make no sense.
    """

    job_id: UUID
    body: bytes
    attempt: int | None
    trigger: str | None


def verify(
    body: bytes,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    secrets: Secrets,
    *,
    tolerance: timedelta = TOLERANCE,
    now_s: float | None = None,
) -> Delivery:
    """Check a request's webhook-id, webhook-timestamp and webhook-signature against its exact body bytes.

    Names of headers in any case. Raises VerificationError; InvalidInputError for a secret or a body that is none.
    """
    if not isinstance(body, bytes):
        raise InvalidInputError("the body is not bytes: hand over the request's raw body, not parsed or decoded")
    keys = [decode_secret(text) for text in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise InvalidInputError("no signing secret was given: one at least is needed")
    found = _lowered(headers)
    message_id, timestamp = _one(found, "webhook-id"), _one(found, "webhook-timestamp")
    signatures = _one(found, "webhook-signature").split(" ")[:_SIGNATURES]
    expected = [signature(key, message_id, timestamp, body).encode() for key in keys]
    matches = [hmac.compare_digest(e, s.encode("utf-8", "replace")) for e in expected for s in signatures]
    if not any(matches):
        raise VerificationError("the signature is not of one of the secrets: check that the secret is this project's")
    _check_time(timestamp, tolerance, time.time() if now_s is None else now_s)
    try:
        job_id = UUID(message_id)
    except ValueError as error:
        raise VerificationError("webhook-id is no job's id") from error
    return Delivery(job_id, body, _count(found.get("duly-attempt")), found.get("duly-trigger"))


def _lowered(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: dict[str, str] = {}
    for name, value in pairs:
        lowered = name.lower()
        if lowered in found and lowered.startswith("webhook-"):
            raise VerificationError(f"the header {lowered} stands there twice")
        found[lowered] = value
    return found


def _one(found: dict[str, str], name: str) -> str:
    value = found.get(name, "")
    if not value:
        raise VerificationError(f"the header {name} is missing: the request is not signed")
    return value


def _check_time(timestamp: str, tolerance: timedelta, now_s: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise VerificationError("webhook-timestamp is no time in seconds")
    away_s = abs(now_s - int(timestamp))
    if away_s > tolerance.total_seconds():
        raise VerificationError(f"the request was signed {away_s:.0f} s away from now: it is old, or a clock is wrong")


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
