"""A job's result, checked before it is kept: what JSON cannot say is a failed attempt that names the place, never a
silent change of the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from duly.model.errors import InvalidInputError
from duly.model.storable import DEPTH_LIMIT, INTEGER_BITS, class_name, json_text, shown, storable_text

RESULT_LIMIT_BYTES = 1_000_000

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_PATH_LIMIT = 300


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value as text, checked: PostgreSQL will take it."""

    text: str


def checked_result(value: Any) -> JsonText:
    """The JSON text of a result. Later changes to the value change nothing.

    A result is None, a bool, an int of at most 1,024 bits, a finite float, a text, a list or tuple of results, or a
    dict of results whose keys are texts (numbers, bools and None are written as `json.dumps` writes them); at most 64
    levels deep and 1 MB of UTF-8. In texts and keys NUL becomes U+2400 and half a surrogate pair U+FFFD, as everywhere.
    Raises InvalidInputError for anything else; its message begins with the path of the offending part, as `$.a[3].b`.
    """
    text = json_text(_Checker().checked(value))
    if len(text.encode()) > RESULT_LIMIT_BYTES:
        _too_large()
    return JsonText(text)


class _Checker:
    """Walks a value once, and stops at the first part that cannot be kept or when the whole is too large."""

    def __init__(self) -> None:
        self._room = RESULT_LIMIT_BYTES + 1
        self._path: list[str | int] = []

    def checked(self, value: Any) -> Any:
        self._take(2)  # one character and a comma at least
        kind = type(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self._text(value)
        if issubclass(kind, int):
            return self._integer(int.__int__(value))
        if issubclass(kind, float):
            return self._float(float.__float__(value))
        if len(self._path) >= DEPTH_LIMIT:
            self._refuse(f"is nested deeper than {DEPTH_LIMIT} levels")
        if issubclass(kind, dict):
            return self._members(value)
        if issubclass(kind, list):
            return self._items(list.__iter__(value))
        if issubclass(kind, tuple):
            return self._items(tuple.__iter__(value))
        return self._refuse(f"is of type {class_name(value)}, which JSON does not have")

    def _text(self, text: str) -> str:
        self._take(str.__len__(text))
        return storable_text(text, RESULT_LIMIT_BYTES)

    def _integer(self, number: int) -> int:
        if number.bit_length() > INTEGER_BITS:
            self._refuse(f"is an integer of {number.bit_length()} bits: at most {INTEGER_BITS} are kept")
        self._take(number.bit_length() // 4)
        return number

    def _float(self, number: float) -> float:
        if not math.isfinite(number):
            self._refuse(f"is {'NaN' if math.isnan(number) else 'infinite'}, which JSON does not have")
        return number

    def _members(self, value: dict[Any, Any]) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for key, member in dict.items(value):
            name = self._key(key)
            self._path.append(name)
            if name in checked:
                self._refuse("stands there twice: two keys are the same as text")
            checked[name] = self.checked(member)
            self._path.pop()
        return checked

    def _items(self, items: Iterable[Any]) -> list[Any]:
        checked = []
        for place, item in enumerate(items):
            self._path.append(place)
            checked.append(self.checked(item))
            self._path.pop()
        return checked

    def _key(self, key: Any) -> str:
        if issubclass(type(key), str):
            return self._text(key)
        if key is None or type(key) in (bool, int, float):
            return json_text(self.checked(key))
        return self._refuse(f"has the key {shown(key, 50)}, which is no text")

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            _too_large()

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidInputError(
            f"{_dotted(self._path)} {why}", "".join(f"/{part}" for part in self._path)[:_PATH_LIMIT]
        )


def _too_large() -> NoReturn:
    raise InvalidInputError(f"$ is larger than the {RESULT_LIMIT_BYTES:,} bytes of JSON that are kept of a result")


def _dotted(path: list[str | int]) -> str:
    text = "$"
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json_text(storable_text(part, 100))}]"
    return text if len(text) <= _PATH_LIMIT else text[:_PATH_LIMIT] + "…"
