"""HTTP jobs per second to a local server, beside aiohttp alone sending the same requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench import http_target
from bench.draining import check_all_succeeded
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.processes import Child, child, cpu_seconds
from bench.setting import Place, Setting, analyze
from bench.tally import Tally
from duly.http import new_request
from duly.model.jobs import NewJob
from duly.queue import Database, enqueue
from duly.service.jobs import KIND

ROUNDS = 3
CONCURRENCY = 100

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Sent:
    """First request answered to last request answered."""

    rate: float
    client_us: float
    connections: int


async def run(setting: Setting) -> Finding:
    """Alternate: jobs through Duly on a fresh database; the same requests by aiohttp alone."""
    count = 3_000 if setting.quick else 20_000
    jobs: list[Sent] = []
    bare: list[Sent] = []
    for _ in range(ROUNDS):
        jobs.append(await _jobs(setting, count))
        bare.append(await _bare(setting, count))
    return _finding(count, jobs, bare)


async def _jobs(setting: Setting, count: int) -> Sent:
    async with setting.database() as place, _target(setting) as target:
        async with await Database.open(place.dsn) as db:
            await _enqueue(db, place, count, target.numbers[http_target.PORT])
            await analyze(place.dsn)
            argument = {"dsn": place.dsn, "work": "http", "concurrency": CONCURRENCY}
            async with child("bench.worker_process", argument, setting.file("worker.log")) as worker:
                found = await _sent(worker, target, count)
                await _settled(db, count)
            await check_all_succeeded(db, count)
    return found


async def _bare(setting: Setting, count: int) -> Sent:
    async with _target(setting) as target:
        argument = {"port": target.numbers[http_target.PORT], "count": count, "concurrency": CONCURRENCY}
        async with child("bench.http_bare_client", argument, setting.file("client.log")) as client:
            return await _sent(client, target, count)


@asynccontextmanager
async def _target(setting: Setting) -> AsyncIterator[Tally]:
    with Tally.make(setting.file("tally"), http_target.SLOTS) as tally:
        async with child("bench.http_target", {"tally": str(tally.file)}, setting.file("target.log")) as process:
            await process.until(lambda: tally.numbers[http_target.PORT] > 0, 30)
            yield tally


async def _enqueue(db: Database, place: Place, count: int, port: int) -> None:
    headers = [("Content-Type", "application/json")]
    requests = (new_request(f"http://127.0.0.1:{port}/hook", "POST", headers, b'{"n": %d}' % n) for n in range(count))
    jobs = [(place.owner, NewJob(KIND, request.to_payload(), body=request.body)) for request in requests]
    for start in range(0, count, 1000):
        await enqueue(db, jobs[start : start + 1000])


async def _sent(sender: Child, target: Tally, count: int) -> Sent:
    await sender.until(lambda: target.count > 0, 60)
    began, already, client = time.monotonic(), target.count, cpu_seconds(sender.pid)
    end = began + _LIMIT_S
    while target.count < count:  # the bare client ends by itself after its last answer: it is not asked if it lives
        if time.monotonic() > end:
            raise TimeoutError(f"{target.count} of {count} requests came in {_LIMIT_S:g} s: {sender.words()}")
        await asyncio.sleep(0.002)
    seconds, client = time.monotonic() - began, cpu_seconds(sender.pid) - client
    done = count - already
    return Sent(done / seconds, client * 1e6 / done, target.numbers[http_target.CONNECTIONS])


async def _settled(db: Database, count: int) -> None:
    """Wait for the last outcomes before the worker is stopped."""
    for _ in range(500):
        if await db.fetchval("select count(*) from duly.outcome") >= count:
            return
        await asyncio.sleep(0.02)


def _finding(count: int, jobs: list[Sent], bare: list[Sent]) -> Finding:
    rates, ceiling = Spread.of(s.rate for s in jobs), Spread.of(s.rate for s in bare)
    client, alone = Spread.of(s.client_us for s in jobs), Spread.of(s.client_us for s in bare)
    connections = Spread.of(s.connections for s in jobs)
    share = ratio([s.rate for s in jobs], [s.rate for s in bare])
    return Finding(
        program="http_jobs",
        measured=f"{count:,} HTTP jobs (a signed POST of a small body to a local server) through one worker process"
        f" with concurrency {CONCURRENCY}, and the same requests by aiohttp alone: answers a second at the target;"
        f" {ROUNDS} rounds, alternated.",
        rows=[
            Row(
                "Duly",
                f"{rates.shown()} jobs/s; client CPU {client.shown()} µs a job; {connections.shown()} connections",
            ),
            Row("aiohttp alone", f"{ceiling.shown()} requests/s; client CPU {alone.shown()} µs a request"),
            Row("Duly ÷ aiohttp alone", share.shown(2)),
        ],
        rounds=[
            {
                "sender": sender,
                "rate": round(s.rate, 1),
                "client_us": round(s.client_us, 1),
                "connections": s.connections,
            }
            for sender, rounds in (("duly", jobs), ("aiohttp", bare))
            for s in rounds
        ],
        figures={
            "jobs_per_second": rates,
            "client_us_per_job": client,
            "connections": connections,
            "bare_requests_per_second": ceiling,
            "share_of_bare": share,
        },
    )
