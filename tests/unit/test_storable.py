"""Whatever a job throws or returns can be written down."""

from __future__ import annotations

import json
import math
import sys
import time
import tracemalloc
from types import TracebackType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.model.storable import ERROR_LIMIT, describe, read_json, storable_json, storable_text
from support.hostile import (
    HostileError,
    HostileList,
    HostileMapping,
    LyingClassError,
    LyingFloat,
    LyingInteger,
    LyingText,
    LyingTextError,
    anything,
    hostile_values,
)


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
    if not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in text):
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
    assert json.loads(storable_json({"s": {1}, "b": b"x", ("a", 1): 1})) == {"s": "{1}", "b": "b'x'", "('a', 1)": 1}


def test_tuples_become_lists_and_keys_text() -> None:
    """As JSON has it."""
    assert json.loads(storable_json({1: (1, 2)})) == {"1": [1, 2]}


@pytest.mark.parametrize("value", list(hostile_values()), ids=lambda value: type(value).__name__)
@pytest.mark.timeout(10)
def test_nothing_that_a_handler_returns_can_make_recording_fail(value: Any) -> None:
    """Objects that raise, huge integers, depth and cycles give some JSON text, at once."""
    text = storable_json({"result": value}, 1_000_000)
    assert json.loads(text).keys() == {"result"}
    assert len(text) < 3_000_000


def test_a_value_is_cut_to_its_limit() -> None:
    """However it is made up: long texts, many parts, nested, one part many times over."""
    shared = ["x" * 1000] * 1000
    for value in (["x" * 50_000_000], list(range(1_000_000)), [shared] * 1000, {str(n): n for n in range(100_000)}):
        assert len(storable_json(value, 10_000)) < 40_000


def test_a_subclass_does_not_answer_for_itself() -> None:
    """What a subclass overrides is not run; what its value is, is kept."""
    value = [LyingText("a\x00b"), LyingInteger(7), LyingFloat(2.5), HostileMapping(a=1), HostileList([1]), Point(1, 2)]
    assert json.loads(storable_json(value)) == ["a␀b", 7, 2.5, {"a": 1}, [1], [1, 2]]
    assert type(storable_text(LyingText("abc"))) is str


class Point(NamedTuple):
    x: int
    y: int


class Changing:
    """Changes the dict it stands in when it is shown."""

    def __init__(self, home: dict[str, Any]) -> None:
        self.home = home

    def __repr__(self) -> str:
        self.home[str(len(self.home))] = 1
        return "changed"


def test_a_value_that_changes_under_the_hand_is_shown() -> None:
    """As text, without failing."""
    home: dict[str, Any] = {}
    home["a"] = Changing(home)
    assert isinstance(json.loads(storable_json([home])), list)


def test_an_exception_is_described_by_class_and_message() -> None:
    """`Class: message`; the class alone when there is no message."""
    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(ValueError()) == "ValueError"
    assert describe(SystemExit(3)) == "SystemExit: 3"
    assert describe(LyingTextError()) == "LyingTextError: lies"


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit, RecursionError, GeneratorExit])
def test_an_exception_whose_str_raises_is_described(raised: type[BaseException]) -> None:
    """FO-019: a fallback text instead of the message, whatever is raised instead of it."""
    assert describe(HostileError(raised)) == "HostileError: (the exception's message could not be read)"


def test_an_exception_whose_class_lies_about_its_name_is_described() -> None:
    """FO-019: by the name that Python knows, not by what a metaclass answers."""
    assert describe(LyingClassError("x")) == "LyingClassError: x"


@pytest.mark.timeout(20)
def test_cyclic_causes_and_deep_tracebacks_are_left_alone() -> None:
    """FO-019: a cause that is its own cause, and a traceback 100,000 deep."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe(first) == "ValueError: first"
    deep = ValueError("deep")
    frame = sys._getframe()
    for _ in range(100_000):
        deep.__traceback__ = TracebackType(deep.__traceback__, frame, 0, 1)
    assert describe(deep) == "ValueError: deep"


def test_an_exception_with_hostile_content_is_described() -> None:
    """FO-018: NUL, lone surrogates and 50 MB."""
    assert describe(ValueError("a\x00b")) == "ValueError: a␀b"
    assert storable(describe(ValueError("\ud800")))
    assert len(describe(ValueError("x" * 50_000_000))) == ERROR_LIMIT


def test_fifty_megabytes_cost_neither_time_nor_copies() -> None:
    """FO-018: the message is cut before anything else is done with it: none of them takes 50 ms, and of the 50 MB
    nothing is copied.
    """
    error = ValueError("\x00" + "é" * 25_000_000)
    lie = LyingText("x" * 50_000_000)
    tracemalloc.start()
    began = time.process_time()
    for _ in range(100):
        describe(error)
        storable_text(lie)
        storable_json([lie, "y" * 10])
    took_s = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 5
    assert peak < 5_000_000


def test_what_postgresql_holds_can_be_read() -> None:
    """FO-041, the same for JSON: numbers of any length, and values deeper than Python reads."""
    assert read_json('{"a": 1}') == {"a": 1}
    assert read_json(f'{{"a": 1{"0" * 5_000}, "b": 2}}') == {"a": "1" + "0" * 5_000, "b": 2}
    deep = "[" * 100_000 + "]" * 100_000
    assert read_json(deep) == deep


@settings(max_examples=200, deadline=None)
@given(anything)
def test_any_value_becomes_json_that_postgresql_takes(value: Any) -> None:
    """FO-039, FO-040: strict JSON, valid UTF-8 and no NUL, whatever it was."""
    text = storable_json(value, 5_000)

    def refuse(number: str) -> float:
        raise AssertionError(number)

    json.loads(text, parse_constant=refuse)
    assert storable(text)
    assert "\\u0000" not in text
