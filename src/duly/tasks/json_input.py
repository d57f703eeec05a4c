"""Input that becomes jsonb: what PostgreSQL or JSON cannot hold is refused, and the place is named. Nothing is
mended.
"""

from __future__ import annotations

import math
from typing import Any

from duly.model.errors import InvalidInputError
from duly.model.storable import DEPTH_LIMIT, INTEGER_BITS, class_name, json_text

LIMIT_BYTES = 1_000_000


def input_text(value: Any, what: str) -> str:
    """The JSON text of a value of plain JSON types. Raises InvalidInputError that names the place, as
    `order.lines[3]`.
    """
    _check(value, what, 0)
    text = json_text(value)
    if len(text.encode()) > LIMIT_BYTES:
        raise InvalidInputError(
            f"{what}: {len(text.encode()):,} bytes of JSON, and {LIMIT_BYTES:,} are the limit: "
            "store it, and hand over where it is"
        )
    return text


def check_finite(value: Any, at: str) -> None:
    """Raise InvalidInputError for NaN and infinities anywhere in a value of Python's own containers."""
    match value:
        case float() if not math.isfinite(value):
            raise InvalidInputError(f"{at} is {value}, which JSON does not have")
        case dict():
            for key, member in value.items():
                check_finite(member, f"{at}.{key}")
        case list() | tuple() | set() | frozenset():
            for place, item in enumerate(value):
                check_finite(item, f"{at}[{place}]")


def _check(value: Any, at: str, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise InvalidInputError(f"{at} is nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, at)
        case int():
            if value.bit_length() > INTEGER_BITS:
                raise InvalidInputError(f"{at} is an integer of {value.bit_length()} bits: at most {INTEGER_BITS}")
        case float():
            if not math.isfinite(value):
                raise InvalidInputError(f"{at} is {value}, which JSON does not have")
        case dict():
            for key, member in value.items():
                if not isinstance(key, str):
                    raise InvalidInputError(f"{at} has the key {key!r}, which is no text")
                _check_text(key, f"a key of {at}")
                _check(member, f"{at}.{key}", depth + 1)
        case list() | tuple():
            for place, item in enumerate(value):
                _check(item, f"{at}[{place}]", depth + 1)
        case _:
            raise InvalidInputError(f"{at} is of type {class_name(value)}, which JSON does not have")


def _check_text(text: str, at: str) -> None:
    if "\x00" in text:
        raise InvalidInputError(f"{at} holds a NUL character, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{at} holds half a surrogate pair, which is no character") from error
