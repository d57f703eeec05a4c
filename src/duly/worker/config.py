"""What a worker process is told at its start."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from duly.model.errors import InvalidInputError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Outcome
from duly.model.settlement import Settlement

Handler = Callable[[ClaimedJob], Awaitable[Outcome]]
"""Runs one kind of job. An exception is a failed attempt; a cancellation means that the attempt is to stop now."""


class Observer(Protocol):
    """Is told what a worker does, once per statement, on the worker's loop: it must be quick, and not raise."""

    def claimed(self, jobs: Sequence[ClaimedJob], took_s: float) -> None:
        """A claim was answered after `took_s`; it may have brought nothing."""

    def settled(self, batch: Sequence[Settlement], refused: frozenset[UUID], took_s: float) -> None:
        """A batch was written after `took_s`, but for the jobs in `refused`, whose leases were lost."""


def _own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`handlers`: kind → handler; the worker claims these kinds and no others. `queues` None: all.

    `shared`: no account may hold all slots (see `sharing`), so that one whose jobs hang leaves room for others.
    `lease` bounds how long after a worker's death its jobs wait; it is renewed every quarter of it. `grace` bounds a
    drain. `observer` None: nobody is told anything.
    Polling adapts between `poll_min` (work was found) and `poll_max` (idle); a wake-up cuts it short.
    """

    handlers: Mapping[str, Handler]
    queues: tuple[str, ...] | None = None
    concurrency: int = 100
    shared: bool = False
    claim_batch: int = 1000
    settle_batch: int = 1000
    lease: timedelta = timedelta(seconds=20)
    grace: timedelta = timedelta(seconds=25)
    poll_min: timedelta = timedelta(milliseconds=5)
    poll_max: timedelta = timedelta(milliseconds=250)
    name: str = field(default_factory=_own_name)
    observer: Observer | None = None

    def __post_init__(self) -> None:
        if not self.handlers:
            raise InvalidInputError("a worker needs at least one handler")
        if self.concurrency < 1:
            raise InvalidInputError(f"concurrency is {self.concurrency}: it must be 1 or more")
        if self.lease < timedelta(seconds=1):
            raise InvalidInputError(f"lease is {self.lease}: it must be at least one second")
        if self.poll_min > self.poll_max:
            raise InvalidInputError(f"poll_min ({self.poll_min}) is longer than poll_max ({self.poll_max})")
