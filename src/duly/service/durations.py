"""Durations as people write them: seconds as a number, or short strings such as "10m", "1h30m", "500ms"."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

from duly.service.faults import FieldError

_LONGEST_TEXT = 40
_PARTS = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m(?!s))?"
    r"(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+(?:\.\d+)?)ms)?",
    re.ASCII,
)
_UNIT_S = {"d": Decimal(86_400), "h": Decimal(3_600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_MOST_S = 100 * 365 * 86_400

FORM = 'a duration: seconds as a number, or a string such as "10m", "1h30m" or "500ms"'


def parse_duration(value: Any) -> timedelta:
    """Read a duration of zero or more, to the microsecond. Raises FieldError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FieldError(f"must be {FORM}")
    seconds = _text_s(value) if isinstance(value, str) else _number_s(value)
    if seconds < 0:
        raise FieldError("must not be negative")
    if seconds > _MOST_S:
        raise FieldError("is too long")
    return timedelta(microseconds=int(seconds * 1_000_000))


def _number_s(value: Any) -> Decimal:
    number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise FieldError(f"must be {FORM}")
    return number


def _text_s(text: str) -> Decimal:
    found = _PARTS.fullmatch(text) if 0 < len(text) <= _LONGEST_TEXT else None
    if found is None:
        raise FieldError(f"must be {FORM}")
    seconds = Decimal(0)
    for unit, unit_s in _UNIT_S.items():
        seconds += Decimal(found[unit] or 0) * unit_s
    return seconds


def show_duration(duration: timedelta) -> str:
    """The duration in the short form, for people: "15m", "1h30m", "500ms"; "0s" for zero."""
    milliseconds = duration // timedelta(milliseconds=1)
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
