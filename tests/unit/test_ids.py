"""Job ids: UUID version 7, in the order of their time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from duly.model import uuid7, uuid7_time


def test_an_id_is_a_version_7_uuid_of_now() -> None:
    """RFC 9562: version 7, variant 10, the time of its making."""
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == UUID(int=0x8 << 60).variant
    when = uuid7_time(made)
    assert when is not None
    assert before <= round(when.timestamp() * 1000) <= after


@given(st.integers(0, 253402300799999))
def test_the_time_is_read_back_to_the_millisecond(milliseconds: int) -> None:
    """What went in comes out, in UTC."""
    when = uuid7_time(uuid7(milliseconds))
    assert when is not None
    assert when.tzinfo is UTC
    assert round(when.timestamp() * 1000) == milliseconds


@given(st.integers(0, (1 << 48) - 2))
def test_ids_sort_by_time(milliseconds: int) -> None:
    """A later millisecond gives a greater id, whatever the random bits are."""
    assert uuid7(milliseconds) < uuid7(milliseconds + 1)


def test_ids_of_one_millisecond_differ() -> None:
    """74 random bits: ten thousand ids of one millisecond are all different."""
    assert len({uuid7(5) for _ in range(10_000)}) == 10_000


def test_other_versions_have_no_time() -> None:
    """None for a version 4, for nil, and for a time past the year 9999."""
    assert uuid7_time(uuid4()) is None
    assert uuid7_time(UUID(int=0)) is None
    assert uuid7_time(uuid7((1 << 48) - 1)) is None


def test_the_epoch_is_a_time() -> None:
    """Millisecond 0 is 1970."""
    assert uuid7_time(uuid7(0)) == datetime(1970, 1, 1, tzinfo=UTC)
