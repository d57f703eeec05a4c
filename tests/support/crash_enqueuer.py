"""A process that enqueues until SIGTERM and journals each job that was acknowledged, and only those.

A batch whose answer was lost is sent again under the same ids until it is acknowledged, as created or as repeated.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from duly import queue
from duly.cli.stopping import Stop, run_loop
from duly.model import NewJob
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Owner
from support.crash_driver import KIND
from support.crash_journal import Journal

_BATCH = 5


async def enqueue(told: argparse.Namespace) -> None:
    journal, owner, stop = Journal(told.journal), Owner(told.account, told.project), Stop()
    async with await Database.open(told.dsn, max_size=1, name="crash-enqueuer") as db:
        while not stop.draining.is_set():
            batch = [(owner, NewJob(KIND, {"do": "sleep", "seconds": 0.02})) for _ in range(_BATCH)]
            for answer in await _until_acknowledged(db, batch):
                assert answer.result in ("created", "repeated")
                journal.write("acknowledged", answer.job_id)
            await asyncio.sleep(0.02)  # a load that two workers can carry


async def _until_acknowledged(db: Database, batch: list[tuple[Owner, NewJob]]) -> list[queue.Enqueued]:
    while True:
        try:
            return await queue.enqueue(db, batch)
        except DatabaseUnavailableError:
            await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--account", type=int, required=True)
    parser.add_argument("--project", type=int, required=True)
    told = parser.parse_args()
    run_loop(lambda: enqueue(told))


if __name__ == "__main__":
    main()
