"""Keeps a backlog at its height: `python -m bench.producer_process JSON` with dsn, account, project, tally (ours),
handled (the worker's), standing.

Enqueues no-op jobs whenever fewer than `standing` wait, so that adding and draining keep the same pace. Slot 0 of its
tally counts what it enqueued.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from bench.setting import NOOP
from bench.tally import Tally
from duly.cli.stopping import Stop, run_loop
from duly.model.jobs import NewJob
from duly.queue import Database, Owner, enqueue

_CHUNK = 500
_PRODUCERS = 2


async def main(told: dict[str, Any]) -> None:
    """Produce until SIGTERM."""
    added, handled = Tally(Path(told["tally"]), 2), Tally(Path(told["handled"]), 1)
    owner = Owner(told["account"], told["project"])
    stop = Stop()

    async def produce(db: Database) -> None:
        while not stop.draining.is_set():
            if added.count - handled.count >= told["standing"]:
                await asyncio.sleep(0.001)
                continue
            added.numbers[0] += _CHUNK  # before, so that the other producer does not fill the same gap
            await enqueue(db, [(owner, NewJob(NOOP, None)) for _ in range(_CHUNK)])

    async with await Database.open(told["dsn"], name="duly-bench-producer") as db, asyncio.TaskGroup() as group:
        for _ in range(_PRODUCERS):
            group.create_task(produce(db))


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
