"""No-op tasks of Duly, Procrastinate and PGQueuer: `python -m bench.task_process JSON` with dsn, system, way, step,
count, tally.

`way`: sync or async. Steps: `install` (the peers' schemas), `fill` (enqueue `count`, in bulk), `single` and `bulk`
(enqueue
`count` and write the microseconds that it took to slot 0 of the tally), `work` (one worker until SIGTERM; slot 0
counts). Peers as tuned as in `drain`; their packages are looked up by name, so that nothing of ours needs them.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import asyncpg

import duly
from bench.tally import Tally
from duly.cli.stopping import Stop, run_loop
from duly.tasks.worker import Worker

SLOTS = 1000
_CHUNK = 1000
_PEER_SLOTS = 40  # Procrastinate's best in a sweep
_PEER_BATCH = 500

app = duly.App()
numbers: memoryview = memoryview(bytearray(8)).cast("q")


@app.task(name="noop_sync")
def noop_sync() -> None:
    numbers[0] += 1


@app.task(name="noop_async")
async def noop_async() -> None:
    numbers[0] += 1


def installed(system: str) -> bool:
    """Whether it is there to be compared with."""
    return system == "duly" or importlib.util.find_spec(system) is not None


@dataclass(frozen=True, slots=True)
class Told:
    """The argument."""

    dsn: str
    system: str
    way: str
    step: str
    count: int = 0
    tally: str = ""


class System(Protocol):
    """One of the three."""

    async def install(self) -> None: ...
    async def single(self, count: int) -> None: ...
    async def bulk(self, count: int) -> None: ...
    async def work(self) -> None: ...


class Duly:
    """Enqueues on a connection of asyncpg; each single one in a transaction of its own, as a program would."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._task: Any = noop_sync if told.way == "sync" else noop_async

    async def install(self) -> None:
        return None

    async def single(self, count: int) -> None:
        connection = await asyncpg.connect(self._told.dsn)
        for _ in range(count):
            async with connection.transaction():
                await self._task.enqueue(connection)
        await connection.close()

    async def bulk(self, count: int) -> None:
        connection = await asyncpg.connect(self._told.dsn)
        for size in _chunks(count):
            await duly.enqueue_many(connection, [self._task.call() for _ in range(size)])
        await connection.close()

    async def work(self) -> None:
        stop = Stop()
        async with Worker(self._told.dsn, app=app, concurrency=SLOTS):
            await stop.draining.wait()


class Procrastinate:
    def __init__(self, told: Told) -> None:
        peer: Any = importlib.import_module("procrastinate")
        connector = peer.PsycopgConnector(conninfo=told.dsn, min_size=4, max_size=_PEER_SLOTS + 4)
        self._app = peer.App(connector=connector)

        def sync() -> None:
            numbers[0] += 1

        async def asynchronous() -> None:
            numbers[0] += 1

        self._task = self._app.task(name="noop")(sync if told.way == "sync" else asynchronous)

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def single(self, count: int) -> None:
        async with self._app.open_async():
            for _ in range(count):
                await self._task.defer_async()

    async def bulk(self, count: int) -> None:
        async with self._app.open_async():
            for size in _chunks(count):
                await self._task.batch_defer_async(*[{} for _ in range(size)])

    async def work(self) -> None:
        async with self._app.open_async():
            await self._app.run_worker_async(concurrency=_PEER_SLOTS, delete_jobs="always")


class PgQueuer:
    def __init__(self, told: Told) -> None:
        self._peer: Any = importlib.import_module("pgqueuer")
        self._told = told

    async def _queries(self) -> Any:
        return self._peer.Queries(self._peer.AsyncpgDriver(await asyncpg.connect(self._told.dsn)))

    async def install(self) -> None:
        queries = await self._queries()
        await queries.install()
        await queries.optimize_autovacuum()

    async def single(self, count: int) -> None:
        queries = await self._queries()
        for _ in range(count):
            await queries.enqueue("noop", None)

    async def bulk(self, count: int) -> None:
        queries = await self._queries()
        for size in _chunks(count):
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)

    async def work(self) -> None:
        worker = self._peer.PgQueuer(self._peer.AsyncpgDriver(await asyncpg.connect(self._told.dsn)))

        def count() -> None:
            numbers[0] += 1

        async def sync(job: Any) -> None:  # as it asks for where code blocks
            await asyncio.to_thread(count)

        async def asynchronous(job: Any) -> None:
            numbers[0] += 1

        worker.entrypoint("noop")(sync if self._told.way == "sync" else asynchronous)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
        await worker.run(batch_size=_PEER_BATCH)


SYSTEMS: dict[str, Callable[[Told], System]] = {"duly": Duly, "procrastinate": Procrastinate, "pgqueuer": PgQueuer}


def _chunks(count: int) -> list[int]:
    return [min(_CHUNK, count - at) for at in range(0, count, _CHUNK)]


async def _timed(what: Awaitable[None], tally: Tally) -> None:
    began = time.perf_counter()
    await what
    tally.numbers[0] = round((time.perf_counter() - began) * 1_000_000)


async def main(told: Told) -> None:
    global numbers
    system = SYSTEMS[told.system](told)
    match told.step:
        case "install":
            await system.install()
        case "fill":
            await system.bulk(told.count)
        case "single":
            await _timed(system.single(told.count), Tally(Path(told.tally), 1))
        case "bulk":
            await _timed(system.bulk(told.count), Tally(Path(told.tally), 1))
        case _:
            numbers = Tally(Path(told.tally), 1).numbers
            await system.work()


if __name__ == "__main__":
    run_loop(lambda: main(Told(**json.loads(sys.argv[1]))))
