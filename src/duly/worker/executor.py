"""Run one claimed job: whatever its handler does, there is exactly one settlement."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Cancel, Interrupted, Outcome, Report, Retry
from duly.model.recording import recordable
from duly.model.settlement import Settlement, expired, release, settlement
from duly.model.storable import describe
from duly.worker.config import Handler

log = logging.getLogger("duly.worker")

_OVERTIME = timedelta(seconds=2)

Why = Literal["interrupted", "cancelled", "overdue"]
Token = tuple[UUID, int]  # job and attempt: an old attempt may still be ending while a new one runs


@dataclass(slots=True)
class Running:
    """A job, its task, since when it runs (monotonic seconds), and whether the task has taken its first step."""

    job: ClaimedJob
    task: asyncio.Task[None]
    since: float
    begun: bool = False


class Executor:
    """Runs handlers concurrently and remembers which attempt each task belongs to."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._running: dict[Token, Running] = {}
        self._why: dict[Token, Why] = {}
        self._rng = random.Random()

    @property
    def running(self) -> int:
        return len(self._running)

    def by_account(self) -> Mapping[int, int]:
        """How many run now of each account that has any; counted when asked, so that a job costs nothing."""
        return Counter(running.job.account_id for running in self._running.values())

    def job_ids(self) -> set[UUID]:
        """The jobs that run now."""
        return {job_id for job_id, _ in self._running}

    def started(self, job: ClaimedJob, task: asyncio.Task[None]) -> None:
        """Note the task that runs a job."""
        self._running[job.id, job.attempt] = Running(job, task, time.monotonic())

    def ended(self, job: ClaimedJob) -> None:
        self._running.pop((job.id, job.attempt), None)
        self._why.pop((job.id, job.attempt), None)

    def abort_all(self) -> None:
        """Stop everything that runs; each ends as interrupted."""
        for running in list(self._running.values()):
            self._abort(running, "interrupted")

    def abort_overdue(self) -> None:
        """Stop what is past its time limit; each ends as a time-out. Handlers keep their own, finer limit: this one,
        looked at about once a second, is for those that do not, and costs nothing per job.
        """
        now = time.monotonic()
        for running in list(self._running.values()):
            if now - running.since > (running.job.timeout + _OVERTIME).total_seconds():
                self._abort(running, "overdue")

    def abort(self, job_id: UUID, attempt: int) -> None:
        """Stop one attempt, because its cancelling was asked for."""
        running = self._running.get((job_id, attempt))
        if running is not None:
            self._abort(running, "cancelled")

    def _abort(self, running: Running, why: Why) -> None:
        token = running.job.id, running.job.attempt
        if token not in self._why:
            self._why[token] = why
            if running.begun:  # cancelled before its first step a task never runs, and nothing would settle the job
                running.task.cancel()

    async def execute(self, job: ClaimedJob) -> Settlement:
        """Run the job's handler and decide its edge. Never raises."""
        running = self._running.get((job.id, job.attempt))
        if running is not None:
            running.begun = True
        if self._why.get((job.id, job.attempt)) == "interrupted":
            return release(job)
        if job.expired:
            return expired(job)
        began = time.monotonic()
        outcome = await self._outcome(job)
        ran_for = timedelta(seconds=time.monotonic() - began)
        return settlement(job, outcome, ran_for, self._rng)

    async def _outcome(self, job: ClaimedJob) -> Outcome:
        handler = self._handlers.get(job.kind)
        if handler is None:  # a claim asks for known kinds only
            return Retry(Report("error", error=f"this worker has no handler for kind {job.kind!r}"))
        if (job.id, job.attempt) in self._why:
            return self._after_abort(job)
        task = _current_task()
        try:
            outcome: object = await handler(job)
        except asyncio.CancelledError:
            return self._after_abort(job)
        except BaseException as error:  # SystemExit too: a job must not end the worker
            if isinstance(error, GeneratorExit) and _current_task() is not task:
                raise  # not the handler's: a task that was left behind is being closed
            return Retry(Report("error", error=describe(error)))
        return recordable(outcome, job.kind)

    def _after_abort(self, job: ClaimedJob) -> Outcome:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()
        match self._why.get((job.id, job.attempt)):
            case "interrupted":
                return Interrupted(Report("interrupted", error="the worker stopped while the attempt ran"))
            case "cancelled":
                return Cancel(Report("cancelled", error="stopped on request"))
            case "overdue":
                return Retry(Report("timeout", error=f"did not end within {job.timeout.total_seconds():g} s"))
            case None:  # pragma: no branch (the last reason)
                return Retry(Report("error", error="the handler cancelled itself"))


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
