"""A worker process of Duly with its upkeep, as a benchmark starts it: `python -m bench.worker_process JSON`.

JSON: dsn, work, tally, slots, concurrency, added, authority, keys, lease_s, shared. What `work` may be:
noop: does nothing, counts. paced: the same, but waits while the line is short (see `standing`). stamp: the payload is
a number n; notes when it started (see `latency`). mixed: the same, and without a number it naps and counts (see
`fairness`). nap: sleeps for as many seconds as its payload says, and counts. http: delivers, as `duly worker` does, to
the hosts of `http_hosts` (trusting the PEM file `authority`, if given) what was sealed under `keys`. upkeep: runs no
job at all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.setting import NOOP
from bench.tally import Tally
from duly.cli.stopping import Stop, run_loop
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Outcome, Success
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Handler, Wakeups, Worker, WorkerConfig

_DONE = Success()
MIXED_NAP_S = 0.1


@dataclass(frozen=True, slots=True)
class Task:
    """What the process was told."""

    dsn: str
    work: str
    tally: str = ""
    slots: int = 1
    concurrency: int = 100
    added: str = ""
    authority: str = ""
    keys: str = ""
    lease_s: float = 20.0
    shared: bool = False


def noop(tally: Tally) -> Handler:
    """Counts."""
    numbers = tally.numbers

    async def run(job: ClaimedJob) -> Outcome:
        numbers[0] += 1
        return _DONE

    return run


def paced(tally: Tally, gate: asyncio.Event) -> Handler:
    """Counts, and waits at the gate."""
    numbers = tally.numbers

    async def run(job: ClaimedJob) -> Outcome:
        if not gate.is_set():
            await gate.wait()
        numbers[0] += 1
        return _DONE

    return run


async def keep_gate(tally: Tally, added: Tally, gate: asyncio.Event) -> None:
    """Open while more jobs stand in line (`added` slot 0, less what is handled) than `added` slot 1 says."""
    while True:
        if added.numbers[0] - tally.count > added.numbers[1]:
            gate.set()
        else:
            gate.clear()
        await asyncio.sleep(0.001)


def stamp(tally: Tally) -> Handler:
    """Notes for job n its start by the monotonic clock (slot 2n + 1) and how late that is by the wall clock (slot
    2n + 2), in ns.
    """
    numbers = tally.numbers

    async def run(job: ClaimedJob) -> Outcome:
        started, wall = time.monotonic_ns(), time.time_ns()
        place = 2 * int(job.payload_json) + 1
        numbers[place] = started
        numbers[place + 1] = wall - round(job.run_at.timestamp() * 1_000_000) * 1000
        numbers[0] += 1
        return _DONE

    return run


def nap(tally: Tally) -> Handler:
    """Sleeps, and counts."""
    numbers = tally.numbers

    async def run(job: ClaimedJob) -> Outcome:
        await asyncio.sleep(float(job.payload_json))
        numbers[0] += 1
        return _DONE

    return run


def mixed(tally: Tally) -> Handler:
    """Stamps numbered jobs; naps and counts (in slot 1) for those without a number."""
    stamped = stamp(tally)

    async def run(job: ClaimedJob) -> Outcome:
        if job.payload_json != "null":
            return await stamped(job)
        await asyncio.sleep(MIXED_NAP_S)
        tally.numbers[1] += 1
        return _DONE

    return run


async def run_handler(db: Database, task: Task, kind: str, handler: Handler, stop: Stop) -> None:
    """A worker for jobs of one kind, its wake-ups and its upkeep, in one process."""
    wakeups = Wakeups(task.dsn, db.schema)
    ended = asyncio.Event()
    config = WorkerConfig(
        {kind: handler}, concurrency=task.concurrency, lease=timedelta(seconds=task.lease_s), shared=task.shared
    )
    worker = Worker(config, db, task.dsn, wakeups)
    async with asyncio.TaskGroup() as group:
        group.create_task(wakeups.run(ended))
        group.create_task(Upkeep(db, wakeups).run(ended))
        try:
            await worker.run(stop.draining, stop.aborting)
        finally:
            ended.set()


async def run_paced(db: Database, task: Task, stop: Stop) -> None:
    """A worker that keeps a line standing."""
    tally, gate = Tally(Path(task.tally), 1), asyncio.Event()
    keeping = asyncio.create_task(keep_gate(tally, Tally(Path(task.added), 2), gate))
    try:
        await run_handler(db, task, NOOP, paced(tally, gate), stop)
    finally:
        keeping.cancel()


async def run_upkeep(db: Database, task: Task, stop: Stop) -> None:
    """The upkeep alone."""
    wakeups = Wakeups(task.dsn, db.schema)
    async with asyncio.TaskGroup() as group:
        group.create_task(wakeups.run(stop.draining))
        group.create_task(Upkeep(db, wakeups).run(stop.draining))


async def run_http(db: Database, task: Task, stop: Stop) -> None:
    """What `duly worker` runs (`cli.parts.work`), with a resolver that knows the benchmark's names. Imported here: what
    HTTP needs would be dead weight for the others.
    """
    from bench.http_hosts import LoopbackNames
    from duly.cli.delivering import sealed_delivery
    from duly.http import Deliverer, EgressPolicy
    from duly.service import Keyring, SigningSecrets
    from duly.service.breaking import Breaker
    from duly.service.jobs import KIND

    keyring = Keyring.parse(task.keys)
    breaker = Breaker(db)
    policy = EgressPolicy.parse(allow_loopback=True)
    async with Deliverer(policy, resolver=LoopbackNames(), ca_file=task.authority or None) as deliverer:
        send = sealed_delivery(deliverer, SigningSecrets(db, keyring=keyring), keyring)

        async def deliver(job: ClaimedJob) -> Outcome:
            return await breaker.deliver(job, lambda: send(job))

        await run_handler(db, task, KIND, deliver, stop)


async def main(task: Task) -> None:
    """Work until SIGTERM, then drain."""
    stop = Stop()
    async with await Database.open(task.dsn, name="duly-bench-worker") as db:
        match task.work:
            case "upkeep":
                await run_upkeep(db, task, stop)
            case "http":
                await run_http(db, task, stop)
            case "noop":
                await run_handler(db, task, NOOP, noop(Tally(Path(task.tally), 1)), stop)
            case "stamp":
                await run_handler(db, task, NOOP, stamp(Tally(Path(task.tally), task.slots)), stop)
            case "nap":
                await run_handler(db, task, NOOP, nap(Tally(Path(task.tally), 1)), stop)
            case "mixed":
                await run_handler(db, task, NOOP, mixed(Tally(Path(task.tally), task.slots)), stop)
            case "paced":
                await run_paced(db, task, stop)
            case other:
                raise ValueError(f"unknown work {other!r}")


if __name__ == "__main__":
    told = Task(**json.loads(sys.argv[1]))
    run_loop(lambda: main(told))
