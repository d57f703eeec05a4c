"""The query of a list of jobs: filters, page size, cursor. What is not known is refused, never ignored."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.datastructures import QueryParams

from duly.api.problems import invalid
from duly.model import State

MOST = 200
PARAMETERS: list[dict[str, Any]] = [
    {"name": "state", "in": "query", "schema": {"type": "string", "enum": [str(state) for state in State]}},
    {"name": "queue", "in": "query", "schema": {"type": "string"}},
    {"name": "tag", "in": "query", "schema": {"type": "string"}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}},
    {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "next_cursor of the page before"},
]
_KNOWN = frozenset(parameter["name"] for parameter in PARAMETERS)


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs to list. `before`: the last id of the page before."""

    state: State | None = None
    queue: str | None = None
    tag: str | None = None
    before: UUID | None = None
    limit: int = 50


def read_listing(query: QueryParams) -> Listing:
    """Read the query of a list. Raises Problem 422 naming every parameter that is wrong."""
    errors: list[dict[str, str]] = []

    def refuse(parameter: str, detail: str) -> None:
        errors.append({"parameter": parameter[:100], "detail": detail})

    given = dict(query)
    for name in dict.fromkeys(query.keys()):
        if name not in _KNOWN:
            refuse(name, f"is not supported: filter by {', '.join(sorted(_KNOWN))}")
        elif len(query.getlist(name)) > 1:
            refuse(name, "is given more than once")
        elif "\x00" in given[name]:
            refuse(name, "has a NUL character")
    state = given.get("state")
    if state is not None and state not in set(State):
        refuse("state", f"must be one of {', '.join(State)}")
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
    return Listing(State(state) if state else None, given.get("queue"), given.get("tag"), before, int(limit))


def read_flag(query: QueryParams, name: str) -> bool:
    """The one boolean parameter of a call, false if left out. Raises Problem 422, for any other parameter too."""
    errors = [
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
