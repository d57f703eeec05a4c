"""Putting the parts together: the database, and a worker with its upkeep.

The API is in `api_part`, so that a worker does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from duly.cli.delivering import sealed_delivery
from duly.cli.observing import NOTHING, Observed
from duly.http import BreakerSettings, Deliverer, EgressPolicy, EgressProxy
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Outcome
from duly.model.retention import Retention
from duly.queue import Database, DatabaseClock
from duly.service import NO_KEYRING, Keyring, SigningSecrets
from duly.service.breaking import Breaker
from duly.service.firing import Firer
from duly.service.jobs import KIND
from duly.service.noticing import NoticeWatch
from duly.tasks.app import App
from duly.tasks.running import Runtime
from duly.tasks.worker import Part, Serving, run_workers
from duly.upkeep import Upkeep
from duly.upkeep.running import every
from duly.worker import Handler, Wakeups, Worker
from duly.worker.runtime import Drained
from duly.worker.waiting import first_of

if TYPE_CHECKING:
    from duly.observe.tracing import Tracing

_OTHERS_END_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process is told: what it serves, the apps whose tasks it runs, and how it delivers HTTP jobs, if
    it does.
    """

    serving: Serving = field(default_factory=Serving)
    apps: tuple[App, ...] = ()
    http: bool = True
    ca_file: Path | None = None
    retention: Retention = field(default_factory=Retention)
    keyring: Keyring = NO_KEYRING
    proxy: EgressProxy | None = None
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


async def work(
    db: Database,
    url: str,
    policy: EgressPolicy | None,
    settings: WorkerSettings,
    draining: asyncio.Event,
    aborting: asyncio.Event,
    started: asyncio.Event | None = None,
    watched: Observed = NOTHING,
) -> Drained:
    """Run workers for HTTP jobs (by `policy`, which may be None without them) and tasks, and the upkeep, until
    `draining`; then drain.

    Raises InvalidInputError if the pool of `db` is too small for them (see `connections_for`).
    """
    metrics = watched.metrics
    observer = None if metrics is None else metrics.work
    wakeups = Wakeups(url, db.schema, db.trouble)
    ended = asyncio.Event()
    clock = DatabaseClock(db)
    async with AsyncExitStack() as stack:
        handlers: dict[str, Handler] = {}
        parts: list[Part] = [
            wakeups.run,
            Upkeep(db, wakeups, settings.retention, *([] if observer is None else [observer.rescued])).run,
        ]
        if settings.http:
            assert policy is not None, "HTTP jobs need an egress policy"
            breaker = Breaker(db, settings.breaker)
            if metrics is not None and metrics.breakers is not None:
                metrics.breakers.watch(breaker)
            handlers[KIND] = await stack.enter_async_context(
                _delivering(db, policy, settings, breaker, clock, watched.tracing)
            )
            parts += [
                breaker.run,
                Firer(db, keyring=settings.keyring, policy=policy).run,
                NoticeWatch(db, keyring=settings.keyring, policy=policy).run,
                lambda ended: every(clock.step, ended, db.trouble, "clock"),
            ]
            await clock.look()
            await breaker.look()
        else:
            parts.append(Firer(db, tasks_only=True).run)
        process_handlers: dict[str, Handler] = {}
        if settings.apps:
            limit = max(32, 4 * settings.serving.concurrency)
            runtime = await stack.enter_async_context(Runtime(settings.apps, db, stray_limit=limit))
            handlers |= _traced(runtime.handlers(), watched.tracing)
            process_handlers = _traced(runtime.process_handlers(), watched.tracing)
            parts.append(partial(_until_unhealthy, runtime, draining))
        configs = [
            replace(config, observer=observer) for config in settings.serving.configs(handlers, process_handlers)
        ]

        def watch(engines: Sequence[Worker]) -> None:
            if observer is not None:
                slots = sum(config.concurrency for config in configs)
                observer.watch_slots(slots, lambda: sum(engine.held for engine in engines))

        if started is not None:
            started.set()
        async with asyncio.TaskGroup() as group:
            others = {group.create_task(part(ended)) for part in parts}
            try:
                drained = await run_workers(configs, db, url, wakeups, draining, aborting, watch=watch)
            finally:
                ended.set()
                await asyncio.wait(others, timeout=_OTHERS_END_S)
                for task in others:
                    task.cancel()  # a statement that gets no answer; every step may be cut off anywhere
        is_healthy = not settings.apps or not runtime.unhealthy.is_set()
        return replace(drained, clean=drained.clean and is_healthy)


@asynccontextmanager
async def _delivering(
    db: Database,
    policy: EgressPolicy,
    settings: WorkerSettings,
    breaker: Breaker,
    clock: DatabaseClock,
    tracing: Tracing | None,
) -> AsyncIterator[Handler]:
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

        yield deliver


def _traced(handlers: Mapping[str, Handler], tracing: Tracing | None) -> dict[str, Handler]:
    return {kind: handler if tracing is None else tracing.attempts(handler) for kind, handler in handlers.items()}


async def _until_unhealthy(runtime: Runtime, draining: asyncio.Event, ended: asyncio.Event) -> None:
    await first_of(runtime.unhealthy, ended)
    draining.set()
