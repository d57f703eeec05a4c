"""What a queue gives its new jobs where they say nothing themselves: a time limit, each part of a retry policy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from duly.model.jobs import NewJob
from duly.model.retry import Backoff, RetryPolicy


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """None: what every job takes. The names are those that `NewJob.inherits` may hold."""

    timeout: timedelta | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    max_age: timedelta | None = None
    on: str | tuple[int | str, ...] | None = None

    def applied(self, job: NewJob) -> NewJob:
        """The job with what it left to its queue filled in; it inherits nothing any more."""
        if not job.inherits:
            return job
        given = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name in job.inherits and getattr(self, f.name) is not None
        }
        timeout = given.pop("timeout", job.timeout)
        return replace(job, timeout=timeout, retry=replace(job.retry, **given), inherits=frozenset())

    def to_json(self) -> dict[str, Any] | None:
        """What to store: what is set, durations in seconds; None if nothing is."""
        stored = {
            "timeout": None if self.timeout is None else self.timeout.total_seconds(),
            "max_attempts": self.max_attempts,
            "backoff": None if self.backoff is None else self.backoff.to_json(),
            "max_age": None if self.max_age is None else self.max_age.total_seconds(),
            "on": self.on,
        }
        return {name: value for name, value in stored.items() if value is not None} or None

    @classmethod
    def from_json(cls, stored: Any) -> JobDefaults:
        """Read what `to_json` stored."""
        if not stored:
            return cls()
        policy = RetryPolicy.from_json(stored, stored.get("max_attempts", 0))
        return cls(
            timeout=timedelta(seconds=stored["timeout"]) if "timeout" in stored else None,
            **{name: getattr(policy, name) for name in ("max_attempts", "backoff", "max_age", "on") if name in stored},
        )


INHERITABLE = frozenset(f.name for f in fields(JobDefaults))
