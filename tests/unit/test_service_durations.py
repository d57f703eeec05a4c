"""Durations: numbers and short strings, exact, and nothing else."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.service.durations import parse_duration, show_duration
from duly.service.faults import FieldError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1d", 86400),
        ("0.5s", 0.5),
        ("1m1ms", 60.001),
    ],
)
def test_reads(value: Any, seconds: float) -> None:
    """Seconds as a number, or units from the largest to the smallest."""
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10",
        "m",
        "10 m",
        "-1s",
        "1m1h",
        "1s1s",
        "1e3s",
        "1,5s",
        "١s",
        "9" * 50 + "s",
        -1,
        -0.1,
        True,
        None,
        [],
        {},
        float("inf"),
        float("nan"),
        10**30,
        "999999999d",
        "1S",
        "s1",
        " 1s",
        "1s\n",
    ],
)
def test_refuses(value: Any) -> None:
    """Anything else is a sentence, which repeats nothing."""
    with pytest.raises(FieldError) as caught:
        parse_duration(value)
    assert str(value) not in str(caught.value) or str(value) in ("", "m", "10", "s1")


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=1000)))
def test_shown_reads_back(duration: timedelta) -> None:
    """What is shown is read back the same, to the millisecond."""
    assert duration - parse_duration(show_duration(duration)) < timedelta(milliseconds=1)


@given(st.text(max_size=12) | st.text("0123456789.dhms", max_size=12))
def test_never_breaks(text: str) -> None:
    """Any text is a duration or a FieldError."""
    with contextlib.suppress(FieldError):
        assert parse_duration(text) >= timedelta(0)
