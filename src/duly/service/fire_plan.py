"""What a schedule that is due makes of its fires: which become jobs, which are passed over, and when the next is. Pure.

Fires that are late by `missed_after` at most are made, each of them. A schedule whose oldest fire is later than that
has missed its fires (nobody was there to make them), and `missed` says what becomes of all that are due: none is made,
the last one, or up to `missed_limit` of the last. `overlap` says what happens while a job of the schedule has not
ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Literal

from duly.service.timing import Timing, fires_after

MOST_AT_ONCE = 20
COUNTED = 200  # fires that are passed over are counted up to here

_JUST_BEFORE = timedelta(microseconds=1)

MissedRule = Literal["skip", "one", "all"]
OverlapRule = Literal["allow", "skip", "wait"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of missed fires, and of fires while a job has not ended; `jitter` delays each job by up to that."""

    missed: MissedRule = "one"
    missed_limit: int = 100
    missed_after: timedelta = timedelta(minutes=1)
    overlap: OverlapRule = "allow"
    jitter: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a schedule stands. `next_fire_at`: its next fire as stored, the first after `since`; `made`: how many jobs
    it has made; `busy`: one of them has not ended; `waiting`: a fire waits for that.
    """

    next_fire_at: datetime
    since: datetime
    made: int = 0
    busy: bool = False
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Fires that become no job: the last of them, how many (COUNTED means that many or more), and why."""

    last: datetime
    count: int
    outcome: Literal["missed", "skipped"]


@dataclass(frozen=True, slots=True)
class FirePlan:
    """The fires to make, oldest first; those passed over; the next fire (None: there is none, the schedule ends).

    `hold`: nothing changes, the fire waits for the job before it.
    """

    fires: tuple[datetime, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    next_fire_at: datetime | None = None
    hold: bool = False


def plan_fires(timing: Timing, policy: Policy, turn: Turn, now: datetime, most: int = MOST_AT_ONCE) -> FirePlan:
    """What to do at `now`, by the database's clock. At most `most` fires are made; the rest is due at once.

    Raises FieldError if the timing cannot be read any more.
    """
    first = first_due(timing, turn)
    if first is None or first > now:
        return FirePlan(next_fire_at=first)
    if turn.busy and policy.overlap == "wait":
        return FirePlan(hold=True)
    passed: list[PassedOver] = []
    kept = _kept(timing, policy, turn, first, now, most)
    if not kept or kept[0] > first:
        end = kept[0] - _JUST_BEFORE if kept else now
        passed.append(_passed_over(timing, first, end, "skipped" if turn.waiting else "missed"))
    if kept and policy.overlap == "skip":
        return _without_overlap(timing, turn, now, kept, passed)
    if policy.overlap == "wait":
        kept = kept[:1]
    if timing.most_fires is not None:
        kept = kept[: max(0, timing.most_fires - turn.made)]
        if turn.made + len(kept) >= timing.most_fires:
            return FirePlan(tuple(kept), tuple(passed), None)
    last = kept[-1] if kept else now
    return FirePlan(tuple(kept), tuple(passed), timing.next_after(last))


def first_due(timing: Timing, turn: Turn) -> datetime | None:
    """The next fire as stored, or as the timing has it where that is none any more (the rules of its zone changed)."""
    stored = timing.next_after(turn.next_fire_at - _JUST_BEFORE)
    if stored == turn.next_fire_at:
        return stored
    return min((fire for fire in (stored, timing.next_after(turn.since)) if fire is not None), default=None)


def _kept(timing: Timing, policy: Policy, turn: Turn, first: datetime, now: datetime, most: int) -> list[datetime]:
    """The fires that are made, oldest first: of all that are due, or of the last of them."""
    if turn.waiting:
        newest = policy.missed_limit if policy.missed == "all" else 1
    elif now - first <= policy.missed_after:
        return [fire for fire in islice(fires_after(timing, first - _JUST_BEFORE), most) if fire <= now]
    else:
        newest = {"skip": 0, "one": 1, "all": policy.missed_limit}[policy.missed]
    kept: list[datetime] = []
    until = now
    while len(kept) < newest and (fire := timing.latest_until(until, first)) is not None:
        kept.append(fire)
        until = fire - _JUST_BEFORE
    return kept[::-1][:most]


def _without_overlap(
    timing: Timing, turn: Turn, now: datetime, kept: list[datetime], passed: list[PassedOver]
) -> FirePlan:
    """One fire at most, if nothing goes on; those beside it would overlap with it."""
    left = kept[1:]
    fires: tuple[datetime, ...] = (kept[0],)
    if turn.busy:
        left, fires = kept, ()
    if left:
        passed = [*passed, _passed_over(timing, left[0], now, "skipped")]
    made = turn.made + len(fires)
    ends = timing.most_fires is not None and made >= timing.most_fires
    return FirePlan(fires, tuple(passed), None if ends else timing.next_after(now))


def _passed_over(timing: Timing, first: datetime, end: datetime, outcome: Literal["missed", "skipped"]) -> PassedOver:
    """The fires from one that is due to `end`."""
    last = timing.latest_until(end, first) or first
    if timing.every is not None:
        return PassedOver(last, min((last - first) // timing.every + 1, COUNTED), outcome)
    due = takewhile(lambda fire: fire <= end, fires_after(timing, first - _JUST_BEFORE))
    return PassedOver(last, max(sum(1 for _ in islice(due, COUNTED)), 1), outcome)
