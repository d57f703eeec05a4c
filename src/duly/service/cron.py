"""Cron expressions in a time zone: when the next fire is, and when the last one was. Pure.

Which local times match is cronsim's to say (pypi.org/project/cronsim, the parser and the calendar of Debian's cron);
it is asked about local times only. Which moments they are, where clocks change, is the rule of this module:

- A local time that is skipped moves forward by what was skipped: 02:30 fires at the moment that 03:30 is, as the clock
  from before the change would have it. Where something fires at that moment anyway, it fires once.
- A local time that comes twice fires at the first. A schedule that goes on through the hours fires at both: one whose
  hours leave none out, or whose minutes are * or */n (and more than one).

So a daily job fires once a day, and one of every few minutes never falls silent. cronsim's own handling is not used:
it holds for expressions of five fields only, takes `0 */2` for one that goes on, and moves all skipped times to the
first moment after the gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from duly.service.faults import FieldError
from duly.service.zones import FIRST, LAST, Stretch, stretch_at, zone_named

LONGEST = 200
NEVER: Final = "names a date that never comes"

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FORM = 'must be a cron expression of five fields, or six with seconds in front, such as "*/15 * * * *", or @daily'
_ANY_TIME = datetime(2000, 1, 1)  # noqa: DTZ001 (local)
_NOTHING = timedelta(0)
_SECOND = timedelta(seconds=1)
_REACH = timedelta(hours=50)
"""More than local times differ from UTC and clocks were ever moved: Samoa skipped a day of 24 hours in 2011."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression in a zone. Fires lie on whole seconds."""

    expression: str
    zone: ZoneInfo
    goes_on: bool
    _fields: str = field(repr=False)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire after a moment, in UTC; None if there is none in 50 years or before the year 9998."""
        at = max(moment, FIRST)
        while at < LAST:
            stretch = stretch_at(self.zone, at)
            found = min(self._first_in(stretch, moment), self._first_in(_earlier(self.zone, stretch), moment))
            if found < min(stretch.end, LAST):
                return found
            ahead = self._local_after(_naive(stretch.end) + stretch.offset - _REACH)
            if ahead is None:
                return None
            at = max(stretch.end, min(ahead.replace(tzinfo=UTC) - _REACH, LAST))
        return None

    def latest_until(self, moment: datetime, since: datetime) -> datetime | None:
        """The last fire at or before a moment and not before `since`, in UTC; None if there is none."""
        at = min(moment, LAST)
        while at >= max(since, FIRST + _SECOND):
            stretch = stretch_at(self.zone, at)
            found = max(self._last_in(stretch, moment), self._last_in(_earlier(self.zone, stretch), moment))
            if found >= stretch.start:
                return found if found >= since else None
            behind = self._local_before(_naive(stretch.start) + stretch.offset + _REACH)
            if behind is None:
                return None
            at = min(stretch.start - _SECOND, max(behind.replace(tzinfo=UTC) + _REACH, FIRST))
        return None

    def _first_in(self, stretch: Stretch, after: datetime) -> datetime:
        """The first fire of a stretch's clock after a moment; LAST if there is none."""
        start, end = self._bounds(stretch)
        if end <= after:
            return LAST
        local = self._local_after(_naive(max(after, start - _SECOND)) + stretch.offset)
        found = LAST if local is None else (local - stretch.offset).replace(tzinfo=UTC)
        return found if found < end else LAST

    def _last_in(self, stretch: Stretch, until: datetime) -> datetime:
        """The last fire of a stretch's clock at or before a moment; FIRST if there is none."""
        start, end = self._bounds(stretch)
        if start > until:
            return FIRST
        bound = until + _SECOND if until < end else end
        local = self._local_before(_naive(bound.replace(microsecond=0)) + stretch.offset)
        found = FIRST if local is None else (local - stretch.offset).replace(tzinfo=UTC)
        return found if found >= start else FIRST

    def _bounds(self, stretch: Stretch) -> tuple[datetime, datetime]:
        """From when until when a stretch's clock makes fires: on through what the next one skips, and not again what
        the one before has had.
        """
        skipped = max(stretch.after - stretch.offset, _NOTHING)
        repeated = _NOTHING if self.goes_on else max(stretch.before - stretch.offset, _NOTHING)
        return stretch.start + repeated, stretch.end + skipped

    def _local_after(self, local: datetime) -> datetime | None:
        return _ticked(self._fields, local, reverse=False)

    def _local_before(self, local: datetime) -> datetime | None:
        return _ticked(self._fields, local, reverse=True)


@lru_cache(maxsize=4096)
def parse_cron(expression: str, zone_name: str) -> Cron:
    """Read an expression. Raises FieldError for what is none and for dates that never come; for an unknown zone too."""
    zone = zone_named(zone_name)
    if len(expression) > LONGEST or not expression.isascii():
        raise FieldError(_FORM)
    fields = expression
    if expression.strip().startswith("@"):
        fields = _NICKNAMES.get(expression.strip().lower(), "")
        if not fields:
            raise FieldError(f"is no name that is known: {', '.join(_NICKNAMES)}; for intervals use every")
    try:
        parsed = CronSim(fields, _ANY_TIME)
    except CronSimError as error:
        wrong = str(error)
        if wrong.startswith("Bad day-of-month") and _day_exists(fields):
            raise FieldError(f"{NEVER}: no such month has that day") from None
        raise FieldError(f"{_FORM}; {wrong[0].lower()}{wrong[1:]}") from None
    except (ValueError, AssertionError, TypeError):
        raise FieldError(_FORM) from None
    minutes = parsed.parts[1]
    goes_on = len(parsed.hours) == 24 or (minutes.startswith("*") and "," not in minutes and len(parsed.minutes) > 1)
    cron = Cron(expression, zone, goes_on, fields)
    if _ticked(fields, _ANY_TIME, reverse=False) is None:
        raise FieldError(NEVER)
    return cron


def _day_exists(fields: str) -> bool:
    """Whether the days are good by themselves, in a month that has 31 of them."""
    parts = fields.split()
    parts[-2] = "1"
    try:
        CronSim(" ".join(parts), _ANY_TIME)
    except (CronSimError, ValueError, AssertionError, TypeError):
        return False
    return True


def _ticked(fields: str, local: datetime, *, reverse: bool) -> datetime | None:
    try:
        return next(CronSim(fields, local, reverse=reverse), None)
    except (OverflowError, ValueError):  # beyond the calendar
        return None


def _earlier(zone: ZoneInfo, stretch: Stretch) -> Stretch:
    return stretch_at(zone, max(stretch.start - _SECOND, FIRST))


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)
