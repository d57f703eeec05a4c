"""What may be said about a task, at its declaration or for one call: checked once, into a type that cannot be wrong
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, get_args
from uuid import UUID

from duly.model.errors import InvalidInputError
from duly.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, QUEUE_NAME
from duly.model.retry import LONGEST, Backoff, RetryPolicy
from duly.model.storable import excerpt

Duration: TypeAlias = timedelta | float
"""A timedelta, or seconds."""

Key: TypeAlias = str | Callable[..., str | None]
"""A text, or a function of the call's arguments that makes it; None: this call has none."""

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
OnConflict = Literal["keep", "error", "replace"]
RunIn = Literal["auto", "process"]

DEFAULT_TIMEOUT = timedelta(minutes=5)
KEY_LIMIT = 200
_SHORTEST = timedelta(milliseconds=1)
_MAX_ATTEMPTS = 1000
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class TaskFields(TypedDict, total=False):
    """The options of a declaration; each may be given for one call instead.

    `backoff`: a Backoff, one delay, or the delays one after the other. `unique`: True derives a key from the task's
    name and all arguments; a text or a function of the arguments is the key itself. `on_conflict`, when another job
    holds the key: "keep" (the default) is content with that job, "error" raises, "replace" takes the place of one
    that waits. `retry_on`: only these exceptions are retried; `bury_on`: these never are.
    """

    queue: str
    priority: int
    max_attempts: int
    backoff: Backoff | Duration | Sequence[Duration]
    max_age: Duration
    timeout: Duration
    expires_after: Duration | None
    unique: bool | Key
    unique_until: Literal["start", "final"] | Duration
    on_conflict: OnConflict
    concurrency_key: Key | None
    tags: Sequence[str]
    retry_on: Errors
    bury_on: Errors


class CallFields(TaskFields, total=False):
    """What may be said of one call besides. `savepoint`: a statement that fails takes back itself only, not the
    transaction.
    """

    delay: Duration | None
    run_at: datetime | None
    id: UUID | None
    metadata: Any
    savepoint: bool


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that is said about a call, checked."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = 8
    backoff: Backoff = field(default_factory=Backoff)
    max_age: timedelta = timedelta(hours=24)
    timeout: timedelta = DEFAULT_TIMEOUT
    expires_after: timedelta | None = None
    unique: bool | Key = False
    unique_until: Literal["start", "final"] | timedelta = "final"
    on_conflict: OnConflict = "keep"
    concurrency_key: Key | None = None
    tags: tuple[str, ...] = ()
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    bury_on: tuple[type[BaseException], ...] = ()
    delay: timedelta | None = None
    run_at: datetime | None = None
    id: UUID | None = None
    metadata: Any = None
    savepoint: bool = False

    def but(self, given: CallFields) -> Options:
        """The same with some parts said anew. Raises InvalidInputError for what is no option, or cannot be right."""
        parts = dict(given)
        for name in parts:
            if name not in _CHECKS:
                raise InvalidInputError(
                    f"a task has no option {excerpt(name)}: there are {', '.join(sorted(_CHECKS))}", f"/{name}"
                )
        changed = replace(self, **{name: _CHECKS[name](name, value) for name, value in parts.items()})
        if changed.delay is not None and changed.run_at is not None:
            raise InvalidInputError("delay and run_at exclude each other: give one of them", "/run_at")
        return changed

    def policy(self, declared: Options) -> RetryPolicy:
        """What is stored of the retry rules. Exceptions are the declaration's business, unless this call says
        otherwise.
        """
        said: tuple[str, ...] = ()
        if (self.retry_on, self.bury_on) != (declared.retry_on, declared.bury_on):
            said = tuple(f"retry:{full_name(kind)}" for kind in self.retry_on)
            said += tuple(f"bury:{full_name(kind)}" for kind in self.bury_on)
        return RetryPolicy(self.max_attempts, self.backoff, self.max_age, said or "default")


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_retried(error: BaseException, options: Options, stored: str | tuple[int | str, ...]) -> bool:
    """Whether a failure with this exception may be tried again: not if `bury_on` has it, else if `retry_on` has it.
    What the call stored goes before what is declared. SystemExit and the like are failures as others are.
    """
    if isinstance(stored, tuple):
        names = {full_name(kind) for kind in type(error).__mro__}
        retried, buried = (
            any(isinstance(said, str) and said.startswith(word) and said[len(word) :] in names for said in stored)
            for word in ("retry:", "bury:")
        )
    else:
        retried, buried = isinstance(error, options.retry_on), isinstance(error, options.bury_on)
    return not buried and (retried or not isinstance(error, Exception))


