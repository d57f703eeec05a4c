"""Intervals, one-off fires, starts and ends. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from duly.service.timing import Asked, Timing, fires_after, new_timing, shortest_gap

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def made(**asked: object) -> Timing:
    return new_timing(Asked(**asked), now=NOW, jitter=timedelta(0), horizon=timedelta(days=366))  # type: ignore[arg-type]


def test_an_interval_keeps_its_phase_for_ever() -> None:
    """However late one looks, the fires lie on multiples from the first."""
    timing = made(every=7 * HOUR, delay=HOUR)
    assert next(fires_after(timing, NOW)) == NOW + HOUR
    late = next(fires_after(timing, NOW + timedelta(days=1000, seconds=5)))
    assert (late - NOW - HOUR) % (7 * HOUR) == timedelta(0)


def test_a_start_in_the_past_is_a_phase() -> None:
    """Nothing is made up for: the next fire is the next of that phase."""
    timing = made(every=HOUR, start_at=NOW - timedelta(minutes=90))
    assert next(fires_after(timing, NOW)) == NOW + timedelta(minutes=30)


def test_cron_within_a_window() -> None:
    """From the start to the end, both included."""
    timing = made(cron="0 * * * *", start_at=NOW + 2 * HOUR, end_at=NOW + 4 * HOUR)
    assert list(fires_after(timing, NOW)) == [NOW + n * HOUR for n in (2, 3, 4)]
    assert timing.latest_until(NOW + 9 * HOUR, NOW) == NOW + 4 * HOUR
    assert timing.latest_until(NOW + HOUR, NOW) is None


def test_once() -> None:
    """At that moment and no other."""
    timing = made(at=NOW + HOUR)
    assert list(fires_after(timing, NOW)) == [NOW + HOUR]
    assert timing.latest_until(NOW, NOW) is None
    assert timing.latest_until(NOW + 2 * HOUR, NOW) == NOW + HOUR
    assert shortest_gap(timing, NOW) is None


def test_the_calendar_ends() -> None:
    """An interval beyond the years that can be stored has no next fire."""
    assert Timing(NOW, every=timedelta(days=366)).next_after(datetime(9998, 1, 1, tzinfo=UTC)) is None
    assert Timing(NOW, every=timedelta(days=366)).next_after(datetime.max.replace(tzinfo=UTC)) is None


@given(st.integers(1, 10**6), st.integers(-(10**9), 10**9), st.integers(0, 10**6))
def test_forward_and_back_agree(every_s: int, moment_s: int, microseconds: int) -> None:
    """What comes after a moment is the last until itself, and nothing lies between."""
    timing = Timing(NOW, every=timedelta(seconds=every_s))
    moment = NOW + timedelta(seconds=moment_s, microseconds=microseconds)
    [first, second] = islice(fires_after(timing, moment), 2)
    assert first > moment
    assert timing.latest_until(second - timedelta(microseconds=1), NOW) == first
    assert timing.latest_until(first, NOW) == first
