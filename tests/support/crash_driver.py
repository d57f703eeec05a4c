"""A worker process for the crash tests: Worker, Upkeep and Wakeups, and a handler that does what the payload says.

`{"do": "finish"}` · `{"do": "sleep" | "block", "seconds": s}` · `{"do": "wait", "gate": path}`: until the file exists ·
`{"do": "kill"}`: SIGKILL to its own process. Start and end of each attempt go to the journal. SIGTERM drains, a second
one aborts; the exit code is 0 after a clean drain. With `--die-at` the process kills itself at that step of its first
job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from duly import queue
from duly.cli.logs import set_up_logs
from duly.cli.stopping import Stop, run_loop
from duly.model import ClaimedJob, Outcome, Success
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Handler, Wakeups, Worker, WorkerConfig
from support.crash_journal import Journal

KIND = "crash"
DEATHS = ("claim-commits", "claim-committed", "settle-sent", "settle-commits", "settle-committed")
NO_DATABASE = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def handler(journal: Journal) -> Handler:
    async def handle(job: ClaimedJob) -> Outcome:
        journal.write("start", job.id, job.attempt)
        order = json.loads(job.payload_json)
        match order["do"]:
            case "finish":
                pass
            case "sleep":
                await asyncio.sleep(order["seconds"])
            case "block":
                time.sleep(order["seconds"])
            case "wait":
                while not Path(order["gate"]).exists():
                    await asyncio.sleep(0.02)
            case "kill":
                die()
            case other:
                raise AssertionError(f"unknown order {other!r}")
        journal.write("end", job.id, job.attempt)
        return Success()

    return handle


def die_at(step: str) -> None:
    """Make the first claim that brings jobs, or the first settle, deadly: before its commit, or just after it."""
    name = "claim" if step.startswith("claim") else "settle"
    original: Callable[..., Awaitable[Any]] = getattr(queue, name)

    async def deadly(db: Database, *args: Any) -> Any:
        if step == "settle-sent":
            die()
        if step.endswith("commits"):
            async with db.transaction() as session:
                answer = await original(session, *args)
                if answer or name == "settle":
                    die()
        else:
            answer = await original(db, *args)
            if answer or name == "settle":
                die()
        return answer

    setattr(queue, name, deadly)


async def work(told: argparse.Namespace) -> int:
    journal = Journal(told.journal)
    stop, ended = Stop(), asyncio.Event()
    config = WorkerConfig(
        {KIND: handler(journal)},
        concurrency=told.concurrency,
        claim_batch=told.concurrency,
        lease=timedelta(seconds=told.lease),
        grace=timedelta(seconds=told.grace),
    )
    try:
        db = await Database.open(told.dsn, name="crash-driver")
    except DatabaseUnavailableError:
        return NO_DATABASE
    async with db:
        wakeups = Wakeups(told.dsn, trouble=db.trouble)
        worker = Worker(config, db, told.dsn, wakeups)
        upkeep = Upkeep(db, wakeups)

        async def tell() -> None:
            await worker.started.wait()
            journal.write("ready")

        async with asyncio.TaskGroup() as group:
            group.create_task(wakeups.run(ended))
            group.create_task(upkeep.run(ended))
            telling = group.create_task(tell())
            try:
                drained = await worker.run(stop.draining, stop.aborting)
            finally:
                ended.set()
                telling.cancel()
    return 0 if drained.clean else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--die-at", choices=DEATHS)
    told = parser.parse_args()
    set_up_logs("text", verbose=True)
    if told.die_at:
        die_at(told.die_at)
    return run_loop(lambda: work(told))


if __name__ == "__main__":
    sys.exit(main())
