"""Options: of the declaration, of one call, and what is refused."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from duly import App, Backoff, InvalidInputError
from duly.tasks.options import CallFields, Options, is_retried

app = App()


@app.task(name="declared", queue="mail", priority=2, max_attempts=4, backoff=[1, 5], timeout=9, tags=["a"], unique=True)
def declared(n: int, who: str = "x") -> None: ...


def test_a_declaration_is_what_its_jobs_get() -> None:
    """Everything of it is in the row that is sent."""
    row = declared.call(1).to_row()
    assert (row["queue"], row["priority"], row["max_attempts"], row["timeout_seconds"]) == ("mail", 2, 4, 9)
    assert row["retry"]["backoff"]["steps"] == [1, 5]
    assert (row["tags"], row["unique_for"], row["on_conflict"]) == (["a"], "until_final", "keep")


def test_each_part_can_be_said_anew_for_one_call() -> None:
    """What is not said stays as declared; the declaration does not change."""
    at = datetime(2027, 1, 1, tzinfo=UTC)
    call = declared.using(
        queue="q", priority=9, max_attempts=1, backoff=3, max_age=60, timeout=1, expires_after=5, tags=[],
        run_at=at, unique="k", unique_until=30, on_conflict="replace",
        concurrency_key=lambda n, who="x": f"{who}-{n}", metadata={"m": 1},
    ).call(7)  # fmt: skip
    row = call.to_row()
    assert {
        name: row[name] for name in ("queue", "priority", "max_attempts", "expires_seconds", "concurrency_key")
    } == {
        "queue": "q",
        "priority": 9,
        "max_attempts": 1,
        "expires_seconds": 5,
        "concurrency_key": "x-7",
    }
    assert (row["unique_key"], row["unique_for"], row["on_conflict"]) == ("k", "30.0", "replace")
    assert row["run_at"] == at.isoformat()
    assert "tags" not in row
    assert declared.call(1).to_row()["queue"] == "mail"


def test_a_key_may_be_made_of_the_arguments_or_left_out() -> None:
    """A function that returns None says that this call has none."""
    by_who = declared.using(unique=lambda n, who="x": None if who == "x" else who)
    assert "unique_key" not in by_who.call(1).to_row()
    assert by_who.call(1, who="ada").to_row()["unique_key"] == "ada"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "no queue!"}, "is no queue name"),
        ({"queue": ""}, "is no queue name"),
        ({"priority": 10}, "from 0 to 9"),
        ({"priority": True}, "whole number"),
        ({"max_attempts": 0}, "from 1 to 1000"),
        ({"max_attempts": 2.5}, "whole number"),
        ({"timeout": 0}, "more than 0"),
        ({"timeout": timedelta(days=366)}, "at most 365 days"),
        ({"timeout": float("nan")}, "at most 365 days|0 or more"),
        ({"delay": -1}, "0 or more"),
        ({"delay": "1h"}, "a timedelta or seconds"),
        ({"delay": 1, "run_at": datetime(2027, 1, 1, tzinfo=UTC)}, "exclude each other"),
        ({"run_at": datetime(2027, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=14)))}, "years 1 to 9998"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "years 1 to 9998"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "years 1 to 9998"),
        ({"backoff": []}, "one delay at least"),
        ({"backoff": "fast"}, "a timedelta or seconds"),
        ({"unique": ""}, "1 to 200 characters"),
        ({"unique": "a\x00"}, "1 to 200 characters"),
        ({"unique_until": "midnight"}, "'start', 'final' or a duration"),
        ({"on_conflict": "ignore"}, "'keep', 'error' or 'replace'"),
        ({"concurrency_key": "x" * 201}, "1 to 200 characters"),
        ({"tags": "abc"}, "a list of at most 20"),
        ({"retry_on": "ValueError"}, "exception classes"),
        ({"bury_on": (1,)}, "exception classes"),
        ({"id": "x"}, "version 7"),
        ({"savepoint": 1}, "True or False"),
        ({"retries": 3}, "no option 'retries'"),
    ],
)
def test_what_cannot_be_right_is_refused(options: Any, says: str) -> None:
    """When it is said, with the name of the part."""
    with pytest.raises(InvalidInputError, match=says):
        declared.using(**options)


@pytest.mark.parametrize("name", [name for name in CallFields.__annotations__ if name != "metadata"])
def test_what_is_refused_is_not_repeated_at_length(name: str) -> None:
    """An error is read by people: as much of the value as tells which it was."""
    options: Any = {name: [object()] * 5 + ["x" * 1_000_000]}
    with pytest.raises(InvalidInputError) as caught:
        declared.using(**options)
    assert len(str(caught.value)) < 400


def test_a_delay_of_a_key_that_is_no_text_is_refused_at_the_call() -> None:
    """The function's answer is checked as a text would be."""
    with pytest.raises(InvalidInputError, match="unique is 7"):
        declared.using(unique=lambda n, who="x": 7).call(1)  # type: ignore[arg-type,return-value]


def test_backoff_in_short_words() -> None:
    """One delay is always that delay, several come one after the other."""
    rng = random.Random(1)
    assert Options().but({"backoff": 5}).backoff.ceiling(9) == timedelta(seconds=5)
    steps = Options().but({"backoff": [1, timedelta(minutes=1)]}).backoff
    assert [steps.ceiling(n).total_seconds() for n in (1, 2, 3)] == [1, 60, 60]
    own = Backoff("linear", base=timedelta(seconds=2), jitter=0)
    assert Options().but({"backoff": own}).backoff.delay(3, rng) == timedelta(seconds=6)


class Flaky(ConnectionError): ...


@pytest.mark.parametrize(
    ("options", "error", "retried"),
    [
        ({}, ValueError(), True),
        ({}, SystemExit(1), True),
        ({"retry_on": ConnectionError}, Flaky(), True),
        ({"retry_on": ConnectionError}, ValueError(), False),
        ({"bury_on": (KeyError, ValueError)}, KeyError("k"), False),
        ({"bury_on": ConnectionError}, Flaky(), False),
        ({"bury_on": LookupError, "retry_on": KeyError}, KeyError("k"), False),
        ({"bury_on": SystemExit}, SystemExit(1), False),
        ({"retry_on": ConnectionError}, KeyboardInterrupt(), True),
    ],
)
def test_which_exceptions_are_retried(options: Any, error: BaseException, retried: bool) -> None:
    """By the classes that are declared, or by those that one call said, which are stored by name with the job."""
    said = Options().but(options)
    assert is_retried(error, said, "default") is retried
    assert is_retried(error, Options(), said.policy(Options()).on) is retried
