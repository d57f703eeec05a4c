"""When cron expressions fire, held against a calculation that walks through every minute of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.service.cron import Cron, parse_cron
from duly.service.faults import FieldError
from duly.service.zones import zone_named

MINUTE = timedelta(minutes=1)
Matches = Callable[[datetime], bool]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def fires(cron: Cron, start: datetime, end: datetime) -> list[datetime]:
    """All from `start` on, before `end`."""
    found = []
    at = cron.next_after(start - timedelta(microseconds=1))
    while at is not None and at < end:
        found.append(at)
        at = cron.next_after(at)
    return found


# Every fire of three years -------------------------------------------------------------------------------------------
# expression, what a local time must be, and whether the schedule goes on through the hours

DAILY, GOES_ON = False, True
TABLE: dict[str, tuple[Matches, bool]] = {
    "*/15 * * * *": (lambda t: t.minute % 15 == 0, GOES_ON),
    "7 * * * *": (lambda t: t.minute == 7, GOES_ON),
    "0 0 * * *": (lambda t: (t.hour, t.minute) == (0, 0), DAILY),
    "30 0 * * *": (lambda t: (t.hour, t.minute) == (0, 30), DAILY),
    "30 1 * * *": (lambda t: (t.hour, t.minute) == (1, 30), DAILY),
    "0,30 1-3 * * *": (lambda t: t.hour in (1, 2, 3) and t.minute in (0, 30), DAILY),
    "15 */2 * * *": (lambda t: t.hour % 2 == 0 and t.minute == 15, DAILY),
    "*/20 0-4 * * *": (lambda t: t.hour <= 4 and t.minute % 20 == 0, GOES_ON),
    "45 23 * * 6": (lambda t: (t.hour, t.minute, t.isoweekday()) == (23, 45, 6), DAILY),
    "30 2 * 3,10 0": (
        lambda t: (t.hour, t.minute) == (2, 30) and t.month in (3, 10) and t.isoweekday() == 7,
        DAILY,
    ),
    "0 9 29 2 *": (lambda t: (t.month, t.day, t.hour, t.minute) == (2, 29, 9, 0), DAILY),
    "15 2 1,15 * 1": (
        lambda t: (t.hour, t.minute) == (2, 15) and (t.day in (1, 15) or t.isoweekday() == 1),
        DAILY,
    ),
    "0 3 L * *": (lambda t: (t.hour, t.minute) == (3, 0) and (t + timedelta(days=1)).day == 1, DAILY),
}
MINUTES = frozenset({0, 7, 15, 20, 30, 40, 45})  # no row of the table matches another minute
ZONES = {
    "Europe/London": 2023,
    "America/New_York": 2023,
    "Australia/Lord_Howe": 2023,  # half an hour
    "Africa/Casablanca": 2023,  # back for Ramadan
    "Asia/Beirut": 2023,  # midnight skipped
}
ODD_YEARS = {
    "America/Sao_Paulo": 2016,  # midnight skipped
    "Africa/Cairo": 2024,  # midnight skipped, and 23:00 repeated
    "America/Havana": 2024,  # midnight skipped, and repeated
    "Pacific/Apia": 2011,  # a whole day skipped
}


def walked(zone_name: str, start: datetime, end: datetime) -> dict[str, list[datetime]]:
    """The fires of the whole table, minute by minute over UTC: what the wall clock shows, what it never showed, and
    what it shows again. Knows no offsets and no transitions.
    """
    zone = zone_named(zone_name)
    found: dict[str, set[datetime]] = {expression: set() for expression in TABLE}
    shown: deque[datetime] = deque(maxlen=26 * 60)  # of the last 26 hours
    seen: dict[datetime, int] = {}
    last: datetime | None = None
    lead = timedelta(hours=30)
    moment = start - lead
    while moment < end + lead:
        wall = moment.astimezone(zone).replace(tzinfo=None)
        again = seen.get(wall, 0) > 0
        if len(shown) == shown.maxlen:
            seen[shown[0]] -= 1
        shown.append(wall)
        seen[wall] = seen.get(wall, 0) + 1
        for expression, (matches, goes_on) in TABLE.items() if wall.minute in MINUTES else ():
            if matches(wall) and (goes_on or not again):
                found[expression].add(moment)
        if last is not None and wall - last > MINUTE:
            for never in minutes(last + MINUTE, wall):
                for expression, (matches, _) in TABLE.items():
                    if matches(never):
                        found[expression].add(moment + (never - last - MINUTE))
        last = wall
        moment += MINUTE
    return {expression: sorted(t for t in times if start <= t < end) for expression, times in found.items()}


def minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += MINUTE


@pytest.mark.slow
@pytest.mark.parametrize(("zone", "year"), ZONES.items())
def test_every_fire_of_three_years(zone: str, year: int) -> None:
    """FO-051, FO-052: of a dozen expressions, over both changes of each year and a leap year, not one fire more or less
    than a walk over all minutes finds; looking back finds the same.
    """
    check_every_fire(zone, utc(year, 1, 1), utc(year + 3, 1, 1))


@pytest.mark.parametrize(("zone", "year"), ODD_YEARS.items())
def test_every_fire_of_an_odd_year(zone: str, year: int) -> None:
    """FO-051, FO-052: the same where midnights, or a whole day, were never shown."""
    check_every_fire(zone, utc(year, 1, 1), utc(year + 1, 1, 1))


def check_every_fire(zone: str, start: datetime, end: datetime) -> None:
    for expression, expected in walked(zone, start, end).items():
        cron = parse_cron(expression, zone)
        assert fires(cron, start, end) == expected, expression
        back = [cron.latest_until(t, start) for t in expected[-400:]]
        assert back == expected[-400:]
        between = [cron.latest_until(later - timedelta(microseconds=1), start) for later in expected[-400:][1:]]
        assert between == expected[-400:][:-1]


# The rule, by name ---------------------------------------------------------------------------------------------------


def test_a_schedule_of_every_few_minutes_is_never_silent() -> None:
    """FO-051: a hundred fires on the day of 25 hours, none more than 15 minutes apart; 92 on the day of 23."""
    cron = parse_cron("*/15 * * * *", "Europe/London")
    longest = fires(cron, utc(2026, 10, 24, 23), utc(2026, 10, 26))
    assert len(longest) == 100
    assert {later - fire for fire, later in pairwise(longest)} == {timedelta(minutes=15)}
    assert len(fires(cron, utc(2026, 3, 29), utc(2026, 3, 29, 23))) == 92


@pytest.mark.parametrize("expression", ["*/10 0-4 * * *", "*/10 * * * *", "* 1 * * *"])
def test_within_its_hours_neither(expression: str) -> None:
    """In the repeated hour a schedule of every few minutes goes on."""
    found = fires(parse_cron(expression, "Europe/London"), utc(2026, 10, 25), utc(2026, 10, 25, 2))
    assert max(later - fire for fire, later in pairwise(found)) <= timedelta(minutes=10)
    assert found[-1] >= utc(2026, 10, 25, 1, 50)


@pytest.mark.parametrize("zone", ["Europe/London", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"])
@pytest.mark.parametrize(
    "expression", ["30 0 * * *", "15 1 * * *", "30 2 * * *", "0 0 * * *", "@daily", "*/60 2 * * *"]
)
def test_a_daily_job_fires_once_a_day(zone: str, expression: str) -> None:
    """366 times in a leap year, whatever happens to its hour."""
    cron = parse_cron(expression, zone)
    start = datetime(2024, 1, 1, tzinfo=zone_named(zone)).astimezone(UTC)
    end = datetime(2025, 1, 1, tzinfo=zone_named(zone)).astimezone(UTC)
    found = fires(cron, start, end)
    assert len(found) == 366
    days = {fire.astimezone(zone_named(zone)).date() for fire in found}
    assert len(days) == 366


def test_a_skipped_time_moves_forward_by_the_gap() -> None:
    """01:30 does not exist in London on that day: 02:30 does, at the moment that 01:30 would have been."""
    assert fires(parse_cron("30 1 * * *", "Europe/London"), utc(2026, 3, 29), utc(2026, 3, 30)) == [
        utc(2026, 3, 29, 1, 30)
    ]


def test_what_moves_onto_another_fire_is_one_with_it() -> None:
    """01:15 moves to 02:15, which fires anyway."""
    found = fires(parse_cron("15 1,2 * * *", "Europe/London"), utc(2026, 3, 29), utc(2026, 3, 30))
    assert found == [utc(2026, 3, 29, 1, 15)]


def test_a_repeated_time_is_its_first() -> None:
    """01:30 in summer time, and not again an hour later."""
    found = fires(parse_cron("30 1 * * *", "Europe/London"), utc(2026, 10, 25), utc(2026, 10, 25, 12))
    assert found == [utc(2026, 10, 25, 0, 30)]


def test_seconds_come_first() -> None:
    """Six fields: every ten seconds of one minute, and for ever."""
    cron = parse_cron("*/10 30 9 * * *", "Europe/London")
    found = fires(cron, utc(2026, 7, 1), utc(2026, 7, 2))
    assert found == [utc(2026, 7, 1, 8, 30, second) for second in range(0, 60, 10)]
    every_second = parse_cron("* * * * * *", "Europe/London")
    assert len(fires(every_second, utc(2026, 3, 29, 0, 59, 30), utc(2026, 3, 29, 1, 1))) == 90


def test_leap_days() -> None:
    """FO-052: the next ones from 2025 and from 2096, across the year 2100, which has none; on the day itself nothing
    raises.
    """
    leap = parse_cron("0 9 29 2 *", "UTC")
    assert leap.next_after(utc(2025, 3, 1)) == utc(2028, 2, 29, 9)
    assert leap.next_after(utc(2096, 3, 1)) == utc(2104, 2, 29, 9)
    assert leap.latest_until(utc(2103, 1, 1), utc(2000, 1, 1)) == utc(2096, 2, 29, 9)
    for expression in ("0 9 29 2 *", "0 0 * * *", "@yearly", "0 0 1 3 *", "0 0 L 2 *", "0 0 * * 2L", "*/7 * * * *"):
        for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"):
            assert parse_cron(expression, zone).next_after(utc(2028, 2, 29, 12)) is not None


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 0 30 2 *", "0 0 */31 * 1#5"])
def test_a_date_that_never_comes_is_refused(expression: str) -> None:
    """FO-053: by its name, when it is read; and in no time."""
    with pytest.raises(FieldError, match="never comes"):
        parse_cron(expression, "UTC")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "*",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "1,,2 * * * *",
        "? * * * *",
        "* * * * MON#6",
        "* * * * #1",
        "* * * * L",
        "* * 1-L * *",
        "-1 * * * *",
        "٣ * * * *",
        "@reboot",
        "@every 5m",
        "@",
        "9" * 5000 + " * * * *",
        "* " * 101,
        "\x00 * * * *",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    """With a sentence that says what would be one, and does not repeat it."""
    with pytest.raises(FieldError) as caught:
        parse_cron(expression, "UTC")
    assert len(str(caught.value)) < 300


def test_an_unknown_zone_is_refused() -> None:
    """A path is none, nor is a name of the machine's own."""
    for zone in ("Mars/Olympus", "", "../../etc/passwd", "posix/Europe/London", "Factory", "europe/london"):
        with pytest.raises(FieldError, match="IANA"):
            parse_cron("* * * * *", zone)


