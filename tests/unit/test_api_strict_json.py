"""Strict JSON: what is refused, where, and that every member keeps its text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.api.strict_json import MalformedJsonError, pointer, read_members

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab~/é"\\ ☃'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text('abc é"', max_size=4), values, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_reads_what_json_writes(document: dict[str, Any], indent: Any) -> None:
    """Whatever Python writes is read back equal, and each text is that member's own."""
    members, faults = read_members(json.dumps(document, indent=indent))
    assert not faults
    assert {name: member.value for name, member in members.items()} == document
    assert {name: json.loads(member.text) for name, member in members.items()} == document


def test_texts_are_exact() -> None:
    """Digits, spaces and escapes stay."""
    members, _ = read_members(
        ' {"a" : [1.10 , 1E400000000000] ,"b":"\\u0061", "c":{ } }\n'.replace("1E400000000000", "1e5")
    )
    assert [member.text for member in members.values()] == ["[1.10 , 1e5]", '"\\u0061"', "{ }"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "[]",
        '"x"',
        "{",
        "{}}",
        "{} {}",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        '{"a":1 "b":2}',
        "{a:1}",
        "{'a':1}",
        '{"a":01}',
        '{"a":+1}',
        '{"a":.5}',
        '{"a":"\t"}',
        '{"a":"\\x"}',
        '{"a":tru}',
        '{"a":1}//',
        '{"a":1}\x0c',
        '\ufeff{"a":1}',
        '{"a":' + "[" * 100_000,
        '{"a":' + '{"a":' * 100_000,
        '{"a":' + "9" * 5_000 + "}",
    ],
)
def test_malformed(text: str) -> None:
    """What is no JSON object raises, whatever it is."""
    with pytest.raises(MalformedJsonError):
        read_members(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a":NaN}', "/a"),
        ('{"a":[1,{"b":-Infinity}]}', "/a/1/b"),
        ('{"a":1e999}', "/a"),
        ('{"a":{"b":1,"b":2}}', "/a/b"),
        ('{"a":1,"a":1}', "/a"),
        ('{"a":"\\ud800"}', "/a"),
        ('{"a":["x","\\uDC00x"]}', "/a/1"),
        ('{"a":{"\\ud800":1}}', "/a/\ufffd"),
        ('{"a":"x\\u0000"}', "/a"),
        ('{"a":{"b\\u0000":1}}', "/a/b\u2400"),
        ('{"\\u0000":1}', "/\u2400"),
        ('{"a/b~":NaN}', "/a~1b~0"),
    ],
)
def test_refused_by_place(text: str, where: str) -> None:
    """Well-formed and wrong: the pointer says where, the member is left out."""
    members, faults = read_members(text)
    assert {fault.pointer for fault in faults} == {where}
    assert not members


def test_harmless_escapes_pass() -> None:
    """A whole surrogate pair, an escaped backslash before u0000, and NUL in a body of bytes are fine."""
    members, faults = read_members('{"a":"\\ud83d\\ude00","b":"\\\\u0000","body":"\\u0000"}')
    assert not faults
    assert members["a"].value == "😀"
    assert members["body"].value == "\x00"


def test_pointers_are_short_and_storable() -> None:
    """A name of any length and content makes a pointer that can be shown."""
    assert len(pointer("x" * 10_000)) == 200
    pointer("\ud800", 3).encode()
