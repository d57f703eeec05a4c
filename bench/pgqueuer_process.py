"""PGQueuer's side of `drain`, tuned: batches of 500, its own autovacuum settings, uvloop, durable tables (its default).

`python -m bench.pgqueuer_process JSON` with dsn, tally, step: `fill` makes the schema and enqueues `count` no-op
jobs, `work` runs one worker until SIGTERM. The package is looked up by name, so that nothing of ours needs it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import Any

import asyncpg

from bench.tally import Tally
from duly.cli.stopping import run_loop

LEFT = "select clock_timestamp() where not exists (select from pgqueuer)"
BEGAN = "select min(created) from pgqueuer_log where status = 'picked' and created >= $1"

_ENTRYPOINT = "noop"
_BATCH = 500
_ENQUEUE_CHUNK = 1000


def installed() -> bool:
    """Whether there is a PGQueuer to compare with."""
    return importlib.util.find_spec("pgqueuer") is not None


async def fill(dsn: str, count: int) -> None:
    """Make the schema and enqueue."""
    peer: Any = importlib.import_module("pgqueuer")
    connection = await asyncpg.connect(dsn)
    try:
        queries = peer.Queries(peer.AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        for start in range(0, count, _ENQUEUE_CHUNK):
            size = min(_ENQUEUE_CHUNK, count - start)
            await queries.enqueue([_ENTRYPOINT] * size, [None] * size, [0] * size)
    finally:
        await connection.close()


async def work(dsn: str, tally: Tally) -> None:
    """Run one worker until SIGTERM."""
    peer: Any = importlib.import_module("pgqueuer")
    worker = peer.PgQueuer(peer.AsyncpgDriver(await asyncpg.connect(dsn)))
    numbers = tally.numbers

    @worker.entrypoint(_ENTRYPOINT)  # type: ignore[untyped-decorator]
    async def noop(job: Any) -> None:
        numbers[0] += 1

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=_BATCH)


async def main(told: dict[str, Any]) -> None:
    if told["step"] == "fill":
        await fill(told["dsn"], told["count"])
    else:
        await work(told["dsn"], Tally(Path(told["tally"]), 1))


if __name__ == "__main__":
    run_loop(lambda: main(json.loads(sys.argv[1])))
