"""A queue's settings as clients write them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema

from duly.api.inputs import Input, RetryInput, Timeout
from duly.api.problems import Problem
from duly.api.strict_json import MalformedJsonError, pointer, read_members
from duly.model import JobDefaults
from duly.queue import QueueSettings, Rate
from duly.service.faults import Fault, InvalidJobError
from duly.service.queues import RATE_MOST, parse_rate

_RATE_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "limit": {"type": "integer", "minimum": 1, "maximum": RATE_MOST},
                "per": {"anyOf": [{"type": "number"}, {"type": "string"}]},
            },
            "required": ["limit", "per"],
            "additionalProperties": False,
        },
        {"type": "string"},
    ],
    "description": "how many attempts may start: evenly, a tenth of the limit at once",
}


RateIn: TypeAlias = Annotated[Rate, PlainValidator(parse_rate), WithJsonSchema(_RATE_SCHEMA)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


class QueueInput(Input):
    """The settings of a queue, all of them: what is left out is not limited, and no default."""

    concurrency: Annotated[Count, Field(description="how many of its jobs may run at once")] | None = None
    key_concurrency: Annotated[Count, Field(description="and how many with one concurrency key")] | None = None
    rate: RateIn | None = None
    timeout: Annotated[Timeout, Field(description="of new jobs that have none of their own")] | None = None
    retry: Annotated[RetryInput, Field(description="the same, part by part")] | None = None
    paused: Annotated[bool, Field(description="left out: as it is")] | None = None

    def settings(self) -> QueueSettings:
        """What is asked for."""
        retry = self.retry or RetryInput()
        defaults = JobDefaults(
            timeout=self.timeout,
            max_attempts=retry.max_attempts,
            backoff=retry.backoff.backoff() if retry.backoff else None,
            max_age=retry.max_age,
            on=retry.on,
        )
        return QueueSettings(self.concurrency, self.key_concurrency, bool(self.paused), self.rate, defaults)


def read_queue(text: str) -> QueueInput:
    """Read a request's body. Raises Problem 400 if it is no JSON object, InvalidJobError with all that is wrong."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    try:
        given = QueueInput.model_validate({name: member.value for name, member in members.items()})
    except ValidationError as error:
        faults.extend(
            Fault(pointer(*found["loc"]), _sentence(found))
            for found in error.errors(include_url=False, include_input=False)
        )
    if faults:
        raise InvalidJobError(faults)
    return given


def _sentence(found: Mapping[str, Any]) -> str:
    match found["type"]:
        case "value_error":
            return str(found["ctx"]["error"])
        case "extra_forbidden":
            return "is not a setting that a queue has: check the spelling"
        case _:
            return str(found["msg"]).replace("Input should be", "must be")
