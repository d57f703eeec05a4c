"""Time zones as the shipped tzdata package has them, whatever the machine has, and where their offsets change."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from duly.service.faults import FieldError

NO_ZONE = 'must be the name of an IANA time zone, such as "Europe/Berlin"'

_GRID: Final = timedelta(hours=6)  # no zone has changed its offset and back in so short a time
_SECOND: Final = timedelta(seconds=1)
FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)  # no fire is older …
LAST: Final = datetime(9998, 12, 31, tzinfo=UTC)  # … or newer: local times lie within the calendar


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a zone's offset stays the same: from `start` to `end`, which is no part of it. `before` and
    `after` are the offsets of its neighbours.
    """

    start: datetime
    end: datetime
    offset: timedelta
    before: timedelta
    after: timedelta


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The zone of this name in the tzdata package. Raises FieldError if it has none."""
    if name not in zone_names():
        raise FieldError(NO_ZONE)
    path = files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with path.open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@cache
def zone_names() -> frozenset[str]:
    """The zones of the tzdata package: the host's own list has names that mean something else on the next machine."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()) - {"Factory"}


def stretch_at(zone: ZoneInfo, moment: datetime) -> Stretch:
    """The stretch that a moment from FIRST to LAST lies in, cut where nothing changes for a year around it."""
    year = moment.astimezone(UTC).year
    changes = [change for y in (year - 1, year, year + 1) for change in _changes(zone, y)]
    after = bisect_right(changes, moment)
    start = changes[after - 1] if after else datetime(max(year - 1, 1), 1, 1, tzinfo=UTC)
    end = changes[after] if after < len(changes) else datetime(min(year + 2, 9999), 1, 1, tzinfo=UTC)
    return Stretch(start, end, _offset(zone, moment), _offset(zone, start - _SECOND), _offset(zone, end))


@lru_cache(maxsize=4096)
def _changes(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """The moments of a UTC year at which a new offset begins, to the second."""
    if not FIRST.year <= year <= LAST.year:
        return ()
    found = []
    here, end = datetime(year, 1, 1, tzinfo=UTC) - _SECOND, datetime(year + 1, 1, 1, tzinfo=UTC) - _SECOND
    while here < end:
        there = min(here + _GRID, end)
        if _offset(zone, here) != _offset(zone, there):
            found.append(_change_between(zone, here, there))
        here = there
    return tuple(found)


def _change_between(zone: ZoneInfo, here: datetime, there: datetime) -> datetime:
    before = _offset(zone, here)
    while there - here > _SECOND:
        middle = here + (there - here) // _SECOND // 2 * _SECOND
        here, there = (middle, there) if _offset(zone, middle) == before else (here, middle)
    return there


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None  # a zone always has one
    return offset
