"""One measured drain: N jobs wait, one worker process starts, and the database's clock says how long they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import asyncpg

from bench.processes import Child, child, cpu_seconds
from bench.setting import Place, Setting
from bench.tally import Tally
from duly.queue import Database, conservation

CONCURRENCY = 3000
LIMIT_S = 300.0

# No row: something is left. Looks in the live segments only, so that it costs the same behind a held snapshot.
_NOTHING_LEFT = """
    with live as (
        select l.line, unnest(s.closed || array(select generate_series(s.upwards_from, c.last_value))) as segment
        from (values ('ready'), ('lease')) l (line)
        cross join lateral duly.live_segments(l.line) s
        cross join duly.segment_current c)
    select clock_timestamp()
    where not exists (
        select from live cross join lateral (select from duly.ready r where r.segment = live.segment limit 1) one
        where live.line = 'ready')
      and not exists (
        select from live cross join lateral (select from duly.lease l where l.segment = live.segment limit 1) one
        where live.line = 'lease')
"""
_FIRST_CLAIM = "select min(started_at) from duly.attempt where started_at >= $1"


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain. `seconds`: first claim to nothing left, by the database's clock; CPU in microseconds a job, over
    the process trees.
    """

    jobs: int
    seconds: float
    rate: float
    client_us: float
    server_us: float

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Line:
    """How to ask a system's database: `left` gives the clock once nothing is left, `began` the first claim since a
    moment.
    """

    left: str
    began: str


DULY = Line(_NOTHING_LEFT, _FIRST_CLAIM)


def duly_worker(setting: Setting, place: Place, tally: Tally) -> AbstractAsyncContextManager[Child]:
    """A worker process with its upkeep that runs no-op jobs."""
    argument = {
        "dsn": place.dsn,
        "work": "noop",
        "tally": str(tally.file),
        "slots": tally.slots,
        "concurrency": CONCURRENCY,
    }
    return child("bench.worker_process", argument, setting.file("worker.log"))


async def drained(
    setting: Setting,
    place: Place,
    count: int,
    line: Line = DULY,
    worker: Callable[[Setting, Place, Tally], AbstractAsyncContextManager[Child]] = duly_worker,
) -> Drain:
    """Start the worker, let it take `count` waiting jobs, and stop it."""
    connection = await asyncpg.connect(place.dsn)
    try:
        await connection.execute("set enable_seqscan = off; set enable_bitmapscan = off; set jit = off")
        await connection.fetchval(line.left)  # planned now, not when the clock is running
        since: datetime = await connection.fetchval("select clock_timestamp()")
        with Tally.make(setting.file("tally")) as tally:
            async with worker(setting, place, tally) as process:
                await process.until(lambda: tally.count > 0, 60)
                client, server = cpu_seconds(process.pid), cpu_seconds(setting.server_pid)
                already = tally.count
                await process.until(lambda: tally.count >= count, LIMIT_S)
                ended = await _nothing_left(connection, line.left, process)
                client, server = cpu_seconds(process.pid) - client, cpu_seconds(setting.server_pid) - server
        began = await connection.fetchval(line.began, since)
    finally:
        await connection.close()
    seconds = (ended - began).total_seconds()
    microseconds = 1e6 / max(count - already, 1)
    return Drain(count, seconds, count / seconds, client * microseconds, server * microseconds)


async def _nothing_left(connection: asyncpg.Connection, question: str, process: Child) -> datetime:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        at: datetime | None = await connection.fetchval(question)
        if at is not None:
            return at
        process.check()
        await asyncio.sleep(0.005)
    raise TimeoutError("every handler ran, but the database says that jobs are left")


async def check_all_succeeded(db: Database, count: int) -> None:
    """Raise AssertionError unless every job of the database has succeeded and the ledger adds up: a fast loss is
    no result.
    """
    ledger = await conservation(db)
    assert ledger.holds, f"the ledger does not add up: {ledger.faults}"
    assert ledger.succeeded == ledger.jobs == count, f"{count} jobs were enqueued: {ledger}"
