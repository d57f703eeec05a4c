"""Moments: RFC 3339, local times in zones, gaps and overlaps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.service.faults import FieldError
from duly.service.moments import in_zone, parse_local, parse_moment, parse_zone, show_moment


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2030-01-31T09:00:00Z", "2030-01-31T09:00:00Z"),
        ("2030-01-31t09:00:00z", "2030-01-31T09:00:00Z"),
        ("2030-01-31 09:00:00+02:00", "2030-01-31T07:00:00Z"),
        ("2030-01-31T00:00:00-05:30", "2030-01-31T05:30:00Z"),
        ("2030-01-31T09:00:00.1234567Z", "2030-01-31T09:00:00.123456Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
    ],
)
def test_reads_rfc_3339(text: str, shown: str) -> None:
    """Offsets become UTC, digits beyond microseconds go, a leap second is the next minute."""
    assert show_moment(parse_moment(text)) == shown


@pytest.mark.parametrize(
    "value",
    [
        "2030-01-31T09:00:00",
        "2030-01-31T09:00Z",
        "2030-01-31",
        "20300131T090000Z",
        "2030-02-30T00:00:00Z",
        "2030-01-31T24:00:00Z",
        "2030-01-31T09:00:61Z",
        "2030-01-31T09:00:00+0200",
        "2030-01-31T09:00:00+24:00",
        "2030-01-31T09:00:00 Z",
        "2030-01-31T09:00:00Z\n",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "9999-12-31T23:59:60Z",
        "２030-01-31T09:00:00Z",
        "now",
        "",
        1893456000,
        None,
    ],
)
def test_refuses(value: Any) -> None:
    """No offset, no calendar date, no other form."""
    with pytest.raises(FieldError):
        parse_moment(value)


@pytest.mark.parametrize(
    ("local", "zone", "utc"),
    [
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:30:00Z"),  # skipped: 03:30 summer time
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00Z"),  # twice: the first
        ("2026-03-08T02:30:00", "America/New_York", "2026-03-08T07:30:00Z"),
        ("2026-11-01T01:30:00", "America/New_York", "2026-11-01T05:30:00Z"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T22:00:00Z"),  # a day that Samoa never had
        ("2026-07-01T09:00", "Asia/Kathmandu", "2026-07-01T03:15:00Z"),
        ("2026-07-01T09:00", "UTC", "2026-07-01T09:00:00Z"),
    ],
)
def test_local_times(local: str, zone: str, utc: str) -> None:
    """A gap moves forward, an overlap takes the first."""
    assert show_moment(in_zone(parse_local(local), parse_zone(zone))) == utc


@pytest.mark.parametrize(
    "zone",
    ["", "localtime", "../../etc/passwd", "/etc/localtime", "europe/berlin", "EST5EDT4,M3", "Factory", "\x00", 1, None],
)
def test_refuses_zones(zone: Any) -> None:
    """Only names of the IANA list."""
    with pytest.raises(FieldError):
        parse_zone(zone)


@pytest.mark.parametrize(
    "local", ["2026-07-01T09:00Z", "2026-07-01T09:00+01:00", "2026-07-01", "x", "9999-12-31T23:59:60", 3]
)
def test_refuses_local(local: Any) -> None:
    """A local time carries no offset."""
    with pytest.raises(FieldError):
        parse_local(local)


def test_the_end_of_the_calendar() -> None:
    """A local time whose moment lies beyond year 9999."""
    with pytest.raises(FieldError):
        in_zone(datetime(9999, 12, 31, 23), parse_zone("America/New_York"))  # noqa: DTZ001


@given(st.datetimes(timezones=st.just(UTC)))
def test_shown_reads_back(moment: datetime) -> None:
    """What is shown is read back the same."""
    assert parse_moment(show_moment(moment)) == moment
