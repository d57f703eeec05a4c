"""The query of a list of settings: filters, page size, cursor. What is not known is refused, never ignored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from starlette.datastructures import QueryParams

from duly.api.inputs import read_uuid
from duly.api.problems import invalid

MOST = 200
_MARK = b"s1"
Item = TypeVar("Item")

PARAMETERS: list[dict[str, Any]] = [
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}},
    {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "next_cursor of the page before"},
]


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list to show. `after`: the last id of the page before. `filters`: as they were given."""

    after: UUID | None
    limit: int
    filters: Mapping[str, str]

    def id_of(self, name: str) -> UUID | None:
        """A filter that is an id. Raises Problem 422."""
        if name not in self.filters:
            return None
        try:
            return read_uuid(self.filters[name])
        except ValueError as error:
            raise invalid([{"parameter": name, "detail": str(error)}]) from None


def read_page(query: QueryParams, filters: Sequence[str] = ()) -> Page:
    """Read the query of a list. Raises Problem 422 naming every parameter that is wrong."""
    known = (*filters, "limit", "cursor")
    errors: list[dict[str, str]] = []
    for name in dict.fromkeys(query.keys()):
        if name not in known:
            errors.append(_fault(name, f"is not supported: there are {', '.join(known)}"))
        elif len(query.getlist(name)) > 1:
            errors.append(_fault(name, "is given more than once"))
        elif "\x00" in query[name]:
            errors.append(_fault(name, "has a NUL character"))
    limit = query.get("limit", "50")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MOST):
        errors.append(_fault("limit", f"must be a number from 1 to {MOST}"))
    after = None
    if "cursor" in query:
        after = _read_cursor(query["cursor"])
        if after is None:
            errors.append(_fault("cursor", "is not a cursor of this list: take next_cursor of the page before"))
    if errors:
        raise invalid(errors)
    return Page(after, int(limit), {name: query[name] for name in filters if name in query})


def refuse_parameters(query: QueryParams) -> None:
    """For calls that have none. Raises Problem 422."""
    if query:
        raise invalid([_fault(name, "is not supported: this call has no parameters") for name in dict.fromkeys(query)])


def page_json(
    items: Sequence[Item], page: Page, shown: Callable[[Item], dict[str, Any]], id_of: Callable[[Item], UUID]
) -> dict[str, Any]:
    """The page; `items` has one more than fits if there are more."""
    there = items[: page.limit]
    more = len(items) > len(there)
    cursor = base64.urlsafe_b64encode(_MARK + id_of(there[-1]).bytes).decode("ascii") if more else None
    return {"data": [shown(item) for item in there], "next_cursor": cursor}


def parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A filter, for the OpenAPI document."""
    return {"name": name, "in": "query", "schema": {"type": "string", **schema}, "description": description}


def _fault(name: str, detail: str) -> dict[str, str]:
    return {"parameter": name[:100], "detail": detail}


def _read_cursor(text: str) -> UUID | None:
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return UUID(bytes=data[2:]) if len(data) == 18 and data.startswith(_MARK) else None
