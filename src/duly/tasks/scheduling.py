"""Schedules declared beside tasks: a name, a call, and when. Declaring one changes nothing: `duly schedules apply
--app` shows what a program's declarations change, and makes it so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, get_args

from duly.model.errors import InvalidInputError
from duly.model.retry import LONGEST
from duly.model.storable import excerpt
from duly.tasks.enqueueing import Call
from duly.tasks.options import Duration, as_duration, checked_key
from duly.tasks.task import Prepared, Task

Missed = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "wait"]

_SECOND = timedelta(seconds=1)
_MOST_FIRES = 2_000_000_000
_MOST_MISSED = 500
_NAME_LIMIT = 100
_OF_ONE_CALL = ("delay", "run_at", "id")


class When(TypedDict, total=False):
    """When a schedule fires, and what becomes of fires that are missed or overlap: the fields of a schedule of the API.

    One of `cron` (in `timezone`), `every` and `at` is needed.
    """

    cron: str
    timezone: str
    every: Duration
    at: datetime
    start_at: datetime
    end_at: datetime
    count: int
    missed: Missed
    missed_limit: int
    missed_after: Duration
    overlap: Overlap
    jitter: Duration


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule as declared, each field of its type: whether it ever fires is found where it is applied. `call`: what
    its jobs are made of, its arguments validated.
    """

    name: str
    call: Call[Any]
    cron: str | None = None
    timezone: str | None = None
    every: timedelta | None = None
    at: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    count: int | None = None
    missed: Missed = "one"
    missed_limit: int = 100
    missed_after: timedelta = timedelta(minutes=1)
    overlap: Overlap = "allow"
    jitter: timedelta = timedelta(0)

    def is_same(self, other: DeclaredSchedule) -> bool:
        """Whether both declare the same, as a module that is imported twice does."""
        return _content(self) == _content(other)


def declared_schedule(
    name: str, what: Task[..., Any, Any] | Prepared[..., Any] | Call[Any], when: When
) -> DeclaredSchedule:
    """Check a declaration. Raises InvalidInputError for what cannot be right."""
    if len(checked_key("name", name)) > _NAME_LIMIT or not name.isprintable():
        raise InvalidInputError(
            f"schedule {excerpt(name)}: a printable name of at most {_NAME_LIMIT} is needed", "/name"
        )
    call = _call(name, what)
    for option in _OF_ONE_CALL:
        if getattr(call.options, option) is not None:
            raise InvalidInputError(
                f"schedule {excerpt(name)}: {option} is for one call, and each fire makes a job of its own: "
                "leave it out",
                f"/{option}",
            )
    given = {part: value for part, value in when.items() if value is not None}
    for part in given:
        if part not in _CHECKS:
            raise InvalidInputError(
                f"schedule {excerpt(name)} has no {excerpt(part)}: there are {', '.join(sorted(_CHECKS))}", f"/{part}"
            )
    ways = [part for part in ("cron", "every", "at") if part in given]
    if len(ways) != 1:
        said = f"has {' and '.join(ways)}" if ways else "says not when"
        raise InvalidInputError(f"schedule {excerpt(name)} {said}: give one of cron, every, at")
    if "missed_limit" in given and given.get("missed") != "all":
        raise InvalidInputError(
            f"schedule {excerpt(name)}: missed_limit goes together with missed='all'", "/missed_limit"
        )
    return DeclaredSchedule(name, call, **{part: _CHECKS[part](part, value) for part, value in given.items()})


def _call(name: str, what: object) -> Call[Any]:
    if isinstance(what, Call):
        return what
    if isinstance(what, Task | Prepared):
        return what.call()
    raise InvalidInputError(
        f"schedule {excerpt(name)} is of {excerpt(what)}: give a task, or a call of one with its arguments, "
        "as in task.call(7)"
    )


def _content(schedule: DeclaredSchedule) -> tuple[Any, ...]:
    row = schedule.call.to_row()
    del row["id"]
    return (row, *(getattr(schedule, part) for part in sorted(_CHECKS)))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"{name} is {excerpt(value)}: a text is needed", f"/{name}")
    return value


def _moment(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInputError(f"{name} is {excerpt(value)}: a datetime with a time zone is needed", f"/{name}")
    return value


def _between(lowest: timedelta, highest: timedelta) -> Callable[[str, Any], timedelta]:
    def check(name: str, value: Any) -> timedelta:
        duration = as_duration(name, value)
        if not lowest <= duration <= highest:
            raise InvalidInputError(f"{name} is {duration}: {lowest} to {highest} is needed", f"/{name}")
        return duration

    return check


def _count(most: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidInputError(
                f"{name} is {excerpt(value)}: a whole number from 1 to {most} is needed", f"/{name}"
            )
        return value

    return check


def _one_of(kinds: Any) -> Callable[[str, Any], Any]:
    words = get_args(kinds)

    def check(name: str, value: Any) -> Any:
        if value not in words:
            raise InvalidInputError(f"{name} is {excerpt(value)}: one of {', '.join(words)} is needed", f"/{name}")
        return value

    return check


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "cron": _text,
    "timezone": _text,
    "every": _between(_SECOND, LONGEST),
    "at": _moment,
    "start_at": _moment,
    "end_at": _moment,
    "count": _count(_MOST_FIRES),
    "missed": _one_of(Missed),
    "missed_limit": _count(_MOST_MISSED),
    "missed_after": _between(_SECOND, timedelta(days=31)),
    "overlap": _one_of(Overlap),
    "jitter": _between(timedelta(0), timedelta(hours=24)),
}
assert set(_CHECKS) == set(When.__annotations__)
