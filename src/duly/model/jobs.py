"""A job as handed over (`NewJob`) and as claimed (`ClaimedJob`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID

from duly.model.ids import uuid7
from duly.model.retry import RetryPolicy

QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}", re.ASCII)
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Unique:
    """A key that one job of a project holds at a time.

    `until`: "start", as long as the job waits for its first attempt; "final", until it has ended; or a time from its
    creation, whatever becomes of it, unless it is cancelled. `on_conflict`, when another job holds the key: "error"
    refuses the new job, "keep" is content with the other, "replace" cancels the other if it waits and refuses the new
    job if it runs (or holds the key for a time and is over).
    """

    key: str
    until: Literal["start", "final"] | timedelta = "final"
    on_conflict: Literal["error", "keep", "replace"] = "error"

    @property
    def unique_for(self) -> str:
        """How the database names `until`: until_start, until_final, or the seconds."""
        return repr(self.until.total_seconds()) if isinstance(self.until, timedelta) else f"until_{self.until}"


def unique_until(unique_for: str) -> Literal["start", "final"] | timedelta:
    """Read what `Unique.unique_for` wrote."""
    match unique_for:
        case "until_start":
            return "start"
        case "until_final":
            return "final"
        case _:
            return timedelta(seconds=float(unique_for))


class Trigger(StrEnum):
    """What started an attempt."""

    SCHEDULE = "schedule"
    RETRY = "retry"
    REDRIVE = "redrive"
    MANUAL = "manual"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class NewJob:
    """One piece of work as its owner hands it over, already validated.

    `payload` is a JSON value (for kind "http": url, method, headers); `body` is bytes kept exactly as given, or None.
    `run_at` None means now, decided by the database's clock; `delay` is added to that clock and excludes `run_at`.
    `on_success`, `on_dead`: payloads of jobs of kind "http" that are made, with the outcome as their body, when this
    one has succeeded or is dead. They call nothing in turn. `replay_of`: the job that this one was copied from.
    `inherits`: what its owner left to the queue to say (see model.defaults); not stored.
    """

    kind: str
    payload: Any
    body: bytes | None = None
    id: UUID = field(default_factory=uuid7)
    queue: str = DEFAULT_QUEUE
    concurrency_key: str | None = None
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | None = None
    delay: timedelta | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    expires_at: datetime | None = None
    unique: Unique | None = None
    tags: tuple[str, ...] = ()
    metadata: Any = None
    on_success: Any = None
    on_dead: Any = None
    replay_of: UUID | None = None
    inherits: frozenset[str] = frozenset()


class ClaimedJob(NamedTuple):
    """A job under a lease. (`id`, `attempt`) is the fencing token: every later write names both.

    `attempt` counts from 1 over the job's whole life; `final_attempt` is the last one of the present budget (a redrive
    raises it). `age` is how long ago the job was due for the first time, by the database's clock at the claim.
    `payload_json` is the payload as JSON text, not decoded; `body` the exact bytes or None. A tuple, as one is made
    per job
    run: a frozen dataclass of this width takes 2 µs, this 0.3.
    """

    id: UUID
    attempt: int
    final_attempt: int
    max_attempts: int
    account_id: int
    project_id: int
    lane_id: int
    queue: str
    kind: str
    priority: int
    payload_json: str
    body: bytes | None
    timeout: timedelta
    retry: RetryPolicy
    run_at: datetime
    trigger: Trigger
    age: timedelta
    expired: bool
