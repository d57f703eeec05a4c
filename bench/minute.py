"""Two thousand schedules on the same minute, one worker of 50 slots: how late the jobs are, and what the API's callers
notice. The API, the worker and the target are processes of their own; a client reads from the API all the time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from bench import http_target
from bench.figures import percentile
from bench.finding import Finding, Row
from bench.processes import child
from bench.setting import Place, Setting
from bench.tally import Tally
from duly.queue import Database, Owner, server_now
from duly.service import create_key
from duly.service.fire_plan import Policy
from duly.service.keyring import NO_KEYRING
from duly.service.schedules import NewSchedule, create_schedule
from duly.service.templates import Template
from duly.service.timing import Timing

CAPACITY = 50
GOAL_RATIO = 2.0

_READ_EVERY_S = 0.02
_BEFORE = timedelta(seconds=8)  # of quiet reading
_LEAD = timedelta(seconds=12)
_FAR = timedelta(days=1)
_LIMIT_S = 120.0
_LATE = """
    select extract(epoch from f.made_at - f.fire_at)::float8 as made_s,
           extract(epoch from a.started_at - f.fire_at)::float8 as started_s, a.outcome
    from duly.fire f left join duly.attempt a on a.job_id = f.job_id and a.number = 1
    where f.outcome = 'made'
"""


@dataclass(frozen=True, slots=True)
class Minute:
    """Seconds of lateness per job, milliseconds of the API's answers before and during, and what went wrong."""

    made_s: list[float]
    started_s: list[float]
    before_ms: list[float]
    during_ms: list[float]
    failed: int


async def run(setting: Setting) -> Finding:
    """One minute that comes, on a fresh database."""
    count = 100 if setting.quick else 2000
    async with setting.database() as place, await Database.open(place.dsn) as db:
        with Tally.make(setting.file("tally"), http_target.SLOTS) as tally:
            argument = {"tally": str(tally.file), "hosts": 1}
            async with child("bench.http_target", argument, setting.file("target.log")) as target:
                await target.until(lambda: tally.numbers[http_target.PORT] > 0, 30)
                minute = await _minute(setting, place, db, tally.numbers[http_target.PORT], count)
    return _finding(count, minute)


async def _minute(setting: Setting, place: Place, db: Database, port: int, count: int) -> Minute:
    key = (await create_key(db, place.owner.project_id, "bench")).key
    api_log, worker_log = setting.file("api.log"), setting.file("worker.log")
    worker = ["worker", "--concurrency", str(CAPACITY), "--allow", "127.0.0.0/8", "--allow-port", str(port)]
    async with _duly(place, ["api", "--port", "0"], api_log), _duly(place, worker, worker_log):
        url = await _address(api_log)
        at = await _make(db, place.owner, count, port)
        reads: list[tuple[datetime, float]] = []
        reading = asyncio.create_task(_read(url, key, reads))
        try:
            async with asyncio.timeout(_LIMIT_S):
                while await db.fetchval("select count(*) from duly.outcome where state = 'succeeded'") < count:
                    await asyncio.sleep(0.5)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        ended = datetime.now(UTC)
        rows = await db.fetch(_LATE)
    return Minute(
        [row["made_s"] for row in rows],
        [row["started_s"] for row in rows if row["started_s"] is not None],
        [ms for when, ms in reads if at - _BEFORE <= when < at],
        [ms for when, ms in reads if at <= when < ended],
        sum(row["outcome"] != "success" for row in rows) + abs(len(rows) - count),
    )


async def _make(db: Database, owner: Owner, count: int, port: int) -> datetime:
    """The schedules, all for one moment that comes soon: a whole second, as a minute's first is. It is set when all are
    there, however long that took.
    """
    now = await server_now(db)
    for n in range(count):
        payload = {"url": f"http://127.0.0.1:{port}/{n}", "method": "POST", "headers": []}
        new = NewSchedule(Timing(now, at=now + _FAR), Policy(), Template("http", payload, b"{}"))
        await create_schedule(db, owner, new, keyring=NO_KEYRING, now=now)
    at = (await server_now(db)).replace(microsecond=0) + _LEAD
    async with db.transaction() as tx:
        await tx.execute("update duly.schedule set at = $1", at)
        await tx.execute("update duly.schedule_turn set next_fire_at = $1, look_at = $1", at)
    return at


@asynccontextmanager
async def _duly(place: Place, words: list[str], log: Path) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "duly", *words, "--database-url", place.dsn, "--no-encryption"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=kept, stdout=out, stderr=out)
    try:
        yield
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def _address(log: Path) -> str:
    async with asyncio.timeout(30):
        while "http://" not in (said := log.read_text()):
            await asyncio.sleep(0.05)
    return said[said.index("http://") :].split()[0]


async def _read(url: str, key: str, reads: list[tuple[datetime, float]]) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
        while True:
            when, begun_s = datetime.now(UTC), time.monotonic()
            answer = await client.get("/v1/schedules?limit=1")
            answer.raise_for_status()
            reads.append((when, (time.monotonic() - begun_s) * 1000))
            await asyncio.sleep(_READ_EVERY_S)


def _finding(count: int, minute: Minute) -> Finding:
    figures = {
        "made_p50_s": percentile(minute.made_s, 0.5),
        "made_max_s": max(minute.made_s),
        "started_p50_s": percentile(minute.started_s, 0.5),
        "started_max_s": max(minute.started_s),
        "api_before_p50_ms": percentile(minute.before_ms, 0.5),
        "api_during_p50_ms": percentile(minute.during_ms, 0.5),
        "api_before_p99_ms": percentile(minute.before_ms, 0.99),
        "api_during_p99_ms": percentile(minute.during_ms, 0.99),
        "failed": float(minute.failed),
    }
    ratio = figures["api_during_p50_ms"] / figures["api_before_p50_ms"]
    rows = [
        Row(
            "jobs made after their moment, p50 / last", f"{figures['made_p50_s']:.2f} s / {figures['made_max_s']:.2f} s"
        ),
        Row("started, p50 / last", f"{figures['started_p50_s']:.2f} s / {figures['started_max_s']:.2f} s"),
        Row("API p50 before / during", f"{figures['api_before_p50_ms']:.1f} / {figures['api_during_p50_ms']:.1f} ms"),
        Row("API p99 before / during", f"{figures['api_before_p99_ms']:.1f} / {figures['api_during_p99_ms']:.1f} ms"),
        Row("API p50, ratio", f"{ratio:.2f}"),
        Row("jobs that failed or are missing", str(minute.failed)),
    ]
    return Finding(
        "minute",
        f"{count} schedules due at the same moment, one worker of {CAPACITY} slots",
        rows,
        [],
        {**figures, "api_ratio": ratio},
        f"no errors; the API's median answer within {GOAL_RATIO:g} times",
        minute.failed == 0 and ratio <= GOAL_RATIO,
    )
