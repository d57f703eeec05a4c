"""The Retry-After header in both its forms (RFC 9110, section 10.2.3). What makes no sense is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from duly.model.retry import LONGEST

_SECONDS = re.compile(r"[0-9]+(?:\s*,\s*[0-9]+)*", re.ASCII)  # several headers, joined by a proxy
_LONGEST_TEXT = 128


def retry_after(values: Iterable[str], now: datetime) -> timedelta | None:
    """The longest wait asked for, at most a year; None when no header asks for one that lies ahead."""
    waits = [wait for value in values if (wait := _wait(value.strip(), now)) is not None]
    return max(waits, default=None)


def _wait(value: str, now: datetime) -> timedelta | None:
    if len(value) > _LONGEST_TEXT:
        return None
    if _SECONDS.fullmatch(value):
        seconds = max(int(part) for part in value.split(","))
        return _ahead(timedelta(seconds=min(seconds, int(LONGEST.total_seconds()))))
    try:
        at = parsedate_to_datetime(value)
        if at.tzinfo is None:  # "-0000", or the asctime form, which is in UTC by definition
            at = at.replace(tzinfo=UTC)
        return _ahead(min(at - now, LONGEST))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _ahead(wait: timedelta) -> timedelta | None:
    return wait if wait > timedelta(0) else None
