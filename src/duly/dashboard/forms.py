"""Forms as the API's inputs: what a field holds becomes a member, and the API's own rules read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from duly.api.objects import parse_object

Model = TypeVar("Model", bound=BaseModel)

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,18}\.\d{1,18}", re.ASCII)


def read_input(members: Mapping[str, Any], model: type[Model]) -> Model:
    """The members that are given, read as a body of the API. Raises as that does."""
    return parse_object(as_body(members), model)


def as_body(members: Mapping[str, Any]) -> str:
    """JSON; members that are None, or hold nothing else, are left out."""
    return json.dumps(_given(members))


def number(value: str) -> int | float | str | None:
    """A number as a number, so that the API's rules see one; other text, a duration say, as it is. None for nothing."""
    value = value.strip()
    if _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value or None


def text(value: str) -> str | None:
    """What was written, without spaces around; None for nothing."""
    return value.strip() or None


def listed(value: str) -> list[str]:
    """What was written with commas or spaces between."""
    return value.replace(",", " ").split()


def _given(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    parts = {name: _given(part) for name, part in value.items()}
    return {name: part for name, part in parts.items() if part is not None and part != {}}
