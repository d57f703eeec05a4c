"""What becomes of due fires: made, missed or skipped, and none is forgotten or made twice. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from duly.service.fire_plan import (
    COUNTED,
    FirePlan,
    MissedRule,
    OverlapRule,
    PassedOver,
    Policy,
    Turn,
    plan_fires,
)
from duly.service.timing import Timing

START = datetime(2026, 3, 29, tzinfo=UTC)  # a day of 23 hours in London
MINUTE = timedelta(minutes=1)
MINUTELY = Timing(START, cron="* * * * *", timezone="Europe/London")


def plan(late: timedelta, *, timing: Timing = MINUTELY, turn: dict[str, Any] | None = None, **policy: Any) -> FirePlan:
    """At `late` after the stored fire, which is START."""
    stands = Turn(START, START - timedelta(hours=1), **(turn or {}))
    return plan_fires(timing, Policy(**policy), stands, START + late)


def test_not_due() -> None:
    """Nothing is made, and the next fire is what it was."""
    assert plan(-MINUTE) == FirePlan(next_fire_at=START)


def test_late_fires_are_made_each() -> None:
    """Up to a minute late."""
    assert plan(timedelta(seconds=30)) == FirePlan((START,), (), START + MINUTE)
    assert plan(MINUTE).fires == (START, START + MINUTE)


def test_missed_fires() -> None:
    """Skip, the last one, the last few."""
    late = 5 * MINUTE + timedelta(seconds=1)
    after, last = START + 6 * MINUTE, START + 5 * MINUTE
    assert plan(late, missed="skip") == FirePlan((), (PassedOver(last, 6, "missed"),), after)
    assert plan(late) == FirePlan((last,), (PassedOver(last - MINUTE, 5, "missed"),), after)
    assert plan(late, missed="all", missed_limit=2).fires == (last - MINUTE, last)
    assert plan(late, missed="all") == FirePlan(tuple(START + n * MINUTE for n in range(6)), (), after)


def test_a_year_of_every_second_is_bounded() -> None:
    """Neither what is made nor what it costs grows with the time that was missed."""
    timing = Timing(START, cron="* * * * * *")
    found = plan(timedelta(days=365), timing=timing, missed="all", missed_limit=500)
    assert len(found.fires) == 20
    assert found.passed_over[0].count == COUNTED
    assert found.next_fire_at == START + timedelta(days=365) - timedelta(seconds=479)
    every = Timing(START, every=timedelta(seconds=1))
    assert plan(timedelta(days=365), timing=every).passed_over[0].count == COUNTED


def test_overlaps() -> None:
    """While a job goes on: skipped, or held; and of several at once the first is made."""
    late = timedelta(seconds=1)
    assert plan(late, turn={"busy": True}).fires == (START,)
    skipped = FirePlan((), (PassedOver(START, 1, "skipped"),), START + MINUTE)
    assert plan(late, turn={"busy": True}, overlap="skip") == skipped
    assert plan(late, turn={"busy": True}, overlap="wait") == FirePlan(hold=True)
    assert plan(MINUTE, overlap="skip").fires == (START,)
    assert plan(MINUTE, overlap="skip").passed_over == (PassedOver(START + MINUTE, 1, "skipped"),)
    assert plan(MINUTE, overlap="wait") == FirePlan((START,), (), START + MINUTE)
    waited = plan(10 * MINUTE, overlap="wait", missed="skip", turn={"waiting": True})
    assert waited == FirePlan(
        (START + 10 * MINUTE,), (PassedOver(START + 9 * MINUTE, 10, "skipped"),), START + 11 * MINUTE
    )


def test_the_count_ends_it() -> None:
    """No more than there are left, and no next fire then."""
    timing = Timing(START, every=MINUTE, most_fires=5)
    assert plan(MINUTE, timing=timing, turn={"made": 4}) == FirePlan((START,), (), None)
    assert plan(MINUTE, timing=timing, turn={"made": 3}).next_fire_at is None
    assert plan(timedelta(0), timing=timing, turn={"made": 4}, overlap="skip") == FirePlan((START,), (), None)
    assert plan(timedelta(0), timing=timing, turn={"made": 5}) == FirePlan((), (), None)


def test_a_stored_fire_that_is_none_any_more() -> None:
    """The zone's rules have changed: what they say now is made or waited for, nothing at the stored moment."""
    timing = Timing(START, cron="0 9 * * *")
    stands = Turn(START.replace(hour=10), START.replace(hour=9, minute=30))
    assert plan_fires(timing, Policy(), stands, START.replace(hour=10)).fires == ()
    at = START.replace(hour=9, minute=30)
    earlier = Turn(START.replace(hour=9, minute=30), START)
    assert plan_fires(timing, Policy(missed_after=timedelta(hours=1)), earlier, at).fires == (START.replace(hour=9),)


TIMINGS = st.sampled_from(
    [
        MINUTELY,
        Timing(START, cron="*/7 * * * *"),
        Timing(START, cron="30 0-3 * * *", timezone="Europe/London"),
        Timing(START, every=timedelta(seconds=50)),
        Timing(START, every=timedelta(seconds=50), end_at=START + timedelta(hours=2)),
        Timing(START, at=START),
    ]
)


@given(
    timing=TIMINGS,
    steps=st.lists(st.integers(0, 7200), min_size=1, max_size=12),
    missed=st.sampled_from(get_args(MissedRule)),
    overlap=st.sampled_from(get_args(OverlapRule)),
    limit=st.integers(1, 30),
    busy=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_every_fire_is_told_of_once(
    timing: Timing, steps: list[int], missed: MissedRule, overlap: OverlapRule, limit: int, busy: list[bool]
) -> None:
    """Whatever the pauses between steps, fires are made in order, none twice, none before its moment; those made and
    those passed over are together all that were due.
    """
    policy = Policy(missed, limit, overlap=overlap)
    first = timing.next_after(START - timedelta(microseconds=1))
    assert first is not None
    since, next_fire_at, now, waiting = START - MINUTE, first, first, False
    made: list[datetime] = []
    told = 0
    for step, goes_on in zip(steps, busy, strict=False):
        now += timedelta(seconds=step)
        found = plan_fires(timing, policy, Turn(next_fire_at, since, len(made), goes_on, waiting), now)
        waiting = found.hold
        if found.hold:
            continue
        assert all(fire <= now for fire in found.fires)
        assert not (goes_on and overlap != "allow" and found.fires)
        assert overlap == "allow" or len(found.fires) <= 1
        made.extend(found.fires)
        told += len(found.fires) + sum(over.count for over in found.passed_over)
        if found.next_fire_at is None:
            break
        since, next_fire_at = now, found.next_fire_at
    assert made == sorted(set(made))
    end = min(now, next_fire_at - timedelta(microseconds=1)) if found.next_fire_at or found.hold else now
    due = 0
    at: datetime | None = START - timedelta(microseconds=1)
    while at is not None and (at := timing.next_after(at)) is not None and at <= end:
        due += 1
    assert told == due or told >= COUNTED
