"""A worker that runs beside the test, in its loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from duly.model import ClaimedJob, Outcome, State, Success
from duly.queue import Database
from duly.worker import Handler, Wakeups, Worker, WorkerConfig
from duly.worker.runtime import Drained
from support.engine import Engine
from support.sessions import until


@dataclass
class Working:
    """The worker, what stops it, and what it said when it had drained."""

    worker: Worker
    stopping: asyncio.Event
    aborting: asyncio.Event
    run: asyncio.Task[Drained]

    async def drained(self) -> Drained:
        self.stopping.set()
        async with asyncio.timeout(30):
            return await self.run


@asynccontextmanager
async def working(
    db: Database,
    url: str,
    handlers: Mapping[str, Handler],
    *,
    heartbeat_url: str | None = None,
    listener_url: str | None = None,
    **settings: Any,
) -> AsyncIterator[Working]:
    """Start a worker on `db`; its heartbeat and wake-ups use the URL. At the end it is stopped, hard if need be."""
    plain: dict[str, Any] = {"poll_max": timedelta(milliseconds=50), "grace": timedelta(seconds=10)}
    wakeups = Wakeups(listener_url or url, trouble=db.trouble)
    worker = Worker(WorkerConfig(handlers, **{**plain, **settings}), db, heartbeat_url or url, wakeups)
    stopping, aborting = asyncio.Event(), asyncio.Event()
    listening = asyncio.Event()
    listener = asyncio.create_task(wakeups.run(listening))
    run = asyncio.create_task(worker.run(stopping, aborting))
    started = asyncio.create_task(worker.started.wait())
    await asyncio.wait({run, started}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
    started.cancel()
    try:
        yield Working(worker, stopping, aborting, run)
    finally:
        stopping.set()
        aborting.set()
        listening.set()
        done, _ = await asyncio.wait({run, listener}, timeout=30)
        for task in {run, listener} - done:
            task.cancel()
        await asyncio.gather(run, listener, return_exceptions=True)


class Holding:
    """Runs until let go; remembers what it was given and what was stopped."""

    def __init__(self) -> None:
        self.started: list[ClaimedJob] = []
        self.stopped: list[ClaimedJob] = []
        self.stopped_at: list[float] = []
        self.go = asyncio.Event()

    async def __call__(self, job: ClaimedJob) -> Outcome:
        self.started.append(job)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.append(job)
            self.stopped_at.append(time.monotonic())
            raise
        return Success()


async def state_becomes(engine: Engine, job_id: Any, state: State) -> None:
    """Return once the job is in that state."""

    async def look() -> bool:
        return (await engine.view(job_id)).state == state

    await until(look)
