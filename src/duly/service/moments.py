"""Moments as people write them: RFC 3339 with an offset, or a local time and a time zone; always UTC inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from duly.service.faults import FieldError
from duly.service.zones import NO_ZONE, zone_named

_LOCAL = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII
)  # fmt: skip
_OFFSET = re.compile(r"[Zz]|([+-])(\d\d):(\d\d)", re.ASCII)

_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_OUTSIDE = "lies outside the years 1 to 9999"
NEEDS_OFFSET = (
    "needs an offset, such as Z or +02:00: a time without one means different moments in different places "
    "(for a local time use run_at_local with timezone)"
)


def parse_moment(value: Any) -> datetime:
    """Read an RFC 3339 date-time as UTC; digits beyond microseconds are dropped.

    A leap second (":60") is the first moment of the next minute. Raises FieldError.
    """
    if not isinstance(value, str):
        raise FieldError('must be a string with an RFC 3339 date-time, such as "2030-01-31T09:00:00Z"')
    local = _LOCAL.match(value)
    if local is None or local[6] is None:
        raise FieldError('must be an RFC 3339 date-time with seconds and an offset, such as "2030-01-31T09:00:00Z"')
    if local.end() == len(value):
        raise FieldError(NEEDS_OFFSET)
    offset = _OFFSET.fullmatch(value, local.end())
    if offset is None or (offset[1] and (int(offset[2]) > 23 or int(offset[3]) > 59)):
        raise FieldError("ends with an offset that is neither Z nor ±hh:mm")
    shift = timedelta(0)
    if offset[1]:
        shift = timedelta(hours=int(offset[2]), minutes=int(offset[3])) * (1 if offset[1] == "+" else -1)
    try:
        return _in_calendar(_moment(local).replace(tzinfo=timezone(shift)).astimezone(UTC))
    except OverflowError:
        raise FieldError(_OUTSIDE) from None


def parse_local(value: Any) -> datetime:
    """Read a local date-time without an offset ("2030-01-31T09:00", seconds optional). Raises FieldError."""
    local = _LOCAL.match(value) if isinstance(value, str) else None
    if local is None:
        raise FieldError('must be a local date-time such as "2030-01-31T09:00:00"')
    if local.end() != len(value):
        raise FieldError("must not carry an offset: the time zone says it (for a time with an offset use run_at)")
    return _moment(local)


def parse_zone(value: Any) -> ZoneInfo:
    """Read the name of an IANA time zone. Raises FieldError."""
    if not isinstance(value, str):
        raise FieldError(NO_ZONE)
    return zone_named(value)


def in_zone(local: datetime, zone: ZoneInfo) -> datetime:
    """The moment of a local time, in UTC. A skipped time moves forward by the gap; a repeated one is its first.

    fold=0 says just that: in a gap the offset from before it applies (PEP 495). Raises FieldError beyond the calendar.
    """
    try:
        return _in_calendar(local.replace(tzinfo=zone, fold=0).astimezone(UTC))
    except OverflowError:
        raise FieldError(_OUTSIDE) from None


def _in_calendar(moment: datetime) -> datetime:
    """Not on the first and the last day: asyncpg takes their ends for infinities, and other zones have no such day."""
    if not _FIRST <= moment < _LAST:
        raise FieldError(_OUTSIDE)
    return moment


def show_moment(moment: datetime) -> str:
    """RFC 3339 in UTC with `Z`, microseconds if there are any."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _moment(local: re.Match[str]) -> datetime:
    second = int(local[6] or 0)
    fraction = (local[7] or "").ljust(6, "0")[:6]
    try:
        moment = datetime(  # noqa: DTZ001 (the caller knows the zone)
            int(local[1]), int(local[2]), int(local[3]), int(local[4]), int(local[5]), min(second, 59), int(fraction)
        )
        if second > 60:
            raise ValueError
        return moment if second < 60 else moment.replace(microsecond=0) + timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise FieldError("is not a date and time of the calendar") from None
