"""The database's time between two looks at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, DatabaseClock, Executor

THEN = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)


class Asked:
    """A database whose clock stands still, or that is away; each question takes two seconds."""

    schema = "duly"

    def __init__(self) -> None:
        self.monotonic_s = 1000.0
        self.away = False

    async def fetchval(self, *_: Any) -> Any:
        self.monotonic_s += 2
        if self.away:
            raise DatabaseUnavailableError("away")
        return THEN


async def test_time_goes_on_from_the_last_answer_whatever_the_wall_clock_says() -> None:
    """From the middle of the question, by the monotonic clock; a database that is away changes nothing."""
    asked = Asked()
    clock = DatabaseClock(cast("Executor", asked), monotonic=lambda: asked.monotonic_s)
    await clock.look()
    assert clock.now() == THEN + timedelta(seconds=1)
    asked.monotonic_s += 3600
    assert clock.now() == THEN + timedelta(seconds=3601)
    asked.away = True
    await clock.look()
    assert clock.now() == THEN + timedelta(seconds=3603)
    with pytest.raises(DatabaseUnavailableError):
        await clock.step()


async def test_before_the_first_answer_it_is_the_time_of_this_machine() -> None:
    """Nothing waits for it."""
    asked = Asked()
    asked.away = True
    clock = DatabaseClock(cast("Executor", asked), monotonic=lambda: asked.monotonic_s)
    await clock.look()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


async def test_it_is_looked_at_twice_a_minute(database: Database) -> None:
    """The real one, and not all processes at the same moment."""
    clock = DatabaseClock(database)
    delays = [await clock.step() for _ in range(5)]
    assert len(set(delays)) > 1
    assert all(timedelta(seconds=22) < delay < timedelta(seconds=38) for delay in delays)
    assert abs(clock.now() - await database.fetchval("select clock_timestamp()")) < timedelta(seconds=1)
