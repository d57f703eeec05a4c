"""A worker for tasks inside a program's own loop, and what `duly worker` makes of the same parts. The public `Worker`
is in `duly.hosting`: it fires the schedules of tasks besides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeAlias

from duly.model.errors import InvalidInputError
from duly.model.jobs import QUEUE_NAME
from duly.model.retention import Retention
from duly.queue import Database
from duly.schema import verify
from duly.tasks.app import App, default_app
from duly.tasks.running import Runtime
from duly.upkeep import Upkeep
from duly.worker import Handler, Wakeups, WorkerConfig
from duly.worker import Worker as Engine
from duly.worker.runtime import Drained
from duly.worker.waiting import first_of

_OTHERS_END_S = 1.0
_CONNECTIONS = 4

Part: TypeAlias = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Something that runs beside the workers until the event is set."""

Queues = Sequence[str] | Mapping[str, int | None] | None
"""None: all. Names; or names with how many jobs of each run at once, None for those that share the worker's slots."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What one process serves: which queues, and how many jobs at once.

    Queues with a number of their own have slots of their own; the others share `concurrency`, and tasks that run in
    processes have `process_slots` there. `shared`: by accounts, none of which may hold all slots.
    """

    queues: Queues = None
    concurrency: int = 100
    process_slots: int = field(default_factory=lambda: os.cpu_count() or 1)
    lease: timedelta = timedelta(seconds=20)
    grace: timedelta = timedelta(seconds=25)
    shared: bool = False

    def configs(self, handlers: Mapping[str, Handler], process_handlers: Mapping[str, Handler]) -> list[WorkerConfig]:
        """One worker for each group of slots. Raises InvalidInputError."""
        queues = self._numbered()
        shared = None if queues is None else tuple(name for name, slots in queues.items() if slots is None)
        configs = []
        if shared is None or shared:
            if handlers:
                configs.append(self._config(handlers, shared, self.concurrency))
            if process_handlers:
                configs.append(self._config(process_handlers, shared, self.process_slots))
        for name, slots in (queues or {}).items():
            if slots is not None and (handlers or process_handlers):
                configs.append(self._config({**handlers, **process_handlers}, (name,), slots))
        if not configs:
            raise InvalidInputError("there is nothing to run: no module that was imported declares a task")
        return configs

    def _numbered(self) -> dict[str, int | None] | None:
        if self.queues is None:
            return None
        if isinstance(self.queues, str):
            raise InvalidInputError(f"queues is {self.queues!r}: a list of names, or names with numbers, is needed")
        queues = dict(self.queues) if isinstance(self.queues, Mapping) else dict.fromkeys(self.queues)
        for name, slots in queues.items():
            if not QUEUE_NAME.fullmatch(name):
                raise InvalidInputError(f"{name!r} is no queue name: letters, digits and . _ : / -")
            if slots is not None and slots < 1:
                raise InvalidInputError(f"queue {name} has {slots} slots: 1 or more are needed")
        return queues

    def _config(self, handlers: Mapping[str, Handler], queues: tuple[str, ...] | None, slots: int) -> WorkerConfig:
        return WorkerConfig(
            handlers,
            queues,
            slots,
            shared=self.shared,
            claim_batch=min(1000, slots),
            lease=self.lease,
            grace=self.grace,
        )


async def run_workers(
    configs: Iterable[WorkerConfig],
    db: Database,
    dsn: str,
    wakeups: Wakeups,
    draining: asyncio.Event,
    aborting: asyncio.Event,
    started: asyncio.Event | None = None,
    watch: Callable[[Sequence[Engine]], None] = lambda _: None,
) -> Drained:
    """Run a worker for each config until `draining`, then drain all of them. If one breaks, the others drain and it
    is raised. `watch` is given the workers before they run.
    """
    engines = [Engine(config, db, dsn, wakeups) for config in configs]
    watch(engines)

    async def run(engine: Engine, before: Engine | None) -> Drained:
        try:
            if before is not None:  # each takes the whole reserve when it starts: two at once would wait for each other
                await first_of(before.started, draining)
            return await engine.run(draining, aborting)
        finally:
            draining.set()

    async def tell() -> None:
        for engine in engines:
            await engine.started.wait()
        if started is not None:
            started.set()

    telling = asyncio.create_task(tell())
    try:
        befores = [None, *engines[:-1]]
        ended = await asyncio.gather(
            *(run(engine, before) for engine, before in zip(engines, befores, strict=True)), return_exceptions=True
        )
    finally:
        telling.cancel()
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    drained = [one for one in ended if isinstance(one, Drained)]
    return Drained(
        sum(one.settled for one in drained),
        sum(one.interrupted for one in drained),
        all(one.clean for one in drained),
    )


