"""JSON as Duly takes it: strict, with pointers for what is wrong, and the exact text of every top-level member.

Python's parser reads more than JSON (NaN, half a surrogate pair) and forgets digits; PostgreSQL stores no such thing.
What is refused is refused here, by place. Values are never part of a message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from duly.model.storable import storable_text
from duly.service.faults import Fault

_SPACE = re.compile(r"[ \t\n\r]*")
_SPACES = frozenset(" \t\n\r")
_SUSPECT_ESCAPE = re.compile(r"\\u(?:d[89a-f]|0000)", re.IGNORECASE)
_POINTER_LIMIT = 200
_DEPTH_LIMIT = 100  # what reads, renders and stores a value later may recurse
_TOO_DEEP = f"nested too deeply: {_DEPTH_LIMIT} levels at most"
_FAULTS_LIMIT = 50  # of one member: more help nobody

DUPLICATE = "is given twice in one object: leave one out"


class MalformedJsonError(ValueError):
    """The text is not one JSON object. The message says where, and repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One top-level member: its value, and its text exactly as it stood."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class _Bad:
    """Stands in the parsed value where something is refused."""

    why: str


def read_members(text: str) -> tuple[dict[str, Member], list[Fault]]:
    """Read one JSON object. Members with a fault are left out. Raises MalformedJsonError if it is no JSON object."""
    members: dict[str, Member] = {}
    faults: list[Fault] = []
    for name, member, suspect in _Reader(text).members():
        found = _faults(name, member) if suspect else []
        if name in members:
            found.append(Fault(pointer(name), DUPLICATE))
        if found:
            faults.extend(found)
            members.pop(name, None)
        else:
            members[name] = member
    return members, faults


def read_items(text: str, name: str) -> tuple[list[str], list[Fault]]:
    """The exact texts of the elements of the one array member that a JSON object must have. What is wrong inside an
    element is for whoever reads that. Raises MalformedJsonError if it is no JSON object.
    """
    items: list[str] | None = None
    faults: list[Fault] = []
    for found, member, _ in _Reader(text).members():
        if found != name:
            faults.append(Fault(pointer(found), f"is not a member of this: there is only {name}"))
        elif items is not None:
            faults.append(Fault(pointer(name), DUPLICATE))
        elif isinstance(member.value, list):
            items = _elements(member.text)
        else:
            faults.append(Fault(pointer(name), "must be an array"))
            items = []
    if items is None:
        faults.append(Fault(pointer(name), "is required"))
    elif not items and not faults:
        faults.append(Fault(pointer(name), "is empty: give at least one"))
    return items or [], faults


def _elements(array: str) -> list[str]:
    """The texts of the elements of an array that was parsed before."""
    decoder = json.JSONDecoder()
    texts: list[str] = []
    at = 1
    while True:
        at = _after_space(array, at)
        if array[at] == "]":
            return texts
        _, end = decoder.raw_decode(array, at)
        texts.append(array[at:end])
        at = _after_space(array, end)
        at += array[at] == ","


