"""Backoff and retry policies: what each kind waits, where it stops growing, what is stored."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model import Backoff, RetryPolicy
from duly.model.retry import LONGEST, BackoffKind

S = timedelta(seconds=1)


def ceilings(backoff: Backoff, n: int) -> list[float]:
    return [backoff.ceiling(k).total_seconds() for k in range(1, n + 1)]


def test_the_default_plan_is_the_documented_one() -> None:
    """10 s, 40 s, 2 m 40 s, 10 m 40 s, 42 m 40 s, 2 h 50 m 40 s, 6 h."""
    assert ceilings(Backoff(), 7) == [10, 40, 160, 640, 2560, 10240, 21600]


def test_linear_grows_by_its_base() -> None:
    """linear: base × n."""
    assert ceilings(Backoff("linear", base=5 * S), 4) == [5, 10, 15, 20]


def test_fixed_never_grows() -> None:
    """fixed: base, every time."""
    assert ceilings(Backoff("fixed", base=7 * S), 3) == [7, 7, 7]


def test_steps_repeat_the_last_one() -> None:
    """steps: one after the other, then the last one for good."""
    assert ceilings(Backoff("steps", steps=(1 * S, 30 * S)), 4) == [1, 30, 30, 30]


def test_no_steps_mean_no_delay() -> None:
    """steps without any: at once."""
    assert Backoff("steps").ceiling(3) == timedelta(0)


@pytest.mark.parametrize("kind", ["exponential", "linear", "fixed", "steps"])
def test_every_kind_is_capped(kind: BackoffKind) -> None:
    """No kind waits longer than `max`."""
    backoff = Backoff(kind, base=100 * S, steps=(100 * S,), max=60 * S)
    assert backoff.ceiling(1) == 60 * S


@pytest.mark.parametrize("failures", [20, 47, 1100, 10**6, 10**12])
@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_many_failures_saturate(kind: BackoffKind, failures: int) -> None:
    """FO-015: at attempt 47 and 1100 the delay stands at the cap; it neither overflows nor vanishes."""
    assert Backoff(kind, base=5 * S, factor=2.0).ceiling(failures) in (timedelta(hours=6), 5 * S * failures)
    assert Backoff(kind, base=5 * S, factor=5.0, max=timedelta.max).ceiling(failures) <= LONGEST


def test_doubling_at_attempt_47_and_1100_is_the_cap() -> None:
    """2.0 ** 1024 raises OverflowError; the exponent is looked at before it is raised."""
    assert Backoff(base=S, factor=2.0).ceiling(47) == timedelta(hours=6)
    assert Backoff(base=S, factor=2.0).ceiling(1100) == timedelta(hours=6)
    assert Backoff(base=S, factor=2.0, max=timedelta.max).ceiling(1100) == LONGEST


def test_base_zero_waits_not_at_all() -> None:
    """FO-015: base 0 gives 0 at every attempt."""
    assert ceilings(Backoff(base=timedelta(0)), 3) == [0, 0, 0]
    assert Backoff(base=timedelta(0)).ceiling(1100) == timedelta(0)


def test_a_float_base_is_kept() -> None:
    """FO-015: fractions of a second count."""
    assert ceilings(Backoff(base=timedelta(seconds=0.25), factor=1.5), 3) == [0.25, 0.375, 0.5625]


def test_a_shrinking_factor_is_allowed() -> None:
    """A factor below 1 shortens the delays and never raises."""
    assert ceilings(Backoff(base=8 * S, factor=0.5), 4) == [8, 4, 2, 1]
    assert Backoff(base=8 * S, factor=0.5).ceiling(5000) == timedelta(0)


def test_no_failure_counts_as_the_first() -> None:
    """A count below 1 is taken for 1."""
    assert Backoff().ceiling(0) == Backoff().ceiling(1) == Backoff().ceiling(-3)


@given(
    kind=st.sampled_from(["exponential", "linear", "fixed", "steps"]),
    base_s=st.floats(0, 1e6),
    factor=st.floats(0, 1e6),
    failures=st.integers(-5, 10**9),
    max_s=st.floats(0, 1e12),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_any_policy_gives_a_delay_within_its_bounds(
    kind: BackoffKind, base_s: float, factor: float, failures: int, max_s: float, jitter: float, seed: int
) -> None:
    """0 ≤ ceiling ≤ min(max, a year), and jitter stays within ±j of it, whatever the numbers are."""
    base = timedelta(seconds=base_s)
    backoff = Backoff(kind, base, factor, timedelta(seconds=max_s), jitter, (base,))
    ceiling_s = backoff.ceiling(failures).total_seconds()
    assert 0 <= ceiling_s <= min(max_s, LONGEST.total_seconds()) + 1e-6
    delay_s = backoff.delay(failures, random.Random(seed)).total_seconds()
    assert ceiling_s * (1 - jitter) - 1e-5 <= delay_s <= ceiling_s * (1 + jitter) + 1e-5


def test_jitter_reaches_both_ends_of_its_range() -> None:
    """± 25 % by default: delays spread over most of the range, on both sides."""
    rng = random.Random(1)
    delays = [Backoff().delay(1, rng).total_seconds() for _ in range(2000)]
    assert 7.5 <= min(delays) < 7.6
    assert 12.4 < max(delays) <= 12.5


def test_no_jitter_is_exact() -> None:
    """jitter 0: the ceiling itself."""
    assert Backoff(jitter=0).delay(3, random.Random(5)) == 160 * S


def test_the_default_policy_is_stored_as_nothing() -> None:
    """None stands for the default; `max_attempts` is a column of its own."""
    assert RetryPolicy().to_json() is None
    assert RetryPolicy(max_attempts=3).to_json() is None
    assert RetryPolicy.from_json(None, 3) == RetryPolicy(max_attempts=3)


_durations = st.integers(0, 10**12).map(lambda ms: timedelta(milliseconds=ms))
_policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1000),
    backoff=st.builds(
        Backoff,
        st.sampled_from(["exponential", "linear", "fixed", "steps"]),
        _durations,
        st.floats(0, 100),
        _durations,
        st.floats(0, 1),
        st.lists(_durations, max_size=4).map(tuple),
    ),
    max_age=_durations,
    on=st.sampled_from(["default", "all_non_2xx", (404, "5xx"), ()]),
)


@given(_policies)
def test_what_is_stored_is_read_back(policy: RetryPolicy) -> None:
    """Through JSON and back: the same policy."""
    stored = policy.to_json()
    assert RetryPolicy.from_json(json.loads(json.dumps(stored)), policy.max_attempts) == policy


@pytest.mark.parametrize(
    "stored",
    [
        7,
        "x",
        [],
        {"backoff": 5},
        {"backoff": {"kind": "weird", "base": "x", "factor": None, "max": [], "jitter": True, "steps": 7}},
        {"backoff": {"base": -1, "factor": -2, "max": -1, "jitter": -1}},
        {"backoff": {"base": 10**400, "factor": 10**400, "max": 10**400, "jitter": 10**400}},
        {"max_age": "soon"},
        {"max_age": -1},
        {"max_age": 10**400},
        {"on": 5},
    ],
    ids=range(11),
)
def test_parts_that_make_no_sense_take_their_defaults(stored: Any) -> None:
    """FO-008: whatever SQL has stored: one strange policy must not stop the claim of the jobs beside it."""
    assert RetryPolicy.from_json(stored, 5) == RetryPolicy(max_attempts=5)


def test_strange_parts_leave_the_others_alone() -> None:
    """Each part for itself; durations saturate, jitter is at most 1."""
    stored = {"backoff": {"kind": "fixed", "base": 3, "max": 1e300, "jitter": 7, "steps": [1, "x"]}, "on": [404, None]}
    backoff = Backoff("fixed", 3 * S, 4.0, timedelta(days=365_000), 1.0, (S, 10 * S))
    assert RetryPolicy.from_json(stored, 5) == RetryPolicy(5, backoff, on=(404,))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_parts = st.fixed_dictionaries({}, optional=dict.fromkeys(("kind", "base", "factor", "max", "jitter", "steps"), _json))


@given(st.fixed_dictionaries({}, optional={"backoff": _parts | _json, "max_age": _json, "on": _json}) | _json)
def test_any_stored_policy_can_be_read_and_followed(stored: Any) -> None:
    """FO-015: and gives a delay within its bounds, at any attempt."""
    policy = RetryPolicy.from_json(stored, 5)
    for failures in (1, 47, 1100):
        assert timedelta(0) <= policy.backoff.delay(failures, random.Random(1)) <= 2 * LONGEST
    assert policy.max_age >= timedelta(0)


def test_a_plan_lists_the_delays_to_come() -> None:
    """After two failures with three attempts left: the third, fourth and fifth delay."""
    assert [d.total_seconds() for d in RetryPolicy().plan(2, 3)] == [160, 640, 2560]
    assert RetryPolicy().plan(0, 0) == ()


@pytest.mark.parametrize(
    ("policy", "failures"),
    [
        pytest.param(Backoff(), 3, id="the default from its third retry on"),
        pytest.param(Backoff(base=60 * S, jitter=0.5), 1, id="a minute, give or take a half"),
    ],
)
def test_retries_of_many_do_not_go_off_in_lockstep(policy: Backoff, failures: int) -> None:
    """FO-060: of 500 that fail at once no second carries more than 5 %, where the interval is long enough for that."""
    rng = random.Random(60)
    for _ in range(20):
        seconds = Counter(int(policy.delay(failures, rng).total_seconds()) for _ in range(500))
        assert max(seconds.values()) <= 25


def test_every_retry_is_spread_evenly_over_its_interval() -> None:
    """FO-060: a short interval, too: ten equal parts of the first retry's five seconds carry a tenth each, nearly."""
    rng = random.Random(61)
    backoff = Backoff()
    delays_s = [backoff.delay(1, rng).total_seconds() for _ in range(5000)]
    parts = Counter(int((delay_s - 7.5) / 0.5) for delay_s in delays_s)
    assert parts.keys() == set(range(10))
    assert all(400 < n < 600 for n in parts.values())
