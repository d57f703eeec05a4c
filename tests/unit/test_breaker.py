"""When a target counts as failing, and how long it is left alone: the pure part."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.http.breaker import BreakerSettings, Tally, error_of, gets_through, hold_for, host_of, wait_for_probe
from duly.model import Bury, Cancel, DeadReason, Hold, Interrupted, Report, Retry, Snooze, Success
from duly.model.errors import InvalidInputError

SECOND = timedelta(seconds=1)
KEY = (1, "example.com")
OTHER = (2, "example.com")


def failed(result: str, status: int | None = None) -> Retry:
    return Retry(Report(result, "it failed", status))


@pytest.mark.parametrize(
    ("outcome", "well"),
    [
        (Success(), True),
        (failed("dns_error"), False),
        (failed("connect_refused"), False),
        (failed("connect_timeout"), False),
        (failed("tls_error"), False),
        (failed("timeout"), False),
        (failed("protocol_error"), False),
        (failed("protocol_error", 200), False),
        (failed("http_error", 500), False),
        (failed("http_error", 503), False),
        (failed("http_error", 599), False),
        (failed("http_error", 999), False),
        (failed("http_error", 429), False),
        (failed("http_error", 408), True),
        (failed("http_error", 404), True),
        (failed("http_error", 302), True),
        (Bury(DeadReason.PERMANENT, Report("http_error", "x", 501)), False),
        (Bury(DeadReason.TARGET_GONE, Report("http_error", "x", 410)), True),
        (Bury(DeadReason.TARGET_NOT_ALLOWED, Report("target_not_allowed", "x")), None),
        (Bury(DeadReason.PERMANENT, Report("error", "x")), None),
        (failed("http_error"), None),
        (failed("target_not_allowed"), None),
        (Snooze(SECOND), None),
        (Hold(SECOND), None),
        (Cancel(), None),
        (Interrupted(), None),
    ],
)
def test_what_an_outcome_says_of_the_target(outcome: Any, well: bool | None) -> None:
    """Network, name, TLS, time-out, 5xx and 429: failing. Any other answer: well. Not asked: nothing."""
    assert gets_through(outcome) is well


def test_the_error_is_one_that_can_be_stored() -> None:
    """NUL and half surrogates are mended; without a report there is none."""
    assert error_of(Retry(Report("error", "a\x00\ud800"))) == "a␀\ufffd"
    assert error_of(Retry(Report("error"))) is None
    assert error_of(Success()) is None


@pytest.mark.parametrize(
    ("payload", "host"),
    [
        ({"url": "https://example.com/a?b=http://other/"}, "example.com"),
        ({"url": "http://example.com:8080"}, "example.com"),
        ({"url": "http://[2001:db8::1]:80/"}, "2001:db8::1"),
        ({"url": "http://192.0.2.1/"}, "192.0.2.1"),
        ({"url": "https://EXAMPLE.com/" + "a" * 600}, "example.com"),
        ({"url": "nothing"}, None),
        ({"url": "http://["}, None),
        ({"url": 7}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_host_of_a_stored_request(payload: Any, host: str | None) -> None:
    """Port and path do not count. What names no host is for the delivery to refuse."""
    assert host_of(json.dumps(payload)) == host
    assert host_of("{") is None


def test_twenty_in_a_row_over_ten_seconds_open() -> None:
    """Both are needed: twenty at once do not, nineteen in a minute do not. After that the count begins anew."""
    tally = Tally(BreakerSettings())
    assert [tally.failed(KEY, 100.0) for _ in range(40)] == [None] * 40
    assert tally.failed(KEY, 109.9) is None
    assert tally.failed(KEY, 110.0) == 42
    slow = [tally.failed(KEY, 200.0 + 3 * n) for n in range(20)]
    assert slow == [None] * 19 + [20]


def test_one_that_gets_through_ends_the_run() -> None:
    """Nineteen, a success, nineteen: closed. Others' successes do not count."""
    tally = Tally(BreakerSettings(over=timedelta(0)))
    for _ in range(3):
        assert [tally.failed(KEY, 0.0) for _ in range(19)] == [None] * 19
        tally.passed(OTHER)
        tally.passed(KEY)
    assert len(tally) == 0


def test_a_breaker_that_is_switched_off_never_opens() -> None:
    """0 failures: not even counted."""
    tally = Tally(BreakerSettings(failures=0, over=timedelta(0)))
    assert [tally.failed(KEY, float(n)) for n in range(100)] == [None] * 100
    assert len(tally) == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([(a, h) for a in (1, 2) for h in "abc"]), st.booleans(), st.floats(0, 9))),
    st.integers(1, 5),
    st.floats(0, 20),
)
def test_any_order_of_events_opens_exactly_after_an_unbroken_run(
    events: list[tuple[tuple[int, str], bool, float]], failures: int, over_s: float
) -> None:
    """Each key alone: it opens with the first failure that has `failures` in a row behind it over `over`."""
    rules = BreakerSettings(failures, timedelta(seconds=over_s))
    tally = Tally(rules)
    runs: dict[tuple[int, str], list[float]] = {}
    now_s = 0.0
    for key, passed, later_s in events:
        now_s += later_s
        if passed:
            tally.passed(key)
            runs[key] = []
            continue
        run = runs.setdefault(key, [])
        run.append(now_s)
        long_enough = now_s - run[0] >= rules.over.total_seconds()
        expected = len(run) if len(run) >= failures and long_enough else None
        assert tally.failed(key, now_s) == expected
        if expected is not None:
            runs[key] = []
    assert len(tally) == sum(1 for run in runs.values() if run)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 10))
def test_memory_is_bounded(keys: list[int], most: int) -> None:
    """However many hosts fail, so many are counted, the last ones to fail."""
    tally = Tally(BreakerSettings(), most)
    for key in keys:
        tally.failed((key, "h"), 0.0)
    assert len(tally) == min(most, len(set(keys)))


@given(st.integers(1, 40), st.integers())
def test_pauses_double_up_to_the_longest(probes: int, seed: int) -> None:
    """10 s, 20 s, 40 s … 10 min; each spread by a quarter; what is held comes back within one more pause."""
    rules, rng = BreakerSettings(), random.Random(seed)
    pause = rules.pause
    for n in range(probes):
        assert pause == min(rules.pause * 2**n, rules.longest_pause)
        wait = wait_for_probe(pause, rng)
        assert pause * 0.75 <= wait <= pause * 1.25
        held = hold_for(wait, pause, rng)
        assert wait < wait + pause * 0.09 <= held <= wait + pause
        assert timedelta(0) < hold_for(-wait, pause, rng) <= pause
        pause = rules.next_pause(pause)


def test_pauses_of_other_settings_come_back_into_range() -> None:
    """A row that another worker wrote, with longer or shorter pauses than are set here."""
    rules = BreakerSettings(pause=SECOND, longest_pause=8 * SECOND)
    assert rules.next_pause(timedelta(hours=1)) == 8 * SECOND
    assert rules.next_pause(SECOND / 1000) == 2 * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": -1},
        {"over": -SECOND},
        {"pause": timedelta(0)},
        {"pause": timedelta(minutes=11)},
        {"longest_pause": SECOND},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    """Both fields are named."""
    with pytest.raises(InvalidInputError, match="pause"):
        BreakerSettings(**wrong)
