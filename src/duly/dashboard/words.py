"""How values read on a page. Pure."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlsplit

from markupsafe import Markup

from duly.model import JobDefaults
from duly.service.durations import show_duration

SAID: Final = {
    "cancelled": "Cancelled. It will not run.",
    "requested": "It runs at the moment, and will not run again.",
    "final": "It had already ended: nothing was changed.",
    "run": "It is due now.",
    "wrong_state": "The job's state does not allow this any more: nothing was changed.",
    "redriven": "Redriven: it is due now, with a fresh budget of attempts.",
    "key_taken": "Another job holds its unique key by now: nothing was changed.",
    "expired": "It has expired and may not start any more: nothing was changed.",
    "signed_out": "You are signed out.",
    "replayed": "This is the new job: a copy, due now.",
    "queue_paused": "Paused: none of its jobs starts. What runs goes on.",
    "queue_resumed": "Resumed: what is due starts, within the limits.",
    "queue_set": "Set. It binds from now on; what runs goes on.",
    "queue_unset": "Nothing is set for it any more.",
    "schedule_paused": "Paused: no fires until it is resumed.",
    "schedule_resumed": "It fires again.",
    "schedule_ran": "A job was made of it; it is the first fire below.",
    "account_made": "Made. It needs a project and a key next.",
    "account_disabled": "Disabled: its keys are refused and none of its jobs starts. What runs ends as ever.",
    "account_enabled": "Enabled: what waited goes on.",
    "key_revoked": "Revoked: the key is refused everywhere.",
    "secret_ended": "Ended: it signs no more, within ten seconds.",
}
"""What a page says after an action; the address carries the name only."""

OUTCOMES: Final = {
    "success": "succeeded",
    "http_error": "HTTP error",
    "dns_error": "name not found",
    "connect_refused": "connection refused",
    "connect_timeout": "connecting took too long",
    "tls_error": "TLS error",
    "timeout": "timed out",
    "protocol_error": "not HTTP",
    "target_not_allowed": "target not allowed",
    "worker_lost": "worker lost",
    "cancelled": "cancelled",
    "interrupted": "interrupted",
}
REASONS: Final = {
    "attempts_exhausted": "attempts exhausted",
    "max_age": "too old to retry",
    "permanent": "permanent failure",
    "target_gone": "target gone",
    "stopped_by_target": "stopped by target",
    "target_not_allowed": "target not allowed",
    "expired": "expired",
    "worker_lost": "worker lost",
}

_HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})


def visible(value: Any) -> Any:
    """Text in which no character hides or turns the text around it: those show as \\u{202e}."""
    if isinstance(value, Markup) or not isinstance(value, str) or (value.isascii() and value.isprintable()):
        return value
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else f"\\u{{{ord(c):x}}}" for c in value)


def age(duration: timedelta | float | None) -> str:
    """A duration in its two largest units: 0.12 s, 4.2 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    if duration is None:
        return "–"
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    seconds = max(seconds, 0.0)
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "0 ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, name, below, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def short(duration: timedelta | None) -> str:
    """A duration as people write it into a form: 15m, 1h30m; nothing for none."""
    return "" if duration is None else show_duration(duration)


def defaults(given: JobDefaults) -> str:
    """What a queue gives its new jobs, in a line."""
    parts = [
        f"{show_duration(given.timeout)} each" if given.timeout else "",
        f"{given.max_attempts} attempts" if given.max_attempts else "",
        f"{given.backoff.kind} backoff" if given.backoff else "",
        f"{show_duration(given.max_age)} in all" if given.max_age else "",
        f"on {given.on if isinstance(given.on, str) else ', '.join(map(str, given.on))}" if given.on else "",
    ]
    return " · ".join(filter(None, parts)) or "–"


def size(number_bytes: int) -> str:
    """In the unit that reads well: 900 bytes, 64 KiB, 1.5 MiB."""
    if number_bytes < 1024:
        return f"{number_bytes} bytes"
    unit, per = ("KiB", 1024) if number_bytes < 1024**2 else ("MiB", 1024**2)
    return f"{number_bytes / per:,.1f}".removesuffix(".0") + f" {unit}"


def count(number: float | None) -> str:
    """12,345"""
    return "–" if number is None else f"{number:,.0f}"


def rate(per_second: float) -> str:
    """A pace that reads well: 1,234/s, 12.5/s, 0.4/s, 3/min."""
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    if per_second >= 0.5:
        return f"{per_second:.1f}/s"
    return f"{per_second * 60:.1f}/min".replace(".0/", "/")


def percent(share: float | None) -> str:
    """99.9 %, never rounded up to 100 %."""
    if share is None:
        return "–"
    if share >= 1:
        return "100 %"
    return f"{min(share * 100, 99.9):.1f} %"


def moment(at: datetime | None) -> Markup:
    """A time in UTC, exact for machines."""
    if at is None:
        return Markup("–")
    utc = at.astimezone(UTC)
    text = utc.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}Z">{}</time>').format(utc.strftime("%Y-%m-%dT%H:%M:%S.%f"), text)


def clock(at: datetime) -> str:
    """The time of day in UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def host(url: str | None) -> str:
    """Host and port of a URL as stored; the text itself where it is none."""
    if not url:
        return "–"
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url[:100]
    except ValueError:
        return url[:100]


def origin(url: str | None) -> str | None:
    """How all URLs of the same scheme, host and port begin; None where it is none."""
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc}/" if parts.scheme and parts.netloc else None


def asked(wanted: Mapping[str, Any]) -> str:
    """A filter in words, as an operation stores it."""
    given = dict(wanted)
    parts = [", ".join(given.pop("states", ()))]
    least, most = given.pop("status_from", None), given.pop("status_to", None)
    if least is not None:
        parts.append(f"status {least}" if least == most else f"status {least} to {most}")
    parts += [f"{name.replace('_', ' ')} {value}" for name, value in sorted(given.items())]
    return "; ".join(part for part in parts if part)


def outcome(name: str | None) -> str:
    return "–" if name is None else OUTCOMES.get(name, name.replace("_", " "))


def reason(name: str | None) -> str:
    return "–" if name is None else REASONS.get(name, name.replace("_", " "))


def as_json(value: Any) -> str:
    """JSON with every digit as it was, for reading."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def short_id(value: Any) -> str:
    """The end of an id: its beginning is the time, and much like that of its neighbours."""
    return f"…{str(value)[-8:]}"


def part_of_url(value: Any) -> str:
    """Quoted for a query."""
    return quote(str(value), safe="")


FILTERS: Final = {
    "asked": asked,
    "age": age,
    "count": count,
    "rate": rate,
    "percent": percent,
    "moment": moment,
    "clock": clock,
    "host": host,
    "outcome": outcome,
    "reason": reason,
    "as_json": as_json,
    "short_id": short_id,
    "q": part_of_url,
    "short": short,
    "size": size,
    "defaults": defaults,
}