def connections_for(configs: int) -> int:
    """How many connections the pool needs for so many workers, with upkeep and progress beside them."""
    return _CONNECTIONS + 2 * configs


class Worker:
    """Runs an app's tasks, and the upkeep, beside the program that enters it; leaving it drains.

    Job code runs in threads and processes of its own, never on the loop that enters. Raises SchemaError if `duly
    migrate` has not run, DatabaseUnavailableError, InvalidInputError. `handlers`: other kinds of job to serve besides.
    `upkeep`: promote, rescue, prune, and fire the schedules of tasks; some worker has to.
    """

    def __init__(
        self,
        dsn: str,
        *,
        app: App | Sequence[App] = default_app,
        queues: Queues = None,
        concurrency: int = 100,
        process_slots: int | None = None,
        lease: timedelta = timedelta(seconds=20),
        grace: timedelta = timedelta(seconds=25),
        upkeep: bool = True,
        retention: Retention | None = None,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self._dsn = dsn
        self._apps = (app,) if isinstance(app, App) else tuple(app)
        if len({app.schema for app in self._apps}) != 1:
            raise InvalidInputError("a worker serves one schema: give the apps of each schema a worker of their own")
        slots = process_slots if process_slots is not None else os.cpu_count() or 1
        self._serving = Serving(queues, concurrency, slots, lease, grace)
        self._with_upkeep = upkeep
        self._retention = retention
        self._handlers = dict(handlers or {})
        self._draining = asyncio.Event()
        self._aborting = asyncio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            schema = self._apps[0].schema
            db = await stack.enter_async_context(
                await Database.open(self._dsn, schema=schema, max_size=connections_for(4), name="duly-worker")
            )
            async with db.session() as session:
                await verify(session.connection, schema)
            limit = max(32, 4 * self._serving.concurrency)
            self._runtime = await stack.enter_async_context(Runtime(self._apps, db, stray_limit=limit))
            configs = self._serving.configs(
                {**self._runtime.handlers(), **self._handlers}, self._runtime.process_handlers()
            )
            started = asyncio.Event()
            self._run = asyncio.create_task(self._main(configs, db, started))
            stack.push_async_callback(self._drain)
            up = asyncio.create_task(started.wait())
            await asyncio.wait({self._run, up}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            if self._run.done():
                self._run.result()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def strays(self) -> int:
        """How many attempts are settled whose code still runs: it can be stopped by the end of the process only."""
        return self._runtime.strays

    @property
    def apps(self) -> tuple[App, ...]:
        """Whose tasks it runs."""
        return self._apps

    def further_upkeep(self, db: Database) -> Sequence[Part]:
        """What is to run beside the upkeep that this layer knows."""
        return ()

    async def wait(self) -> Drained:
        """Until it ends: after `stop`, or because too much code could not be stopped. Raises what broke it."""
        return await asyncio.shield(self._run)

    def stop(self, *, abort: bool = False) -> None:
        """Begin to drain; with `abort` what runs is interrupted at once."""
        self._draining.set()
        if abort:
            self._aborting.set()

    async def _drain(self) -> None:
        self._draining.set()
        await asyncio.gather(self._run, return_exceptions=True)

    async def _main(self, configs: list[WorkerConfig], db: Database, started: asyncio.Event) -> Drained:
        wakeups = Wakeups(self._dsn, db.schema, db.trouble)
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            others = {group.create_task(wakeups.run(ended)), group.create_task(self._until_unhealthy(ended))}
            if self._with_upkeep:
                others.add(group.create_task(Upkeep(db, wakeups, self._retention).run(ended)))
                others |= {group.create_task(part(ended)) for part in self.further_upkeep(db)}
            try:
                return await run_workers(configs, db, self._dsn, wakeups, self._draining, self._aborting, started)
            finally:
                ended.set()
                await asyncio.wait(others, timeout=_OTHERS_END_S)
                for task in others:
                    task.cancel()

    async def _until_unhealthy(self, ended: asyncio.Event) -> None:
        await first_of(self._runtime.unhealthy, ended)
        self._draining.set()
