"""A worker process of a soak: Worker, Upkeep and Wakeups, and a handler that does what the payload says and journals
it. `python -m bench.soaking.worker_process JSON`; JSON: dsn, journal, number.

SIGTERM drains; the exit code is 0 after a clean drain, 1 after another one, 3 when it could not start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.soaking.journal import Journal
from bench.soaking.orders import KIND, LEASE
from duly.cli.logs import set_up_logs
from duly.cli.stopping import Stop, run_loop
from duly.model.errors import DatabaseUnavailableError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Bury, Outcome, Report, Retry, Snooze, Success
from duly.model.states import DeadReason
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Handler, Wakeups, Worker, WorkerConfig

COULD_NOT_START = 3

_CONCURRENCY = 25
_GRACE = timedelta(seconds=3)


def handler(journal: Journal) -> Handler:
    """Start and end of every execution are journaled, the end before anybody can write the outcome."""

    async def handle(job: ClaimedJob) -> Outcome:
        journal.write("start", job.id, job.attempt)
        how = "aborted"
        try:
            outcome = await _obey(job, journal)
            how = type(outcome).__name__
        finally:
            journal.write("end", job.id, job.attempt, how)
        return outcome

    return handle


async def _obey(job: ClaimedJob, journal: Journal) -> Outcome:
    order = json.loads(job.payload_json)
    match order["do"]:
        case "quick":
            pass
        case "sleep" | "long":
            await asyncio.sleep(order["seconds"])
        case "block":
            time.sleep(order["seconds"])
        case "fail":
            if job.attempt <= order["times"]:
                return Retry(Report("error", error="as told"))
        case "hopeless":
            return Retry(Report("error", error="as told, always"))
        case "snooze":
            if job.attempt <= order["times"]:
                return Snooze(timedelta(seconds=order["seconds"]))
        case "bury":
            return Bury(DeadReason.PERMANENT, Report("error", error="as told, for good"))
        case "poison":
            journal.write("dying", job.id, job.attempt)
            os.kill(os.getpid(), signal.SIGKILL)
        case other:
            raise AssertionError(f"unknown order {other!r}")
    return Success()


class Overheard(logging.Handler):
    """Journals what the worker says of its leases."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.INFO)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = record.__dict__
        match record.msg:
            case "registered":
                self._journal.write("registered", note=fields["worker_id"])
            case "lease not renewed in time, stopping what runs" | "not registered any more, registering anew":
                self._journal.write("fenced")
            case "outcomes refused: the lease was lost":
                for job_id in fields["job_ids"]:
                    self._journal.write("refused", UUID(job_id))


async def work(dsn: str, journal: Journal, number: int) -> int:
    stop, ended = Stop(), asyncio.Event()
    config = WorkerConfig(
        {KIND: handler(journal)}, concurrency=_CONCURRENCY, lease=LEASE, grace=_GRACE, name=f"soak:{number}"
    )
    try:
        db = await _open(dsn, stop)
    except DatabaseUnavailableError:
        return COULD_NOT_START
    async with db:
        wakeups = Wakeups(dsn)
        worker, upkeep = Worker(config, db, dsn, wakeups), Upkeep(db, wakeups)
        async with asyncio.TaskGroup() as group:
            group.create_task(wakeups.run(ended))
            group.create_task(upkeep.run(ended))
            orphaned = group.create_task(die_with_parent())
            try:
                drained = await worker.run(stop.draining, stop.aborting)
            except DatabaseUnavailableError:
                return COULD_NOT_START
            finally:
                ended.set()
                orphaned.cancel()
    return 0 if drained.clean else 1


async def _open(dsn: str, stop: Stop) -> Database:
    """Wait for a database that is away: a new process costs more."""
    while True:
        try:
            return await Database.open(dsn, max_size=4, name="soak-worker")
        except DatabaseUnavailableError:
            if stop.draining.is_set():
                raise
            await asyncio.sleep(random.uniform(0.1, 0.4))


async def die_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(1.0)
    os._exit(1)


def main() -> int:
    told = json.loads(sys.argv[1])
    journal = Journal(Path(told["journal"]), told["number"])
    set_up_logs("text", verbose=True)
    logging.getLogger("duly").addHandler(Overheard(journal))
    return run_loop(lambda: work(told["dsn"], journal, told["number"]))


if __name__ == "__main__":
    sys.exit(main())
