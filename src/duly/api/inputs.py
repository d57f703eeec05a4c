"""A job as clients write it: the shape of every field, for reading requests and for the OpenAPI document.

What a field may hold is here; how fields fit together is `duly.service.jobs`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from duly.http.headers import is_header_name
from duly.model import INHERITABLE, Backoff, RetryPolicy
from duly.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, DEFAULT_TIMEOUT, QUEUE_NAME
from duly.service.changing import ChangeSpec
from duly.service.durations import parse_duration, show_duration
from duly.service.faults import FieldError
from duly.service.jobs import JobSpec
from duly.service.moments import parse_local, parse_moment, parse_zone
from duly.service.redaction import Redaction

_YEAR = timedelta(days=366)
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_CLASS = re.compile(r"[345]xx", re.ASCII)
_DURATION = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
    "description": 'seconds as a number, or a string such as "10m", "1h30m", "500ms"',
}


def read_uuid(value: Any) -> UUID:
    """A UUID in its one usual form: 32 digits in five groups. Raises FieldError."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise FieldError("must be a UUID, such as 01890a5d-ac96-774b-bcce-b302099a8057")
    return UUID(value)


def _between(low: timedelta, high: timedelta) -> Callable[[Any], timedelta]:
    def checked(value: Any) -> timedelta:
        duration = parse_duration(value)
        if not low <= duration <= high:
            raise FieldError(f"must be from {show_duration(low)} to {show_duration(high)}")
        return duration

    return checked


def _printable(longest: int) -> Callable[[str], str]:
    def checked(value: str) -> str:
        if not (0 < len(value) <= longest and value.isprintable()):
            raise FieldError(f"must be 1 to {longest} characters, none of them a control character")
        return value

    return checked


def _queue(value: str) -> str:
    if not QUEUE_NAME.fullmatch(value):
        raise FieldError("must be 1 to 100 letters, digits and . _ : / -, starting with a letter or a digit")
    return value


def _header_name(value: str) -> str:
    if not is_header_name(value):
        raise FieldError("must be the name of a header: letters, digits and hyphens")
    return value


def _base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise FieldError("must be a string in base64")
    data = None
    with suppress(binascii.Error, ValueError):
        data = base64.b64decode(value, validate=True)
    if data is None or base64.b64encode(data).decode("ascii") != value:  # also bits that stand for nothing
        raise FieldError("is not base64 (RFC 4648, section 4, with padding)")
    return data


def _utf8(value: Any) -> bytes:
    if not isinstance(value, str):
        raise FieldError("must be a string; for JSON use json, for other bytes body_base64")
    return value.encode()


def _pairs(value: Any) -> Any:
    if isinstance(value, (dict, list)) and len(value) > 64:  # before each of them is looked at
        raise FieldError("must be 64 headers at most")
    if isinstance(value, dict):
        return [[name, text] for name, text in value.items()]
    if not isinstance(value, list):
        raise FieldError("must be an object, or an array of [name, value] pairs")
    return value


def _retry_on(value: Any) -> str | tuple[int | str, ...]:
    if value in ("default", "all_non_2xx") and isinstance(value, str):
        return str(value)
    if isinstance(value, list) and 0 < len(value) <= 50 and all(_is_code(part) for part in value):
        return tuple(value)
    raise FieldError('must be "default", "all_non_2xx", or a list of codes from 300 and classes such as [404, "5xx"]')


def _unique_for(value: Any) -> Literal["start", "final"] | timedelta:
    if value == "until_start":
        return "start"
    if value == "until_final":
        return "final"
    try:
        return _between(timedelta(seconds=1), _YEAR)(value)
    except FieldError:
        raise FieldError('must be "until_start", "until_final", or a duration from 1s to 366d') from None


def _is_code(part: Any) -> bool:
    if isinstance(part, str):
        return _CLASS.fullmatch(part) is not None
    return isinstance(part, int) and not isinstance(part, bool) and 300 <= part <= 599


_MOMENT = {"type": "string", "format": "date-time", "description": "RFC 3339 with an offset"}
_LOCAL = {"type": "string", "description": "a local date-time without an offset, together with timezone"}
_ZONE = {"type": "string", "description": "the name of an IANA time zone"}
_ON = {
    "anyOf": [
        {"enum": ["default", "all_non_2xx"]},
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[345]xx$"}]}},
    ]
}
_UNIQUE_FOR = {"anyOf": [{"enum": ["until_start", "until_final"]}, *_DURATION["anyOf"]], "default": "until_final"}
_HEADERS = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}},
    ]
}

