"""An outage is told in few lines, and pauses grow and spread."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly.queue.trouble import Trouble
from duly.worker.backing_off import Pause, database_pause


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


BEGINS = "the database is in trouble, trying again"
STILL = "the database is still in trouble, trying again"
OVER = "the database answers again"


def test_an_outage_has_a_first_line_a_reminder_and_a_last_line(caplog: pytest.LogCaptureFixture) -> None:
    """However many parts fail however often; it is over when the last of them works again."""
    clock = Clock()
    trouble = Trouble(clock)
    for _ in range(400):
        clock.now_s += 0.1
        trouble.failed("claim", OSError("refused"))
        trouble.failed("settle", TimeoutError())
    assert told(caplog) == [BEGINS, STILL]
    trouble.fine("claim")
    trouble.fine("promote")
    assert told(caplog) == []
    trouble.fine("settle")
    last = caplog.records[-1]
    assert (last.__dict__["failures"], last.__dict__["seconds"]) == (800, pytest.approx(39.9))
    assert told(caplog) == [OVER]
    trouble.fine("settle")
    assert told(caplog) == []


def test_a_database_that_comes_and_goes_is_told_twice_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """One short failure a second: the first is told with its end, the others within half a minute are not."""
    clock = Clock()
    trouble = Trouble(clock)
    for _ in range(60):
        trouble.failed("claim", OSError("refused"))
        trouble.fine("claim")
        clock.now_s += 1
    assert told(caplog) == [BEGINS, OVER] * 2


def test_the_line_names_part_and_error(caplog: pytest.LogCaptureFixture) -> None:
    """An error without words by its type."""
    Trouble().failed("claim", TimeoutError())
    [line] = caplog.records
    assert (line.__dict__["part"], line.__dict__["error"]) == ("claim", "TimeoutError")


def test_pauses_double_up_to_a_few_seconds_and_start_again() -> None:
    """0.1 s, 0.2 s … 4 s, each between half and one and a half times that."""
    pause = database_pause()
    for expected_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0):
        assert 0.5 * expected_s <= pause.next_s() <= 1.5 * expected_s
    pause.reset()
    assert pause.next_s() <= 0.15


def test_a_hundred_workers_do_not_come_back_as_one() -> None:
    """No tenth of the longest pause's spread has more than a quarter of them."""
    pauses = [Pause(timedelta(seconds=4), timedelta(seconds=4)) for _ in range(100)]
    waits = [pause.next_s() for pause in pauses]
    assert max(sum(low <= wait < low + 0.4 for wait in waits) for low in (2 + 0.4 * n for n in range(10))) <= 25
