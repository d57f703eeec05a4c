"""Run one claimed job: whatever its handler does, there is exactly one settlement."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal
from uuid import UUID

from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Cancel, Interrupted, Outcome, Report, Retry
from duly.model.settlement import Settlement, expired, settlement
from duly.model.storable import describe
from duly.worker.config import Handler

log = logging.getLogger("duly.worker")

_OVERTIME = timedelta(seconds=2)  # a handler keeps its own deadline; this one is for those that do not

Why = Literal["interrupted", "cancelled"]


class Executor:
    """Runs handlers concurrently and remembers which attempt each task belongs to."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._running: dict[UUID, tuple[ClaimedJob, asyncio.Task[None]]] = {}
        self._why: dict[UUID, Why] = {}
        self._rng = random.Random()

    @property
    def running(self) -> int:
        return len(self._running)

    def job_ids(self) -> set[UUID]:
        """What runs now."""
        return set(self._running)

    def started(self, job: ClaimedJob, task: asyncio.Task[None]) -> None:
        """Note the task that runs a job."""
        self._running[job.id] = (job, task)

    def ended(self, job: ClaimedJob) -> None:
        self._running.pop(job.id, None)
        self._why.pop(job.id, None)

    def abort_all(self) -> None:
        """Stop everything that runs; each ends as interrupted."""
        for job, task in list(self._running.values()):
            self._abort(job, task, "interrupted")

    def abort(self, job_id: UUID, attempt: int) -> None:
        """Stop one attempt, because its cancelling was asked for."""
        entry = self._running.get(job_id)
        if entry is not None and entry[0].attempt == attempt:
            self._abort(*entry, "cancelled")

    def _abort(self, job: ClaimedJob, task: asyncio.Task[None], why: Why) -> None:
        if job.id not in self._why:
            self._why[job.id] = why
            task.cancel()

    async def execute(self, job: ClaimedJob) -> Settlement:
        """Run the job's handler and decide its edge. Never raises."""
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
        try:
            async with asyncio.timeout((job.timeout + _OVERTIME).total_seconds()):
                return await handler(job)
        except TimeoutError as error:
            return Retry(Report("timeout", error=f"did not end within {job.timeout.total_seconds():g} s: {describe(error)}"))
        except asyncio.CancelledError:
            return self._after_abort(job)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: a job must not end the worker
            return Retry(Report("error", error=describe(error)))

    def _after_abort(self, job: ClaimedJob) -> Outcome:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        match self._why.get(job.id):
            case "interrupted":
                return Interrupted(Report("interrupted", error="the worker stopped while the attempt ran"))
            case "cancelled":
                return Cancel(Report("cancelled", error="stopped on request"))
            case None:
                return Retry(Report("error", error="the handler cancelled itself"))