def as_duration(name: str, value: Any) -> timedelta:
    """A timedelta, or seconds: 0 or more, at most a year."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidInputError(f"{name} is {excerpt(value)}: a timedelta or seconds is needed", f"/{name}")
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise InvalidInputError(f"{name} is {excerpt(value)}: at most 365 days", f"/{name}") from error
    if not timedelta(0) <= duration <= LONGEST:
        raise InvalidInputError(f"{name} is {duration}: 0 or more, at most 365 days", f"/{name}")
    return duration


def checked_key(name: str, key: Any) -> str:
    """A key's text: 1 to 200 characters that PostgreSQL can hold."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LIMIT or not _is_storable(key):
        raise InvalidInputError(
            f"{name} is {excerpt(key)}: a text of 1 to {KEY_LIMIT} characters is needed", f"/{name}"
        )
    return key


def _is_storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _queue(name: str, value: Any) -> str:
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(value):
        raise InvalidInputError(
            f"{excerpt(value)} is no queue name: letters, digits and . _ : / -, at most 100", f"/{name}"
        )
    return value


def _integer(lowest: int, highest: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise InvalidInputError(
                f"{name} is {excerpt(value)}: a whole number from {lowest} to {highest} is needed", f"/{name}"
            )
        return value

    return check


def _some_time(name: str, value: Any) -> timedelta:
    duration = as_duration(name, value)
    if duration < _SHORTEST:
        raise InvalidInputError(f"{name} is {duration}: more than 0 is needed", f"/{name}")
    return duration


def _some_time_or_none(name: str, value: Any) -> timedelta | None:
    return None if value is None else _some_time(name, value)


def _duration_or_none(name: str, value: Any) -> timedelta | None:
    return None if value is None else as_duration(name, value)


def _backoff(name: str, value: Any) -> Backoff:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise InvalidInputError("backoff is empty: one delay at least, or a Backoff", f"/{name}")
        return Backoff("steps", steps=tuple(as_duration(name, step) for step in value), max=LONGEST)
    return Backoff("fixed", base=as_duration(name, value), max=LONGEST)


def _unique(name: str, value: Any) -> bool | Key:
    return value if isinstance(value, bool) or callable(value) else checked_key(name, value)


def _unique_until(name: str, value: Any) -> Literal["start", "final"] | timedelta:
    if value == "start" or value == "final":
        return "start" if value == "start" else "final"
    if isinstance(value, str):
        raise InvalidInputError(f"{name} is {excerpt(value)}: 'start', 'final' or a duration is needed", f"/{name}")
    return _some_time(name, value)


def _on_conflict(name: str, value: Any) -> OnConflict:
    for known in get_args(OnConflict):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInputError(f"{name} is {excerpt(value)}: 'keep', 'error' or 'replace' is needed", f"/{name}")


def _key_or_none(name: str, value: Any) -> Key | None:
    return value if value is None or callable(value) else checked_key(name, value)


def _tags(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > 20:
        raise InvalidInputError(f"{name} is {excerpt(value)}: a list of at most 20 texts is needed", f"/{name}")
    return tuple(checked_key(name, tag) for tag in value)


def _errors(name: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidInputError(f"{name} has {excerpt(kind)}: exception classes are needed", f"/{name}")
    return kinds


def _run_at(name: str, value: Any) -> datetime | None:
    if value is not None and not (isinstance(value, datetime) and value.tzinfo is not None):
        raise InvalidInputError(f"{name} is {excerpt(value)}: a datetime with a time zone is needed", f"/{name}")
    if value is not None and not _EARLIEST <= value < _LATEST:
        raise InvalidInputError(f"{name} is {value}: a moment of the years 1 to 9998 is needed, by UTC", f"/{name}")
    return value


def _id(name: str, value: Any) -> UUID | None:
    if value is not None and not (isinstance(value, UUID) and value.version == 7):
        raise InvalidInputError(
            f"{name} is {excerpt(value)}: a UUID of version 7 is needed, from duly.uuid7()", f"/{name}"
        )
    return value


def _as_it_is(name: str, value: Any) -> Any:
    return value


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} is {excerpt(value)}: True or False is needed", f"/{name}")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": _queue,
    "priority": _integer(0, 9),
    "max_attempts": _integer(1, _MAX_ATTEMPTS),
    "backoff": _backoff,
    "max_age": _some_time,
    "timeout": _some_time,
    "expires_after": _some_time_or_none,
    "unique": _unique,
    "unique_until": _unique_until,
    "on_conflict": _on_conflict,
    "concurrency_key": _key_or_none,
    "tags": _tags,
    "retry_on": _errors,
    "bury_on": _errors,
    "delay": _duration_or_none,
    "run_at": _run_at,
    "id": _id,
    "metadata": _as_it_is,
    "savepoint": _bool,
}
assert set(_CHECKS) == {part.name for part in fields(Options)}
