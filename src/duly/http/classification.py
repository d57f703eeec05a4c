"""What an answer means for the job. Pure; the status alone decides, never the body."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from duly.http.retry_after import retry_after
from duly.model.states import DeadReason

RetryOn = str | tuple[int | str, ...]

# RFC 9110: a time-out, 425 (RFC 8470) and 429 (RFC 6585) say "later"; 501 and 505 say "never".
_RETRIED_4XX = frozenset({408, 425, 429})
_PERMANENT_5XX = frozenset({501, 505})


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` success, retry or bury; `reason` only for bury; `at_least` only for retry; `error` one line, None for
    success."""

    kind: Literal["success", "retry", "bury"]
    result: str
    error: str | None = None
    reason: DeadReason | None = None
    at_least: timedelta | None = None


def classify_response(status: int, headers: Iterable[tuple[str, str]], retry_on: RetryOn, now: datetime) -> Verdict:
    """The verdict on a status and its headers (any case), under `RetryPolicy.on`, at the time `now`."""
    if 200 <= status <= 299:
        return Verdict("success", "success")
    fields = [(name.lower(), value) for name, value in headers]
    error = f"the target answered {status}"
    if 100 <= status <= 199:
        return Verdict("retry", "protocol_error", f"{error}, which is not a final answer")
    if any(name == "duly-retry" and value.strip().lower() == "no" for name, value in fields):
        return Verdict("bury", "http_error", f"{error} and asked for no further attempts", DeadReason.STOPPED_BY_TARGET)
    if is_retried(status, retry_on):
        wait = retry_after((value for name, value in fields if name == "retry-after"), now)
        return Verdict("retry", "http_error", error, at_least=wait)
    if 300 <= status <= 399:
        return Verdict("bury", "http_error", f"{error}: redirects are not followed", DeadReason.PERMANENT)
    return Verdict("bury", "http_error", error, DeadReason.TARGET_GONE if status == 410 else DeadReason.PERMANENT)


def is_retried(status: int, retry_on: RetryOn) -> bool:
    """True if a failed status is worth another attempt. A list replaces the default; classes are written like "5xx"."""
    if retry_on == "all_non_2xx":
        return True
    if isinstance(retry_on, tuple):
        return status in retry_on or f"{class_of(status)}xx" in retry_on or str(status) in retry_on
    if status in _RETRIED_4XX:
        return True
    return class_of(status) == 5 and status not in _PERMANENT_5XX


def class_of(status: int) -> int:
    """The first digit; 5 for what is no status at all, to be read as a server error (RFC 9110, section 15)."""
    return status // 100 if 100 <= status <= 599 else 5
