"""Buckets of calls, with a clock that is moved by hand."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from duly.service.rates import Rates


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(
    rate=st.floats(0.01, 1000),
    steps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_never_more_than_the_quota_and_the_rate(rate: float, steps: list[float]) -> None:
    """Over any stretch of time: quota + rate × time calls at most; and who waits as told is let in."""
    clock = Clock()
    rates = Rates(clock)
    quota = max(1, math.floor(rate))
    passed: list[float] = []
    for step in steps:
        clock.now += step
        found = rates.take(7, rate)
        assert found.quota == quota
        assert 0 <= found.remaining < quota or found.refused
        if found.refused:
            assert found.remaining == 0
            clock.now += found.retry_after_s
            assert not rates.take(7, rate).refused
        passed.append(clock.now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= quota + rate * (passed[last] - passed[first]) + 1e-6


def test_a_full_bucket_is_forgotten() -> None:
    """A million accounts that called once do not stay in memory."""
    clock = Clock()
    rates = Rates(clock)
    for account in range(1000):
        rates.take(account, 1)
        clock.now += 0.5
    assert len(rates._full_at) < 5


def test_accounts_do_not_share() -> None:
    """One that is refused keeps nobody else out."""
    rates = Rates(Clock())
    assert not rates.take(1, 1).refused
    assert rates.take(1, 1).refused
    assert not rates.take(2, 1).refused


def test_another_rate_applies_at_once() -> None:
    """A bucket outlives the rate that it was for."""
    clock = Clock()
    rates = Rates(clock)
    while not rates.take(1, 0.01).refused:
        pass
    assert rates.take(1, 0.01).retry_after_s > 50
    assert rates.take(1, 1000).retry_after_s <= 0.001
    clock.now += 0.0011
    assert not rates.take(1, 1000).refused
