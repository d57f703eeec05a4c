"""The process that meets the fault: a worker, an upkeep without a worker, or a client that asks until it is answered.

`work`: Worker, Upkeep and Wakeups, as the driver of the crash tests runs them. `keep`: Upkeep and Wakeups only.
`ask`: one request for some jobs, again and again until the database answers it; what it is told goes to the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from duly import queue
from duly.cli.stopping import Stop, run_loop
from duly.model import NewJob
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Owner
from duly.upkeep import Upkeep
from duly.worker import Wakeups, Worker, WorkerConfig
from matrix.cells import Step
from matrix.points import Point, arm, armed_handler
from support.crash_driver import KIND, handler
from support.crash_journal import Journal

HANDLER, DRAINING_HANDLER = "handler", "draining-handler"
FINISH = {"do": "finish"}


def point_of(told: argparse.Namespace, journal: Journal) -> Point | None:
    """The fault point that the command line asks for; a heartbeat waits for a job that runs."""
    if not told.call:
        return None
    point = Point(Step[told.step], told.action, told.gate, journal)
    if told.call == "heartbeat":
        point.due = lambda: bool(journal.entries("start"))
    return point


async def work(told: argparse.Namespace, journal: Journal, point: Point | None) -> int:
    """Run until told to stop; then drain. 0 after a clean drain."""
    stop, ended, at_once = Stop(), asyncio.Event(), asyncio.Event()
    at_once.set()
    handle = handler(journal)
    if point is not None and told.call in (HANDLER, DRAINING_HANDLER):
        handle = armed_handler(handle, point, at_once if told.call == HANDLER else stop.draining)
    config = WorkerConfig({KIND: handle}, lease=timedelta(seconds=told.lease), grace=timedelta(seconds=30))
    async with await Database.open(told.dsn, name="victim") as db:
        wakeups = Wakeups(told.dsn, trouble=db.trouble)
        worker, upkeep = Worker(config, db, told.dsn, wakeups), Upkeep(db, wakeups)
        async with asyncio.TaskGroup() as group:
            group.create_task(wakeups.run(ended))
            group.create_task(upkeep.run(ended))
            try:
                drained = await worker.run(stop.draining, stop.aborting)
            finally:
                ended.set()
    return 0 if drained.clean else 1


async def keep(told: argparse.Namespace) -> int:
    """Run the upkeep until told to stop."""
    stop = Stop()
    async with await Database.open(told.dsn, name="victim") as db:
        wakeups = Wakeups(told.dsn, trouble=db.trouble)
        async with asyncio.TaskGroup() as group:
            group.create_task(wakeups.run(stop.draining))
            group.create_task(Upkeep(db, wakeups).run(stop.draining))
    return 0


async def ask(told: argparse.Namespace, journal: Journal) -> int:
    """Ask until answered."""
    owner = Owner(told.account, told.project)
    async with await Database.open(told.dsn, max_size=1, name="client") as db:
        while True:
            try:
                for job_id, answer in await _request(db, told.ask, owner, told.jobs):
                    journal.write(f"told-{answer}", job_id)
                    journal.write("acknowledged", job_id)
                return 0
            except DatabaseUnavailableError as error:
                logging.warning("asking again: %s", error)
                await asyncio.sleep(0.05)


async def _request(db: Database, name: str, owner: Owner, jobs: list[UUID]) -> list[tuple[UUID, str]]:
    match name:
        case "enqueue":
            answers = await queue.enqueue(db, [(owner, NewJob(KIND, FINISH, id=job_id)) for job_id in jobs])
            return [(answer.job_id, answer.result) for answer in answers]
        case "cancel":
            return [(job_id, await queue.cancel(db, owner, job_id)) for job_id in jobs]
        case "run_now":
            return [(job_id, await queue.run_now(db, owner, job_id)) for job_id in jobs]
        case "redrive":
            return [(job_id, await queue.redrive(db, owner, job_id)) for job_id in jobs]
        case "advance":
            await queue.advance(db)
            return []
        case other:
            raise AssertionError(f"unknown request {other!r}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--role", choices=("work", "keep", "ask"), required=True)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--call", default="")
    parser.add_argument("--step", choices=[step.name for step in Step])
    parser.add_argument("--action", choices=("die", "stop", "wait"))
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--ask")
    parser.add_argument("--account", type=int)
    parser.add_argument("--project", type=int)
    parser.add_argument("--jobs", type=lambda text: [UUID(one) for one in text.split(",")], default=[])
    told = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    journal = Journal(told.journal)
    point = point_of(told, journal)
    if point is not None and told.call not in (HANDLER, DRAINING_HANDLER):
        arm(told.call, point)
    match told.role:
        case "work":
            return run_loop(lambda: work(told, journal, point))
        case "keep":
            return run_loop(lambda: keep(told))
        case _:
            return run_loop(lambda: ask(told, journal))


if __name__ == "__main__":
    sys.exit(main())
