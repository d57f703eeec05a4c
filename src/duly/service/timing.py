"""When a schedule fires: by a cron expression, at an interval, once; within its start, end and count. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from duly.service.cron import parse_cron
from duly.service.faults import Fault, FieldError, InvalidScheduleError

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(days=366)
FARTHEST = datetime(9998, 1, 1, tzinfo=UTC)
DEFAULT_ZONE = "UTC"

_GAPS_LOOKED_AT = 50
_JUST_BEFORE = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """One of `cron` (in `timezone`), `every` and `at` is given. All moments are UTC.

    `anchor`: intervals are counted from here, so their phase outlives restarts and edits. No fire is before `start_at`
    or after `end_at`. `most_fires`: how many jobs are made in all, None for no end.
    """

    anchor: datetime
    cron: str | None = None
    timezone: str | None = None
    every: timedelta | None = None
    at: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    most_fires: int | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire after a moment, in UTC; None if there is none. FieldError if the rule cannot be read."""
        if self.start_at is not None and moment < self.start_at:
            moment = self.start_at - _JUST_BEFORE
        found = self._next_after(moment)
        return None if found is None or found > self._end else found

    def latest_until(self, moment: datetime, since: datetime) -> datetime | None:
        """The last fire at or before a moment and not before `since`, in UTC; None if there is none."""
        since = since if self.start_at is None else max(since, self.start_at)
        moment = min(moment, self._end)
        return None if moment < since else self._latest_until(moment, since)

    @property
    def _end(self) -> datetime:
        return FARTHEST if self.end_at is None else min(self.end_at, FARTHEST)

    def _next_after(self, moment: datetime) -> datetime | None:
        if self.cron is not None:
            return parse_cron(self.cron, self.timezone or DEFAULT_ZONE).next_after(moment)
        if self.every is not None:
            if moment < self.anchor:
                return self.anchor
            passed = (moment - self.anchor) // self.every + 1
            return _plus(self.anchor, self.every, passed)
        return self.at if self.at is not None and self.at > moment else None

    def _latest_until(self, moment: datetime, since: datetime) -> datetime | None:
        if self.cron is not None:
            return parse_cron(self.cron, self.timezone or DEFAULT_ZONE).latest_until(moment, since)
        if self.every is not None:
            found = self.anchor + (moment - self.anchor) // self.every * self.every
            return found if found >= max(since, self.anchor) else None
        return self.at if self.at is not None and since <= self.at <= moment else None


def fires_after(timing: Timing, moment: datetime) -> Iterator[datetime]:
    """The fires after a moment, in order, as many as there are (`most_fires` is not counted)."""
    at: datetime | None = moment
    while at is not None and (at := timing.next_after(at)) is not None:
        yield at


@dataclass(frozen=True, slots=True)
class Asked:
    """When a caller wants a schedule to fire, each field of its type. `delay`: before the first fire; or `start_at`."""

    cron: str | None = None
    timezone: str | None = None
    every: timedelta | None = None
    at: datetime | None = None
    start_at: datetime | None = None
    delay: timedelta | None = None
    end_at: datetime | None = None
    count: int | None = None


def new_timing(asked: Asked, *, now: datetime, jitter: timedelta, horizon: timedelta) -> Timing:
    """Check the parts against each other. Raises InvalidScheduleError with every fault.

    An interval's first fire is at `start_at` or after `delay` if one of them is given, else after one interval.
    """
    faults = list(_faults(asked, now, horizon))
    if faults:
        raise InvalidScheduleError(faults)
    start_at = asked.start_at
    if asked.delay is not None:
        start_at = now + asked.delay
    anchor = start_at or now + (asked.every or timedelta(0))
    timing = Timing(anchor, asked.cron, asked.timezone, asked.every, asked.at, start_at, asked.end_at, asked.count)
    if timing.next_after(now) is None:
        where = "/end_at" if asked.end_at is not None else "/cron"
        raise InvalidScheduleError([Fault(where, "there is no fire before it: the schedule would do nothing")])
    if jitter and (shortest := shortest_gap(timing, now)) is not None and jitter > shortest:
        raise InvalidScheduleError([Fault("/jitter", "is longer than the time between two fires")])
    return timing


def shortest_gap(timing: Timing, now: datetime) -> timedelta | None:
    """The least time between two of the next fires; None if there is but one."""
    fires = [fire for fire, _ in zip(fires_after(timing, now), range(_GAPS_LOOKED_AT), strict=False)]
    return min((later - fire for fire, later in pairwise(fires)), default=None)


def _faults(asked: Asked, now: datetime, horizon: timedelta) -> Iterator[Fault]:
    ways = [name for name in ("cron", "every", "at") if getattr(asked, name) is not None]
    if not ways:
        yield Fault("", "says not when: give one of cron, every, at")
    for name in ways[1:]:
        yield Fault(f"/{name}", f"excludes {ways[0]}: give one of cron, every, at")
    if asked.timezone is not None and asked.cron is None and ways:
        yield Fault("/timezone", f"goes together with cron: {ways[0]} needs no time zone")
    if asked.cron is not None:
        try:
            parse_cron(asked.cron, DEFAULT_ZONE)
        except FieldError as error:
            yield Fault("/cron", str(error))
        try:
            parse_cron("@daily", asked.timezone or DEFAULT_ZONE)
        except FieldError as error:
            yield Fault("/timezone", str(error))
    if asked.at is not None:
        for name in ("start_at", "delay", "end_at", "count"):
            if getattr(asked, name) is not None:
                yield Fault(f"/{name}", "goes together with cron or every: at fires once, and just then")
        if asked.at <= now:
            yield Fault("/at", "is in the past")
    if asked.start_at is not None and asked.delay is not None:
        yield Fault("/delay", "excludes start_at: give one of them")
    yield from _window_faults(asked, now, horizon)


def _window_faults(asked: Asked, now: datetime, horizon: timedelta) -> Iterator[Fault]:
    for name in ("start_at", "at"):
        moment = getattr(asked, name)
        if moment is not None and moment - now > horizon:
            yield Fault(f"/{name}", f"is more than {horizon.days} days ahead, the most this service keeps")
    start_at = asked.start_at if asked.delay is None else now + asked.delay
    if asked.end_at is not None:
        if asked.end_at <= now:
            yield Fault("/end_at", "is in the past: the schedule would never fire")
        elif start_at is not None and asked.end_at < start_at:
            yield Fault("/end_at", "is before the start: the schedule would never fire")
    if asked.at is None and asked.count is not None and asked.count < 1:
        yield Fault("/count", "must be 1 or more")


def _plus(anchor: datetime, every: timedelta, times: int) -> datetime | None:
    try:
        return anchor + every * times
    except OverflowError:
        return None
