"""The query of a list of jobs: filters, page size, cursor. What is not known is refused, never ignored."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.datastructures import QueryParams

from duly.api.problems import invalid
from duly.http.headers import METHODS
from duly.model import State
from duly.queue import JobFilter
from duly.service.faults import FieldError
from duly.service.moments import parse_moment

MOST = 200
_TEXTS = {"queue": 100, "tag": 100, "host": 260, "url_prefix": 8192, "unique_key": 200, "last_error": 200}
_MOMENTS = tuple(f"{what}_{end}" for what in ("created", "run_at", "finished") for end in ("from", "to"))
_STATUS = re.compile(r"[1-5](?:[0-9]{2}|xx)", re.ASCII)
FILTERS: dict[str, dict[str, Any]] = {
    "state": {"type": "string", "description": f"of {', '.join(State)}; several with a comma between"},
    "queue": {"type": "string"},
    "tag": {"type": "string"},
    "host": {"type": "string", "description": "of the URL, without the port"},
    "url_prefix": {"type": "string", "description": "how the canonical URL begins"},
    "method": {"type": "string", "enum": sorted(METHODS)},
    "unique_key": {"type": "string"},
    **{
        name: {"type": "string", "format": "date-time", "description": "included" if "from" in name else "excluded"}
        for name in _MOMENTS
    },
    "last_status_code": {"type": "string", "pattern": _STATUS.pattern, "description": 'such as "404", or "4xx"'},
    "last_error": {"type": "string", "description": "contained in the last attempt's error, in any case"},
    "min_attempts": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
}
PARAMETERS: list[dict[str, Any]] = [
    *({"name": name, "in": "query", "schema": schema} for name, schema in FILTERS.items()),
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}},
    {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "next_cursor of the page before"},
]
_KNOWN = frozenset(parameter["name"] for parameter in PARAMETERS)


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs to list. `before`: the place of the page before."""

    wanted: JobFilter
    before: UUID | None
    limit: int


def read_listing(query: QueryParams) -> Listing:
    """Read the query of a list. Raises Problem 422 naming every parameter that is wrong."""
    errors: list[dict[str, str | int]] = []

    def refuse(parameter: str, detail: str) -> None:
        errors.append({"parameter": parameter[:100], "detail": detail})

    given = dict(query)
    for name in dict.fromkeys(query.keys()):
        if name not in _KNOWN:
            refuse(name, f"is not supported: filter by {', '.join(sorted(_KNOWN))}")
        elif len(query.getlist(name)) > 1:
            refuse(name, "is given more than once")
    wanted, faults = read_filter({name: value for name, value in given.items() if name in FILTERS})
    for name, detail in faults:
        refuse(name, detail)
    limit = given.get("limit", "50")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MOST):
        refuse("limit", f"must be a number from 1 to {MOST}")
    before: UUID | None = None
    if (cursor := given.get("cursor")) is not None:
        before = _read_cursor(cursor)
        if before is None:
            refuse("cursor", "is not a cursor of this list: take next_cursor of the page before")
    if errors:
        raise invalid(errors)
    return Listing(wanted, before, int(limit))


def read_filter(given: Mapping[str, Any]) -> tuple[JobFilter, list[tuple[str, str]]]:
    """A filter from the parameters of a query, or from the members of a JSON object; and what is wrong with it, by
    name.
    """
    read: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for name, value in given.items():
        try:
            if name not in FILTERS:
                raise FieldError(f"is not a filter: there are {', '.join(sorted(FILTERS))}")
            read.update(_condition(name, value))
        except FieldError as error:
            faults.append((name, str(error)))
    for what in ("created", "run_at", "finished"):
        begin, end = read.get(f"{what}_from"), read.get(f"{what}_to")
        if begin is not None and end is not None and begin >= end:
            faults.append((f"{what}_to", f"is not after {what}_from: nothing lies between"))
    return JobFilter(**read), faults


def _condition(name: str, value: Any) -> dict[str, Any]:
    """What one member of a filter asks for. Raises FieldError."""
    if name in _MOMENTS:
        return {name: parse_moment(value)}
    if name == "min_attempts":
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 7:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
            raise FieldError("must be a number from 0 to 1,000,000")
        return {name: value}
    if name == "last_status_code":
        code = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(code, str) or not _STATUS.fullmatch(code):
            raise FieldError('must be a status code or a class, such as 404 or "4xx"')
        low = int(code.replace("xx", "00"))
        return {"status_from": low, "status_to": low + 99 if code.endswith("xx") else low}
    if name == "state":
        states = value.split(",") if isinstance(value, str) else value
        if not isinstance(states, list) or not states or not all(s in set(State) for s in states):
            raise FieldError(f"must be one or more of {', '.join(State)}")
        return {"states": tuple(State(state) for state in dict.fromkeys(states))}
    if name == "method":
        if value not in METHODS:
            raise FieldError(f"must be one of {', '.join(sorted(METHODS))}")
        return {name: value}
    longest = _TEXTS[name]
    if not isinstance(value, str) or not 0 < len(value) <= longest or "\x00" in value or not _is_storable(value):
        raise FieldError(f"must be a text of 1 to {longest} characters")
    return {"error": value} if name == "last_error" else {name: value.lower() if name == "host" else value}


def _is_storable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def read_flag(query: QueryParams, name: str) -> bool:
    """The one boolean parameter of a call, false if left out. Raises Problem 422, for any other parameter too."""
    errors: list[dict[str, str | int]] = [
        {"parameter": key[:100], "detail": f"is not supported: there is only {name}"} for key in query if key != name
    ]
    value = query.get(name, "false")
    if value not in ("true", "false"):
        errors.append({"parameter": name, "detail": "must be true or false"})
    if errors:
        raise invalid(errors)
    return value == "true"


def cursor_after(last: UUID) -> str:
    """The cursor for the page after the given last id. Clients must not look inside."""
    return base64.urlsafe_b64encode(b"j1" + last.bytes).decode("ascii")


def _read_cursor(text: str) -> UUID | None:
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return UUID(bytes=data[2:]) if len(data) == 18 and data.startswith(b"j1") else None
