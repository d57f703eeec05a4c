"""Make any text or JSON value storable in PostgreSQL, so that recording an outcome never fails.

PostgreSQL's text cannot hold NUL or half a surrogate pair, its jsonb holds neither NaN nor Infinity, and a message of
50 MB helps nobody. What is captured (errors, details, answers) is mended here; a result is checked (see `results`), and
what users hand in is refused at the edge.

Values may be hostile: of their own code only `str` and `repr` are run, and whatever those raise is caught. Everything
else goes by the methods of the built-in types, so that a subclass cannot answer for itself.
"""

from __future__ import annotations

import json
import math
from typing import Any

ERROR_LIMIT = 2_000
DETAIL_LIMIT = 250_000
DEPTH_LIMIT = 64
INTEGER_BITS = 1024


def storable_text(text: str, limit: int = ERROR_LIMIT) -> str:
    """Cut to `limit` characters; NUL becomes U+2400, half a surrogate pair U+FFFD. Always a plain `str`."""
    if type(text) is not str:
        text = str.__getitem__(text, slice(0, limit + 1))
    if len(text) <= limit and text.isascii() and "\x00" not in text:
        return text
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if "\x00" in text:
        text = text.replace("\x00", "\u2400")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_surrogate(text) else text


def storable_json(value: Any, limit: int = DETAIL_LIMIT) -> str:
    """JSON text that jsonb accepts: NaN and infinities become strings, foreign values their `repr`; what goes beyond
    64 levels, or beyond about `limit` characters in all, is cut.
    """
    return json_text(_Mender(limit).mended(value))


def json_text(value: Any) -> str:
    """The text of a value that holds plain JSON types only."""
    return _encode(value)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def read_json(text: str) -> Any:
    """The value of a JSON text that PostgreSQL holds, which knows longer numbers and deeper values than Python does: a
    number of more than 4,300 digits becomes text, and a value too deep to be read is its own text.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 4_300 else digits)
    except RecursionError:
        return text


def describe(error: BaseException) -> str:
    """`Class: message` for any exception, even one whose `str` raises. Its causes and its traceback are left alone."""
    try:
        message = storable_text(str(error))
    except BaseException:  # SystemExit and the like too: this is the exception's own code
        message = "(the exception's message could not be read)"
    name = class_name(error)
    return storable_text(f"{name}: {message}" if message else name)


def shown(value: object, limit: int = 200) -> str:
    """A short text for any value: its `repr`, or its class if that cannot be had."""
    try:
        return storable_text(repr(value), limit)
    except BaseException:  # the value's own code
        return storable_text(f"({class_name(value)} that could not be shown)", limit)


def excerpt(value: object) -> str:
    """As much of a value as an error needs to be recognized by: 100 characters."""
    return shown(value, 100)


def class_name(value: object) -> str:
    """The name of a value's class, as Python has it: a metaclass cannot answer instead."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


class _Mender:
    """Walks a value once, bounded in depth and size: a value may contain itself, or one list a thousand times over."""

    def __init__(self, limit: int) -> None:
        self._room = limit

    def mended(self, value: Any, depth: int = 0) -> Any:
        self._room -= 1
        if self._room < 0 or depth > DEPTH_LIMIT:
            return "…"
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str or issubclass(kind, str):
            return self._text(value)
        if issubclass(kind, int):
            return self._integer(int.__int__(value))
        if issubclass(kind, float):
            number = float.__float__(value)
            return number if math.isfinite(number) else str(number)
        try:
            if issubclass(kind, dict):
                return self._members(value, depth)
            if issubclass(kind, list):
                return self._items(list.__iter__(value), depth)
            if issubclass(kind, tuple):
                return self._items(tuple.__iter__(value), depth)
        except RuntimeError:  # changed by the `repr` of something in it
            pass
        return self._text(shown(value, 2_000))

    def _text(self, text: str) -> str:
        text = storable_text(text, max(1, self._room))
        self._room -= len(text)
        return text

    def _integer(self, number: int) -> int | str:
        bits = number.bit_length()  # a huge one is refused by Python's own conversion to text
        self._room -= bits // 3
        return number if bits <= INTEGER_BITS else f"(an integer of {bits} bits)"

    def _members(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        members = {}
        for key, member in dict.items(value):
            if self._room <= 0:
                break
            name = self._text(key if issubclass(type(key), str) else shown(key))
            members[name] = self.mended(member, depth + 1)
        return members

    def _items(self, items: Any, depth: int) -> list[Any]:
        mended = []
        for item in items:
            mended.append(self.mended(item, depth + 1))
            if self._room <= 0:
                break
        return mended
