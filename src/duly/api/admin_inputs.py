"""Accounts, plans, projects, keys and signing secrets as clients write them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, get_args
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from duly.api.inputs import read_uuid
from duly.model.jobs import QUEUE_NAME
from duly.service.durations import parse_duration, show_duration
from duly.service.faults import Fault, FieldError, InvalidFieldsError
from duly.service.keys import Scope
from duly.service.moments import parse_moment
from duly.service.notices import (
    DEAD_LETTERS,
    DEAD_WITHIN,
    LONGEST_WINDOW,
    MOST_DEAD_LETTERS,
    QUEUE,
    TYPES,
    About,
    NoticeSettings,
    NoticeType,
)
from duly.service.plans import LIMIT_RULES

LONGEST_OVERLAP = timedelta(days=90)
LONGEST_LIFE = timedelta(days=3650)
_LONGEST_NAME = 100
_DURATION: dict[str, Any] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
    "description": 'seconds as a number, or a string such as "10m", "12h", "30d"',
}


def _within(low: timedelta, high: timedelta) -> PlainValidator:
    def checked(value: Any) -> timedelta:
        duration = parse_duration(value)
        if not low <= duration <= high:
            raise FieldError(f"must be from {show_duration(low)} to {show_duration(high)}")
        return duration

    return PlainValidator(checked)


def _limit(name: str) -> PlainValidator:
    return PlainValidator(lambda value: None if value is None else LIMIT_RULES[name](value))


def _name(value: str) -> str:
    if not (1 <= len(value) <= _LONGEST_NAME and value.isprintable() and value == value.strip()):
        raise FieldError(f"must be 1 to {_LONGEST_NAME} printable characters, with no space at its ends")
    return value


def _scopes(value: Any) -> list[Scope]:
    known: tuple[Scope, ...] = get_args(Scope)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one in known for one in value):
        raise FieldError(f"must be an array of one or more of {', '.join(known)}")
    return [scope for scope in known if scope in value]


def _types(value: Any) -> tuple[NoticeType, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one in TYPES for one in value):
        raise FieldError(f"must be an array of one or more of {', '.join(TYPES)}")
    return tuple(kind for kind in TYPES if kind in value)


def _queue(value: str) -> str:
    if not QUEUE_NAME.fullmatch(value):
        raise FieldError("must be 1 to 100 letters, digits and . _ : / -, starting with a letter or digit")
    return value


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 100})]
Id = Annotated[UUID, PlainValidator(read_uuid), WithJsonSchema({"type": "string", "format": "uuid"})]
Scopes = Annotated[
    list[Scope],
    PlainValidator(_scopes),
    WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(get_args(Scope))}}),
]
Moment = Annotated[datetime, PlainValidator(parse_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
Overlap = Annotated[
    timedelta,
    _within(timedelta(0), LONGEST_OVERLAP),
    WithJsonSchema(_DURATION | {"default": "24h"}),
]


def _whole(least: int) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": least}, {"type": "null"}]})


_TIME = WithJsonSchema({"anyOf": [*_DURATION["anyOf"], {"type": "null"}]})


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LimitsInput(_Input):
    """Limits; what is left out is not said here, null means no limit. Durations are seconds or short strings."""

    running: Annotated[int | None, _limit("running"), _whole(1), Field(description="jobs that run at once")] = None
    stored: Annotated[int | None, _limit("stored"), _whole(0), Field(description="jobs that have not ended")] = None
    request_rate: Annotated[
        float | None,
        _limit("request_rate"),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0.01}, {"type": "null"}]}),
        Field(description="calls of the API a second, for each API process"),
    ] = None
    monthly_quota: Annotated[
        int | None,
        _limit("monthly_quota"),
        _whole(0),
        Field(description="jobs created a calendar month (UTC)"),
    ] = None
    body_bytes: Annotated[
        int | None, _limit("body_bytes"), _whole(0), Field(description="the longest body of a job")
    ] = None
    horizon: Annotated[float | None, _limit("horizon"), _TIME, Field(description="how far ahead a job may be due")] = (
        None
    )
    keep: Annotated[float | None, _limit("keep"), _TIME, Field(description="how long a finished job is kept")] = None
    keep_dead: Annotated[
        float | None, _limit("keep_dead"), _TIME, Field(description="how long a dead letter is kept")
    ] = None

    def given(self) -> dict[str, Any]:
        """Those that were given, as they are stored."""
        return self.model_dump(exclude_unset=True)


class PlanInput(_Input):
    """A plan: what its accounts may do."""

    limits: LimitsInput


class AccountInput(_Input):
    """A new account. Its own limits go before those of its plan."""

    name: Name
    plan: str | None = None
    limits: LimitsInput = Field(default_factory=LimitsInput)


class AccountChangeInput(_Input):
    """What to change; what is left out stays. `limits` replaces the account's own ones whole."""

    name: Name | None = None
    plan: str | None = None
    limits: LimitsInput | None = None