def pointer(*path: str | int) -> str:
    """The JSON pointer (RFC 6901) of a path, cut to a sane length and storable as text whatever the names hold."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return storable_text("".join(f"/{part}" for part in parts), _POINTER_LIMIT)


class _Reader:
    """Walks the top level by hand, which keeps each member's text; what is inside goes to Python's fast parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._bad = 0
        self._decoder = json.JSONDecoder(
            parse_float=self._float, parse_constant=self._constant, object_pairs_hook=self._object
        )

    def members(self) -> Iterator[tuple[str, Member, bool]]:
        """Name, member, and whether something in it needs a closer look."""
        at = _after_space(self._text, 0)
        if self._text[at : at + 1] != "{":
            raise MalformedJsonError("the body must be one JSON object")
        at = _after_space(self._text, at + 1)
        while self._text[at : at + 1] != "}":
            if self._text[at : at + 1] != '"':
                raise self._malformed(at, "expecting a member name in double quotes")
            name_at, bad_before = at, self._bad
            name, at = self._value(at)
            at = _after_space(self._text, at)
            if self._text[at : at + 1] != ":":
                raise self._malformed(at, "expecting ':'")
            start = _after_space(self._text, at + 1)
            value, end = self._value(start)
            suspect = self._bad > bad_before or _SUSPECT_ESCAPE.search(self._text, name_at, end) is not None
            yield name, Member(value, self._text[start:end]), suspect
            at = _after_space(self._text, end)
            if self._text[at : at + 1] == ",":
                at = _after_space(self._text, at + 1)
                if self._text[at : at + 1] != "}":
                    continue
            elif self._text[at : at + 1] == "}":
                break
            raise self._malformed(at, "expecting ',' or '}' after a member, and no comma after the last")
        at = _after_space(self._text, at + 1)
        if at != len(self._text):
            raise self._malformed(at, "expecting nothing after the object")

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            value, end = self._decoder.raw_decode(self._text, at)
            brackets = self._text.count("[", at, end) + self._text.count("{", at, end)
            if brackets > _DEPTH_LIMIT and _deeper_than(value, _DEPTH_LIMIT):
                raise self._malformed(at, _TOO_DEEP)
            return value, end
        except MalformedJsonError:
            raise
        except json.JSONDecodeError as error:
            raise self._malformed(error.pos, error.msg.removesuffix(" at").lower()) from None
        except RecursionError:
            raise self._malformed(at, _TOO_DEEP) from None
        except ValueError:
            raise self._malformed(at, "a number with too many digits") from None

    def _malformed(self, at: int, why: str) -> MalformedJsonError:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return MalformedJsonError(f"the body is not valid JSON: line {line}, column {column}: {why}")

    def _refuse(self, why: str) -> _Bad:
        self._bad += 1
        return _Bad(why)

    def _float(self, digits: str) -> float | _Bad:
        number = float(digits)
        return number if math.isfinite(number) else self._refuse("is a number too large for most readers of JSON")

    def _constant(self, _: str) -> _Bad:
        return self._refuse("is no JSON value: there is no NaN and no Infinity")

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    members[name] = self._refuse(DUPLICATE)
                seen.add(name)
        return members


def _after_space(text: str, at: int) -> int:
    if text[at : at + 1] not in _SPACES:
        return at
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _faults(name: str, member: Member) -> list[Fault]:
    """What is refused inside a member. Bytes may hold a NUL, so `body` may; it must still be real Unicode."""
    faults: list[Fault] = []
    for path, value in _walk(name, member.value):
        if len(faults) >= _FAULTS_LIMIT:
            break
        if isinstance(value, _Bad):
            faults.append(Fault(pointer(*path), value.why))
        for part in (value, path[-1]):
            if not isinstance(part, str):
                continue
            if _is_torn(part):
                faults.append(Fault(pointer(*path), "has half a surrogate pair: send valid Unicode"))
            elif "\x00" in part and name != "body":
                faults.append(Fault(pointer(*path), "has a NUL character (\\u0000), which cannot be stored"))
    return faults


def _walk(name: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value inside, with its path; without recursion, since a value may be nested very deeply."""
    open_values: list[tuple[tuple[str | int, ...], Any]] = [((name,), value)]
    while open_values:
        path, inside = open_values.pop()
        yield path, inside
        if isinstance(inside, dict):
            open_values.extend(((*path, key), part) for key, part in inside.items())
        elif isinstance(inside, list):
            open_values.extend(((*path, place), part) for place, part in enumerate(inside))


def _deeper_than(value: Any, limit: int) -> bool:
    """Whether containers stand inside each other more than `limit` deep; level by level, since it may be very deep."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [part for inside in level for part in _parts(inside) if isinstance(part, (dict, list))]
    return bool(level)


def _parts(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _is_torn(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
