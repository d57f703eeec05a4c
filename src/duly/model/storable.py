"""Make any text or JSON value storable in PostgreSQL, so that recording an outcome never fails.

PostgreSQL's text cannot hold NUL or half a surrogate pair, its jsonb holds neither NaN nor Infinity, and a message of
50 MB helps nobody. What is captured (errors, answers) is mended here; what users hand in is refused at the edge
instead.
"""

from __future__ import annotations

import json
import math
from typing import Any

ERROR_LIMIT = 2_000
_DEPTH_LIMIT = 64


def storable_text(text: str, limit: int = ERROR_LIMIT) -> str:
    """Cut to `limit` characters; NUL becomes U+2400, half a surrogate pair U+FFFD."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if "\x00" in text:
        text = text.replace("\x00", "\u2400")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_surrogate(text) else text


def storable_json(value: Any) -> str:
    """JSON text that jsonb accepts: NaN and infinities become strings, other foreign values their `repr`."""
    return json.dumps(_mended(value, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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


def _mended(value: Any, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        return "…"
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return storable_text(value, limit=1_000_000)
        case dict():
            return {storable_text(str(k)): _mended(v, depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [_mended(v, depth + 1) for v in value]
        case _:
            try:
                return storable_text(repr(value))
            except Exception:
                return "(a value that could not be shown)"
