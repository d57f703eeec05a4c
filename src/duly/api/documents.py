"""The answers, for the OpenAPI document. `render` makes them; a test holds the two together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]
Moment = Annotated[str, Field(description="RFC 3339, UTC", json_schema_extra={"format": "date-time"})]
Seconds = Annotated[float, Field(description="seconds")]
Headers = Annotated[list[list[str]], Field(description="[name, value] pairs; values of secret headers show as ***")]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BackoffDocument(_Document):
    """The delay before each retry."""

    kind: Literal["exponential", "linear", "fixed", "steps"]
    base: Seconds
    factor: float
    max: Seconds
    jitter: float
    steps: list[Seconds]


class RetryDocument(_Document):
    """How often, how long and on what the job is tried again."""

    max_attempts: int
    backoff: BackoffDocument
    max_age: Seconds
    on: str | list[int | str]


class RedactDocument(_Document):
    """What is hidden on every read, beside the standard secret headers."""

    headers: list[str]
    body: bool
    response: bool


class JobDocument(_Document):
    """A job as it stands now."""

    id: str
    kind: str
    state: State
    reason: Annotated[str | None, Field(description="why it is dead")]
    url: str | None
    method: str | None
    headers: Headers
    redact: RedactDocument | None
    has_body: bool
    queue: str
    concurrency_key: str | None
    priority: int
    tags: list[str]
    metadata: Any
    timeout: Seconds
    retry: RetryDocument
    run_at: Annotated[Moment, Field(description="when it was to run first")]
    next_run_at: Annotated[Moment | None, Field(description="when it runs next; null while running and when final")]
    expires_at: Moment | None
    unique_key: str | None
    unique_for: Annotated[str | float | None, Field(description="until_start, until_final, or seconds")]
    on_success: Annotated[str | None, Field(description="the URL that is told when it has succeeded")]
    on_dead: Annotated[str | None, Field(description="the URL that is told when it is dead")]
    callback_of: Annotated[str | None, Field(description="the job whose outcome this one tells")]
    replay_of: Annotated[str | None, Field(description="the job that this one was copied from")]
    created_at: Moment
    started_at: Annotated[Moment | None, Field(description="start of the last attempt")]
    finished_at: Moment | None
    attempts: Annotated[int, Field(description="how many were started")]
    max_attempts: int
    retry_plan: Annotated[list[Seconds], Field(description="the delays still to come, before jitter")]
    last_outcome: str | None
    last_status_code: int | None
    last_error: str | None
    lag_ms: Annotated[
        int | None, Field(description="start of the first attempt minus run_at; null once there are more")
    ]
    cancel_requested: bool
    held: Annotated[bool, Field(description="it was due, and waits because its target has been failing")]
    request_body: Annotated[str, Field(description="with include=request_body, if it is text")] | None = None
    request_body_base64: Annotated[str, Field(description="with include=request_body, if it is not text")] | None = None


class JobListDocument(_Document):
    """A page of jobs, the newest first. `next_cursor` null: there are no more. A page may be short, or empty, and have
    one: where no index serves the filter, a call looks at a bounded number of jobs.
    """

    data: list[JobDocument]
    next_cursor: str | None


class BatchItemDocument(_Document):
    """What became of one job of a batch."""

    id: Annotated[str, Field(description="the job; for `kept` the one that holds the unique key")]
    result: Literal["created", "repeated", "kept"]


class BatchDocument(_Document):
    """What became of the jobs of a batch, in the order given. All of it is committed."""

    data: list[BatchItemDocument]


class BulkCountDocument(_Document):
    """How many jobs a call for many would be about. `complete` false: there may be more, counting stopped at the limit
    or at what one call may look at.
    """

    count: int
    complete: bool


class OperationDocument(_Document):
    """A call for many jobs, and how far it got."""

    id: str
    call: Literal["cancel", "redrive"]
    state: Literal["running", "finished"]
    filter: Annotated[dict[str, Any], Field(description="as it was understood")]
    limit: int
    rate: Annotated[float, Field(description="jobs a second at most")]
    requested_by: Annotated[str, Field(description="the API key's id")]
    requested_at: Moment
    looked: Annotated[int, Field(description="at how many jobs it has looked")]
    done: Annotated[int, Field(description="how many were cancelled or redriven")]
    refused: Annotated[int, Field(description="how many matched, but had moved on or may not be redriven")]
    finished_at: Moment | None


class AttemptDocument(_Document):
    """One attempt that ended."""

    number: int
    trigger: Literal["schedule", "retry", "redrive", "manual", "recovery"]
    started_at: Moment
    finished_at: Moment
    duration_ms: float
    phases: Annotated[dict[str, float], Field(description="milliseconds: dns, connect, tls, first byte, total")]
    resent: Annotated[bool, Field(description="sent once more, as the target was just closing the kept connection")]
    outcome: str
    status_code: int | None
    error: str | None
    response_headers: Headers
    response_excerpt: Annotated[str | None, Field(description="the first bytes of the answer, as text")]
    response_truncated: bool
    retry_after_s: float | None
    next_run_at: Moment | None


class AttemptListDocument(_Document):
    """The ledger of a job, the oldest attempt first."""

    data: list[AttemptDocument]


class RateDocument(_Document):
    """How many attempts may start: `limit` in every `per`."""

    limit: int
    per: Seconds


class RetryDefaultsDocument(_Document):
    """What new jobs take where they say nothing; null: what every job takes."""

    max_attempts: int | None
    backoff: BackoffDocument | None
    max_age: Seconds | None
    on: str | list[int | str] | None


class QueueDocument(_Document):
    """What applies to a queue; null: no limit, no default."""

    name: str
    concurrency: Annotated[int | None, Field(description="how many of its jobs may run at once")]
    key_concurrency: Annotated[int | None, Field(description="and how many with one concurrency key")]
    rate: RateDocument | None
    timeout: Annotated[Seconds | None, Field(description="of new jobs that have none of their own")]
    retry: RetryDefaultsDocument
    paused: bool


class QueueListDocument(_Document):
    """A page of queues, by name. `next_cursor` null: there are no more."""

    data: list[QueueDocument]
    next_cursor: str | None


class FaultDocument(_Document):
    """One thing that is wrong: in the body at a JSON pointer, or in a parameter of the query."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    index: Annotated[int, Field(description="of the job in a batch, from 0")] | None = None


class ProblemDocument(_Document):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FaultDocument] | None = None
