"""How long finished jobs are kept, as it is typed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly.cli.options import read_retention
from duly.model import Retention
from duly.model.errors import InvalidInputError

DAY = timedelta(days=1)


@pytest.mark.parametrize("bad", [timedelta(0), timedelta(minutes=59), -DAY, timedelta.max])
def test_a_retention_that_makes_no_sense_is_refused(bad: timedelta) -> None:
    """Less than an hour, or more than anybody means; for ever is None."""
    for name in ("keep", "keep_dead"):
        with pytest.raises(InvalidInputError, match=f"{name} is"):
            Retention(**{name: bad})
    assert Retention(None, None).keep is None


def test_retention_as_typed() -> None:
    """The short form of durations, or forever; the defaults of the command are those of the model."""
    assert read_retention("30d", "90d") == Retention()
    assert read_retention("12h", "forever") == Retention(DAY / 2, None)


@pytest.mark.parametrize(
    ("keep", "keep_dead", "words"),
    [
        ("soon", "90d", "--keep must be a duration"),
        ("30d", "", "--keep-dead must be"),
        ("30d", "1m", "keep_dead is 0:01"),
    ],
)
def test_what_is_no_retention_is_refused(keep: str, keep_dead: str, words: str) -> None:
    """By the option's name."""
    with pytest.raises(InvalidInputError, match=words):
        read_retention(keep, keep_dead)