class ProjectInput(_Input):
    """A new project; without `account_id` in the key's own account."""

    name: Name
    account_id: Id | None = None


class ProjectChangeInput(_Input):
    """What to change."""

    name: Name


class KeyInput(_Input):
    """A new key; without `project_id` of the key's own project. At most one of `expires_at`, `expires_in`."""

    name: Name
    project_id: Id | None = None
    scopes: Scopes = Field(default=["read", "write"])
    expires_at: Moment | None = None
    expires_in: Annotated[timedelta | None, _within(timedelta(seconds=1), LONGEST_LIFE), WithJsonSchema(_DURATION)] = (
        None
    )


class RotationInput(_Input):
    """How long the old one is good beside the new one; zero: it ends at once."""

    overlap: Overlap = timedelta(hours=24)


class SecretInput(_Input):
    """A further signing secret; without `project_id` of the key's own project."""

    project_id: Id | None = None


class SecretRotationInput(_Input):
    """A new secret, and how long all the others go on signing beside it."""

    project_id: Id | None = None
    overlap: Overlap = timedelta(hours=24)


class NoticeInput(_Input):
    """A URL that is told, and of what. `project_id`: whose jobs tell it, with whose signature; without it the key's own
    project. `about`: that project, all of an account (`account_id`, without it the project's own), or everything.
    """

    url: Annotated[str, Field(description="told by POST, signed as every delivery is")]
    about: About = "project"
    project_id: Id | None = None
    account_id: Id | None = None
    types: Annotated[
        tuple[NoticeType, ...],
        PlainValidator(_types),
        WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(TYPES)}}),
        Field(description="what it is told of; without it everything there is"),
    ] = TYPES
    dead_letters: Annotated[
        int, Field(ge=1, le=MOST_DEAD_LETTERS, description="so many dead letters within dead_within are told of")
    ] = DEAD_LETTERS
    dead_within: Annotated[
        timedelta, _within(timedelta(seconds=1), LONGEST_WINDOW), WithJsonSchema(_DURATION | {"default": "10m"})
    ] = DEAD_WITHIN
    queue: Annotated[str, AfterValidator(_queue), Field(description="of the jobs that tell it")] = QUEUE

    def settings(self, url: str) -> NoticeSettings:
        """With the URL as it was checked. Raises InvalidFieldsError where the parts do not go together."""
        if self.account_id is not None and self.about != "account":
            raise InvalidFieldsError([Fault("/account_id", 'goes together with "about": "account"; leave it out')])
        return NoticeSettings(url, self.types, self.dead_letters, self.dead_within, self.queue)


BODIES: tuple[type[BaseModel], ...] = (
    PlanInput,
    AccountInput,
    AccountChangeInput,
    ProjectInput,
    ProjectChangeInput,
    KeyInput,
    RotationInput,
    SecretInput,
    SecretRotationInput,
    NoticeInput,
)
