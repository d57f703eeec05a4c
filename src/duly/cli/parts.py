"""Putting the parts together: the database, and a worker with its upkeep.

The API is in `api_part`, so that a worker does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from duly.cli.delivering import sealed_delivery
from duly.cli.observing import NOTHING, Observed
from duly.http import BreakerSettings, Deliverer, EgressPolicy, EgressProxy
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Outcome
from duly.model.retention import Retention
from duly.queue import Database, DatabaseClock
from duly.schema import verify
from duly.service import NO_KEYRING, Keyring, SigningSecrets
from duly.service.breaking import Breaker
from duly.service.jobs import KIND
from duly.upkeep import Upkeep
from duly.upkeep.running import every
from duly.worker import Wakeups, Worker, WorkerConfig
from duly.worker.runtime import Drained

_OTHERS_END_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process of the service is told."""

    concurrency: int = 100
    queues: tuple[str, ...] | None = None
    lease: timedelta = timedelta(seconds=20)
    grace: timedelta = timedelta(seconds=25)
    ca_file: Path | None = None
    retention: Retention = field(default_factory=Retention)
    keyring: Keyring = NO_KEYRING
    proxy: EgressProxy | None = None
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


@asynccontextmanager
async def open_database(url: str, schema: str, *, max_size: int, name: str) -> AsyncIterator[Database]:
    """Connect, and make sure that the schema is this program's. Raises DatabaseUnavailableError or SchemaError."""
    async with await Database.open(url, schema=schema, max_size=max_size, name=name) as db:
        async with db.session() as session:
            await verify(session.connection, schema)
        yield db


async def work(
    db: Database,
    url: str,
    policy: EgressPolicy,
    settings: WorkerSettings,
    draining: asyncio.Event,
    aborting: asyncio.Event,
    started: asyncio.Event | None = None,
    watched: Observed = NOTHING,
) -> Drained:
    """Run a worker for HTTP jobs and its upkeep until `draining`, then drain."""
    metrics, tracing = watched.metrics, watched.tracing
    observer = None if metrics is None else metrics.work
    wakeups = Wakeups(url, db.schema, db.trouble)
    breaker = Breaker(db, settings.breaker)
    ended = asyncio.Event()
    clock = DatabaseClock(db)
    async with Deliverer(
        policy,
        ca_file=settings.ca_file,
        proxy=settings.proxy,
        clock=clock.now,
        trace=None if tracing is None else tracing.headers,
    ) as deliverer:
        send = sealed_delivery(deliverer, SigningSecrets(db, keyring=settings.keyring), settings.keyring)
        if tracing is not None:
            send = tracing.attempts(send)

        async def deliver(job: ClaimedJob) -> Outcome:
            return await breaker.deliver(job, lambda: send(job))

        config = WorkerConfig(
            {KIND: deliver},
            queues=settings.queues,
            concurrency=settings.concurrency,
            claim_batch=min(1000, settings.concurrency),
            lease=settings.lease,
            grace=settings.grace,
            observer=observer,
        )
        worker = Worker(config, db, url, wakeups)
        upkeep = Upkeep(db, wakeups, settings.retention, *([] if observer is None else [observer.rescued]))
        if metrics is not None and metrics.breakers is not None:
            metrics.breakers.watch(breaker)
        if observer is not None:
            observer.watch_slots(settings.concurrency, lambda: worker.held)
        await clock.look()
        await breaker.look()
        if started is not None:
            started.set()
        async with asyncio.TaskGroup() as group:
            others = {group.create_task(part.run(ended)) for part in (wakeups, upkeep, breaker)}
            others.add(group.create_task(every(clock.step, ended, db.trouble, "clock")))
            try:
                return await worker.run(draining, aborting)
            finally:
                ended.set()
                await asyncio.wait(others, timeout=_OTHERS_END_S)
                for task in others:
                    task.cancel()  # a statement that gets no answer; every step may be cut off anywhere
