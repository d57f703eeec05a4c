"""A result is kept as it is, or the attempt has failed and says where."""

from __future__ import annotations

import enum
import json
import math
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model.errors import InvalidInputError
from duly.model.results import RESULT_LIMIT_BYTES, checked_result


def refusal(value: Any) -> str:
    with pytest.raises(InvalidInputError) as refused:
        checked_result(value)
    return str(refused.value)


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**1000), 2.5, "é😀", [], {}, [1, [2, {"a": None}]], {"a": {"b": [1.5]}}, "x" * 999_998],
    ids=range(11),
)
def test_what_json_can_say_is_kept_as_it_is(value: Any) -> None:
    """Through text and back: the same value, a result of exactly 1 MB included."""
    assert json.loads(checked_result(value).text) == value


_sound_text = st.text(max_size=20).filter(lambda text: "\x00" not in text)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**1000), 2**1000) | st.floats(allow_nan=False, allow_infinity=False)
    | _sound_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_sound_text, inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@given(_json)
def test_any_json_value_is_kept_as_it_is(value: Any) -> None:
    """FO-043: every digit, every character, every level."""
    assert json.loads(checked_result(value).text) == value


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_what_python_takes_for_json_is_taken() -> None:
    """Tuples, enums of text or number, and the keys that `json.dumps` takes."""
    value = {"a": (1, Colour.RED), 7: Level.HIGH, None: True, 2.5: 0, False: 1.5}
    kept = {"a": [1, "red"], "7": 3, "null": True, "2.5": 0, "false": 1.5}
    assert json.loads(checked_result(value).text) == kept


def test_nul_and_halves_of_surrogate_pairs_are_mended_by_the_documented_rule() -> None:
    """FO-038, FO-039: U+2400 and U+FFFD, in values and in keys."""
    assert json.loads(checked_result({"a\x00": ["\x00", "\ud800x"]}).text) == {"a␀": ["␀", "\ufffdx"]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "$ is NaN"),
        ({"a": [1, 2, 3, {"b": math.nan}]}, "$.a[3].b is NaN"),
        ({"a b": [-math.inf]}, '$["a b"][0] is infinite'),
        ({'a"\x00': math.inf}, '$["a\\"␀"] is infinite'),
        ([{1, 2}], "$[0] is of type set"),
        ({"b": b"x"}, "$.b is of type bytes"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "$.at is of type datetime"),
        ([object()], "$[0] is of type object"),
        ({"a": {(1, 2): 1}}, "$.a has the key (1, 2), which is no text"),
        ({math.nan: 1}, "$ is NaN"),
        ({1: "a", "1": "b"}, '$["1"] stands there twice'),
        ([10**400], "$[0] is an integer of 1329 bits"),
        ("x" * 999_999, "$ is larger than the 1,000,000 bytes"),
        ("é" * 500_000, "$ is larger than the 1,000,000 bytes"),
        ({"x" * 2_000: math.nan}, '$["xxx'),
        ({"y": {"x" * 99: {"x" * 99: {"x" * 99: {"x" * 99: math.nan}}}}}, "$.y.xxx"),
    ],
    ids=range(16),
)
def test_what_cannot_be_kept_is_named_by_its_place(value: Any, message: str) -> None:
    """FO-040: the path in the value, and why."""
    assert refusal(value).startswith(message)
    assert len(refusal(value)) < 500


def test_the_pointer_says_the_place_too() -> None:
    """For programs."""
    with pytest.raises(InvalidInputError) as refused:
        checked_result({"a": [1, math.nan]})
    assert refused.value.pointer == "/a/1"


def test_depth_and_cycles_are_refused() -> None:
    """64 levels are kept, 65 are not, and a value that holds itself is not walked for ever."""
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert checked_result(value).text.count("[") == 64
    assert "nested deeper than 64 levels" in refusal([value])
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    assert "nested deeper" in refusal(cycle)
    bush: list[Any] = [1]
    for _ in range(60):
        bush = [bush, bush]
    assert "larger" in refusal(bush)


@pytest.mark.parametrize("value", ["x" * 50_000_000, ["é" * 25_000_000], list(range(5_000_000))], ids=range(3))
def test_fifty_megabytes_are_refused_without_a_copy(value: Any) -> None:
    """FO-018: the walk stops where the limit is passed."""
    tracemalloc.start()
    message = refusal(value)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"{RESULT_LIMIT_BYTES:,}" in message
    assert peak < 60_000_000