def test_the_calendar_ends() -> None:
    """Nothing raises beyond the years that can be stored."""
    yearly = parse_cron("@yearly", "Pacific/Kiritimati")
    assert yearly.next_after(utc(9998, 12, 30)) is None
    assert yearly.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert yearly.latest_until(utc(1900, 1, 1), datetime.min.replace(tzinfo=UTC)) is None
    assert yearly.next_after(datetime.min.replace(tzinfo=UTC)) is not None


WORDS = st.sampled_from(
    [*"*012LWx,-/", "*/2", "*/7", "5,10", "0-30", "0-30/5", "23", "59", "LW", "MON", "1#2", "5L", "29", "30", "31"]
)


@given(st.lists(WORDS, min_size=5, max_size=6), st.sampled_from(sorted(ZONES)), st.integers(0, 10**9))
def test_whatever_is_accepted_goes_forward_and_back(words: list[str], zone: str, second: int) -> None:
    """A fire follows its moment, nothing lies between, and looking back from it finds it."""
    try:
        cron = parse_cron(" ".join(words), zone)
    except FieldError:
        return
    moment = utc(2000, 1, 1) + timedelta(seconds=second)
    found = cron.next_after(moment)
    assert found is not None
    assert found > moment
    assert cron.latest_until(found, moment) == found
    before = cron.latest_until(found - timedelta(seconds=1), utc(1950, 1, 1))
    assert before is None or before <= moment
    if before is not None:
        assert cron.next_after(before) == found
