"""Make any text or JSON value storable in PostgreSQL, so that recording an outcome never fails.

PostgreSQL's text cannot hold NUL or half a surrogate pair, its jsonb holds neither NaN nor Infinity, and a message of
50 MB helps nobody. What is captured (errors, answers) is mended here; what users hand in is refused at the edge
instead.
"""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Any

ERROR_LIMIT = 2_000
_DEPTH_LIMIT = 64
_INTEGER_BITS = 1024
_PARTS_LIMIT = 100_000


def storable_text(text: str, limit: int = ERROR_LIMIT) -> str:
    """Cut to `limit` characters; NUL becomes U+2400, half a surrogate pair U+FFFD."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if "\x00" in text:
        text = text.replace("\x00", "\u2400")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_surrogate(text) else text


def storable_json(value: Any) -> str:
    """JSON text that jsonb accepts: NaN and infinities become strings, other foreign values their `repr`."""
    return json.dumps(_Mender().mended(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def describe(error: BaseException) -> str:
    """`Class: message` for any exception, even one whose `str` raises."""
    try:
        message = str(error)
    except Exception:
        message = "(the exception's message could not be read)"
    name = type(error).__name__
    return storable_text(f"{name}: {message}" if message else name)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


class _Mender:
    """Walks a value once, bounded in depth and parts: a value may contain itself, or one list a thousand times over."""

    def __init__(self) -> None:
        self._parts_left = _PARTS_LIMIT

    def mended(self, value: Any, depth: int = 0) -> Any:
        self._parts_left -= 1
        if depth > _DEPTH_LIMIT or self._parts_left < 0:
            return "…"
        try:
            match value:
                case None | bool():
                    return value
                case int():  # a huge one is refused by Python's own conversion to text
                    bits = value.bit_length()
                    return value if bits <= _INTEGER_BITS else f"(an integer of {bits} bits)"
                case float():
                    return value if math.isfinite(value) else str(value)
                case str():
                    return storable_text(value, limit=1_000_000)
                case dict():
                    return {_key(k): self.mended(v, depth + 1) for k, v in islice(value.items(), self._room())}
                case list() | tuple():
                    return [self.mended(v, depth + 1) for v in islice(value, self._room())]
                case _:
                    return storable_text(repr(value))
        except Exception:
            return "(a value that could not be shown)"

    def _room(self) -> int:
        return max(0, self._parts_left) + 1


def _key(key: Any) -> str:
    try:
        return storable_text(str(key))
    except Exception:
        return "(a key that could not be shown)"