Delay: TypeAlias = Annotated[timedelta, PlainValidator(_between(timedelta(0), _YEAR)), WithJsonSchema(_DURATION)]
Timeout: TypeAlias = Annotated[
    timedelta, PlainValidator(_between(timedelta(seconds=1), timedelta(minutes=15))), WithJsonSchema(_DURATION)
]
MaxAge: TypeAlias = Annotated[
    timedelta, PlainValidator(_between(timedelta(seconds=1), _YEAR)), WithJsonSchema(_DURATION)
]
Moment: TypeAlias = Annotated[datetime, PlainValidator(parse_moment), WithJsonSchema(_MOMENT)]
Local: TypeAlias = Annotated[datetime, PlainValidator(parse_local), WithJsonSchema(_LOCAL)]
Zone: TypeAlias = Annotated[ZoneInfo, PlainValidator(parse_zone), WithJsonSchema(_ZONE)]
Id: TypeAlias = Annotated[UUID, PlainValidator(read_uuid), WithJsonSchema({"type": "string", "format": "uuid"})]
Bytes: TypeAlias = Annotated[
    bytes, PlainValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
Text: TypeAlias = Annotated[bytes, PlainValidator(_utf8), WithJsonSchema({"type": "string"})]
JsonText: TypeAlias = Annotated[bytes, WithJsonSchema({"description": "any JSON; its text is sent exactly as written"})]
RetryOn: TypeAlias = Annotated[str | tuple[int | str, ...], PlainValidator(_retry_on), WithJsonSchema(_ON)]
UniqueFor: TypeAlias = Annotated[
    Literal["start", "final"] | timedelta, PlainValidator(_unique_for), WithJsonSchema(_UNIQUE_FOR)
]
Pair: TypeAlias = Annotated[list[str], Field(min_length=2, max_length=2)]
Headers: TypeAlias = Annotated[list[Pair], BeforeValidator(_pairs), WithJsonSchema(_HEADERS)]
HeaderName: TypeAlias = Annotated[str, AfterValidator(_header_name), Field(max_length=256)]
Callback: TypeAlias = Annotated[str, Field(max_length=8192, description="a URL that is sent the outcome, by POST")]
Tag: TypeAlias = Annotated[str, AfterValidator(_printable(100)), Field(max_length=100)]


class Input(BaseModel):
    """Strict: nothing is converted by guessing, unknown members are refused. A null member counts as left out."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, value: Any) -> Any:
        return {name: part for name, part in value.items() if part is not None} if isinstance(value, dict) else value


class BackoffInput(Input):
    """The delay before each retry; a part left out takes its default."""

    kind: Literal["exponential", "linear", "fixed", "steps"] = "exponential"
    base: Delay | None = None
    factor: Annotated[float, Field(ge=1, le=100)] | None = None
    max: Delay | None = None
    jitter: Annotated[float, Field(ge=0, le=1)] | None = None
    steps: Annotated[list[Delay], Field(min_length=1, max_length=50)] | None = None

    @model_validator(mode="after")
    def _fits_kind(self) -> BackoffInput:
        if (self.kind == "steps") != (self.steps is not None):
            raise FieldError('steps are the delays of the kind "steps": give both or neither')
        if self.kind == "steps" and self.base is not None:
            raise FieldError('the kind "steps" has no base: its delays are the steps')
        if self.kind != "exponential" and self.factor is not None:
            raise FieldError('only the kind "exponential" has a factor')
        return self

    def backoff(self) -> Backoff:
        """The rule that this describes."""
        default = Backoff()
        steps = tuple(self.steps or ())
        return Backoff(
            kind=self.kind,
            base=default.base if self.base is None else self.base,
            factor=default.factor if self.factor is None else self.factor,
            max=max(default.max, *steps, timedelta(0)) if self.max is None else self.max,
            jitter=default.jitter if self.jitter is None else self.jitter,
            steps=steps,
        )


class RetryInput(Input):
    """How often, how long and on what a job is tried again."""

    max_attempts: Annotated[int, Field(ge=1, le=50)] | None = None
    backoff: BackoffInput | None = None
    max_age: MaxAge | None = None
    on: RetryOn | None = None

    def policy(self) -> RetryPolicy:
        """The rule that this describes."""
        default = RetryPolicy()
        return RetryPolicy(
            max_attempts=self.max_attempts or default.max_attempts,
            backoff=self.backoff.backoff() if self.backoff else default.backoff,
            max_age=self.max_age or default.max_age,
            on=self.on if self.on is not None else default.on,
        )

    def changed(self, present: RetryPolicy) -> RetryPolicy:
        """The present rule with the parts that are given."""
        return RetryPolicy(
            max_attempts=self.max_attempts or present.max_attempts,
            backoff=self.backoff.backoff() if self.backoff else present.backoff,
            max_age=self.max_age or present.max_age,
            on=self.on if self.on is not None else present.on,
        )


class RedactInput(Input):
    """What is hidden on every read, beside the standard secret headers. It is delivered intact."""

    headers: Annotated[
        list[HeaderName], Field(max_length=64, description="names; their values show as ***, in answers too")
    ] = Field(default_factory=list)
    body: Annotated[bool, Field(description="never show the request's body")] = False
    response: Annotated[bool, Field(description="keep nothing of the answers' bodies")] = False

    def redaction(self) -> Redaction:
        """The rule that this describes."""
        return Redaction(tuple(dict.fromkeys(self.headers)), self.body, self.response)


class ChangeInput(Input):
    """What is to be different of a job that waits for its time. What is left out stays."""

    run_at: Moment | None = None
    headers: Annotated[Headers, Field(description="all of them; *** keeps the value that a secret one has")] | None = (
        None
    )
    json_text: JsonText | None = Field(None, alias="json")
    body: Text | None = None
    body_base64: Bytes | None = None
    retry: Annotated[RetryInput, Field(description="a part left out stays")] | None = None
    priority: Annotated[int, Field(ge=0, le=9)] | None = None
    tags: Annotated[list[Tag], Field(max_length=20)] | None = None

    def spec(self) -> ChangeSpec:
        """What is asked for, for the rules between fields."""
        return ChangeSpec(
            run_at=self.run_at,
            headers=None if self.headers is None else tuple((name, value) for name, value in self.headers),
            json=self.json_text,
            body=self.body,
            body_base64=self.body_base64,
            retry=None if self.retry is None else self.retry.changed,
            priority=self.priority,
            tags=None if self.tags is None else tuple(dict.fromkeys(self.tags)),
        )


class JobInput(Input):
    """A job to create. Only `url` is required."""

    url: Annotated[str, Field(max_length=8192, description="where to send the request: http or https")]
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "POST"
    headers: Headers = Field(default_factory=list)
    json_text: JsonText | None = Field(None, alias="json")
    body: Text | None = None
    body_base64: Bytes | None = None
    run_at: Moment | None = None
    delay: Delay | None = None
    run_at_local: Local | None = None
    timezone: Zone | None = None
    id: Id | None = None
    timeout: Annotated[
        Timeout, Field(json_schema_extra={"default": 30}, description="left out: the queue's default")
    ] = DEFAULT_TIMEOUT
    retry: RetryInput | None = None
    queue: Annotated[str, AfterValidator(_queue), Field(max_length=100)] = DEFAULT_QUEUE
    concurrency_key: Annotated[str, AfterValidator(_printable(200)), Field(max_length=200)] | None = None
    priority: Annotated[int, Field(ge=0, le=9, description="0 first, 9 last")] = DEFAULT_PRIORITY
    tags: Annotated[list[Tag], Field(max_length=20)] = Field(default_factory=list)
    metadata: Annotated[Any, Field(description="JSON of your own, at most 4 KB")] = None
    expires_at: Moment | None = None
    unique_key: Annotated[str, AfterValidator(_printable(200)), Field(max_length=200)] | None = None
    unique_for: UniqueFor | None = None
    on_conflict: Literal["error", "keep", "replace"] | None = None
    on_success: Callback | None = None
    on_dead: Callback | None = None
    redact: RedactInput | None = None

    def spec(self, hops: int = 0) -> JobSpec:
        """What is asked for, for the rules between fields."""
        return JobSpec(
            url=self.url,
            method=self.method,
            headers=tuple((name, value) for name, value in self.headers),
            json=self.json_text,
            body=self.body,
            body_base64=self.body_base64,
            run_at=self.run_at,
            delay=self.delay,
            run_at_local=self.run_at_local,
            timezone=self.timezone,
            id=self.id,
            timeout=self.timeout,
            retry=self.retry.policy() if self.retry else RetryPolicy(),
            queue=self.queue,
            concurrency_key=self.concurrency_key,
            priority=self.priority,
            tags=tuple(dict.fromkeys(self.tags)),
            metadata=self.metadata,
            expires_at=self.expires_at,
            unique_key=self.unique_key,
            unique_for=self.unique_for,
            on_conflict=self.on_conflict,
            on_success=self.on_success,
            on_dead=self.on_dead,
            redact=self.redact.redaction() if self.redact else None,
            inherits=self._inherits(),
            hops=hops,
        )

    def _inherits(self) -> frozenset[str]:
        given = set() if self.retry is None else {name for name, part in self.retry if part is not None}
        return INHERITABLE - given - (self.model_fields_set & {"timeout"})
