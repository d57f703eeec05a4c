"""How far a machine's clock is from the database's, as far as one question can tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly.worker.skew import ahead

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
S = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("database_s", "round_trip_s", "ahead_s"),
    [
        pytest.param(0, 0, 0, id="the same"),
        pytest.param(20, 30, 0, id="anywhere within a slow answer"),
        pytest.param(30, 30, 0, id="at its end"),
        pytest.param(-120, 1, 120, id="we are fast"),
        pytest.param(121, 1, -120, id="we are slow"),
    ],
)
def test_only_what_the_way_of_the_answer_cannot_explain_is_skew(
    database_s: int, round_trip_s: int, ahead_s: int
) -> None:
    """FO-055: the database's time may be any between the question and the answer; what lies outside is skew."""
    assert ahead(NOON, NOON + database_s * S, NOON + round_trip_s * S) == ahead_s * S


def test_a_clock_that_is_set_back_while_the_answer_is_under_way_is_no_error() -> None:
    """The answer seems to come before the question: the difference is still a number."""
    assert ahead(NOON, NOON, NOON - 3600 * S) == -3600 * S
