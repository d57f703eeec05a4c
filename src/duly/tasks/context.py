"""What job code may know of its job, and say while it runs: a parameter annotated `Context` is given it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from duly.model.ids import uuid7
from duly.model.storable import storable_text

log = logging.getLogger("duly.task")

_MESSAGE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come: a share from 0 to 1, or None; and a line for people."""

    share: float | None
    message: str | None


@dataclass(eq=False, slots=True)
class Context:
    """One attempt, as its code sees it.

    (`job_id`, `attempt`) is the fencing token: attempt numbers only grow, so a store that keeps the highest one it
    has seen can refuse the writes of an attempt that was lost and replaced. `is_final`: no attempt follows a
    failure. `cancelled` is set when the attempt is to stop: its time is over, somebody cancelled the job, or the
    worker goes; code in threads looks at it, or waits on it.
    """

    job_id: UUID
    attempt: int
    is_final: bool
    task: str
    queue: str
    timeout: timedelta
    cancelled: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)
    on_progress: Callable[[Context, Progress], None] | None = None

    @classmethod
    def of_no_job(cls) -> Context:
        """For a task that is called directly: a made-up id, the first attempt, no time limit to speak of."""
        return cls(uuid7(), 1, True, "(called directly)", "default", timedelta(days=365))

    @property
    def deadline(self) -> float:
        """When its time is over, on the clock of `time.monotonic()`."""
        return self.started + self.timeout.total_seconds()

    @property
    def time_left(self) -> timedelta:
        """Until the deadline; zero when it has passed."""
        return timedelta(seconds=max(0.0, self.deadline - time.monotonic()))

    def progress(self, share: float | None = None, message: str | None = None) -> None:
        """Say how far it has come. Kept with the running job, at most about once a second; the latest word counts."""
        if self.on_progress is not None:
            clamped = None if share is None else min(1.0, max(0.0, float(share)))
            self.on_progress(
                self, Progress(clamped, None if message is None else storable_text(message, _MESSAGE_LIMIT))
            )

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job's id, attempt and task to each line."""
        return _JobLog(log, {"job_id": str(self.job_id), "attempt": self.attempt, "task": self.task})


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}
