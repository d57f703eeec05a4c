"""Whatever a job throws or returns can be written down."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model.storable import ERROR_LIMIT, describe, storable_json, storable_text


def storable(text: str) -> bool:
    return "\x00" not in text and text.encode("utf-8") is not None


def test_nul_becomes_its_picture() -> None:
    """PostgreSQL's text has no NUL: U+2400 stands for it."""
    assert storable_text("a\x00b") == "a␀b"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud800\ud800x", "x\udc00\ud800"])
def test_half_a_surrogate_pair_becomes_a_replacement_character(text: str) -> None:
    """No lone surrogate is left, and what stood around it stays."""
    mended = storable_text(text)
    assert mended.encode("utf-8")
    assert "\ufffd" in mended
    assert [c for c in mended if c.isascii()] == [c for c in text if c.isascii()]


def test_a_split_pair_is_joined() -> None:
    """Two halves that belong together are one character."""
    assert storable_text("\ud83d\ude00") == "😀"


@given(st.text(st.characters(), max_size=50), st.lists(st.sampled_from(["\x00", "\ud800", "\udc00", "é", "😀"])))
def test_any_text_becomes_storable(text: str, parts: list[str]) -> None:
    """Valid UTF-8 without NUL, whatever it was; sound text is not touched."""
    assert storable(storable_text(text + "".join(parts)))
    if not ({"\x00"} & set(text)):
        assert storable_text(text) == text


def test_fifty_megabytes_are_cut() -> None:
    """FO-018: a message is cut to its limit, and says so by its last character."""
    cut = storable_text("x" * 50_000_000)
    assert len(cut) == ERROR_LIMIT
    assert cut.endswith("…")
    assert storable_text("x" * ERROR_LIMIT) == "x" * ERROR_LIMIT


def test_numbers_that_json_lacks_become_text() -> None:
    """NaN and infinities."""
    assert json.loads(storable_json([math.nan, math.inf, -math.inf, 1.5])) == ["nan", "inf", "-inf", 1.5]


def test_ordinary_values_are_not_touched() -> None:
    """What JSON can say is said as it is."""
    value = {"a": [1, 2.5, None, True, "é😀"], "b": {"c": []}}
    assert json.loads(storable_json(value)) == value


def test_text_inside_values_is_mended_too() -> None:
    """Keys and values, at any depth."""
    assert json.loads(storable_json({"a\x00": ["\ud800x"]})) == {"a␀": ["\ufffdx"]}


def test_foreign_values_become_their_repr() -> None:
    """Sets, bytes and objects are shown, not refused."""
    assert json.loads(storable_json({"s": {1}, "b": b"x"})) == {"s": "{1}", "b": "b'x'"}


def test_tuples_become_lists_and_keys_text() -> None:
    """As JSON has it."""
    assert json.loads(storable_json({1: (1, 2)})) == {"1": [1, 2]}


class Hostile:
    """Raises whatever it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


def hostile_values() -> Iterator[Any]:
    yield Hostile()
    yield {Hostile(): 1}
    yield HostileMapping(a=1)
    yield 10**10_000
    yield -(10**400)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    yield deep
    cycle: list[Any] = []
    cycle += [cycle, cycle, {"again": cycle}]
    yield cycle


@pytest.mark.parametrize("value", list(hostile_values()), ids=lambda value: type(value).__name__)
@pytest.mark.timeout(10)
def test_nothing_that_a_handler_returns_can_make_recording_fail(value: Any) -> None:
    """Objects that raise, huge integers, depth and cycles give some JSON text, at once."""
    text = storable_json({"result": value})
    assert json.loads(text).keys() == {"result"}
    assert len(text) < 1_000_000


def test_an_exception_is_described_by_class_and_message() -> None:
    """`Class: message`; the class alone when there is no message."""
    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(ValueError()) == "ValueError"
    assert describe(SystemExit(3)) == "SystemExit: 3"


def test_an_exception_whose_str_raises_is_described() -> None:
    """FO-019: a fallback text instead of the message."""
    assert describe(HostileError()).startswith("HostileError: (the exception's message")


def test_an_exception_with_hostile_content_is_described() -> None:
    """FO-018: NUL, lone surrogates and 50 MB."""
    assert describe(ValueError("a\x00b")) == "ValueError: a␀b"
    assert storable(describe(ValueError("\ud800")))
    assert len(describe(ValueError("x" * 50_000_000))) == ERROR_LIMIT
