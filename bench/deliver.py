"""HTTP jobs per second, beside aiohttp alone sending the same requests under the same guard, and beside wrk."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import http_hosts, http_target
from bench.draining import check_all_succeeded
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.processes import Child, child, cpu_seconds
from bench.setting import Place, Setting, analyze
from bench.tally import Tally
from duly.http import new_request
from duly.model.jobs import NewJob
from duly.queue import Database, enqueue
from duly.service import Keyring
from duly.service.jobs import KIND
from duly.service.sealing import sealed_job

ROUNDS = 3
CONCURRENCY = 200
GOAL = 0.7
KEYS = "bench:" + "A" * 43 + "="

_LIMIT_S = 300.0
_WRK_S = 3
_WRK_RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Case:
    """What is called: how many hosts, with TLS or without; `key` names its figures."""

    key: str
    shown: str
    hosts: int
    tls: bool


CASES = (
    Case("kept", "one host, kept connections", 1, False),
    Case("kept_tls", "one host, kept TLS connections", 1, True),
    Case("hosts", f"{http_hosts.MOST_HOSTS} hosts", http_hosts.MOST_HOSTS, False),
    Case("hosts_tls", f"{http_hosts.MOST_HOSTS} TLS hosts", http_hosts.MOST_HOSTS, True),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """First request answered to last request answered; CPU in microseconds a request of the sender's process, of the
    target's and of PostgreSQL's.
    """

    rate: float
    sender_us: float
    target_us: float
    server_us: float
    connections: int


@dataclass(frozen=True, slots=True)
class Target:
    """A running target and how to call it."""

    case: Case
    tally: Tally
    process: Child
    authority: Path | None

    @property
    def port(self) -> int:
        return self.tally.numbers[http_target.PORT]

    @property
    def scheme(self) -> str:
        return "https" if self.case.tls else "http"

    def url(self, n: int) -> str:
        """For the n-th request: the hosts in turn."""
        return f"{self.scheme}://{http_hosts.name(n % self.case.hosts + 1)}:{self.port}/hook"


@dataclass(slots=True)
class Rounds:
    """What was measured of one case."""

    duly: list[Sent]
    bare: list[Sent]
    wrk: list[float]


async def run(setting: Setting) -> Finding:
    """Each round, each case: jobs through Duly on a fresh database; the same requests by aiohttp alone; wrk, which can
    only call one host.
    """
    count = 3_000 if setting.quick else 20_000
    certificates = http_hosts.Certificates.make(setting.folder, "bench")
    measured = {case: Rounds([], [], []) for case in CASES}
    for _ in range(ROUNDS):
        for case, rounds in measured.items():
            async with _target(setting, case, certificates) as target:
                rounds.duly.append(await _jobs(setting, target, count))
            async with _target(setting, case, certificates) as target:
                rounds.bare.append(await _bare(setting, target, count))
            if case.hosts == 1 and shutil.which("wrk"):
                async with _target(setting, case, certificates) as target:
                    rounds.wrk.append(await _wrk(target))
    return _finding(count, measured)


async def _jobs(setting: Setting, target: Target, count: int) -> Sent:
    async with setting.database() as place, await Database.open(place.dsn) as db:
        await _enqueue(db, place, count, target)
        await analyze(place.dsn)
        argument = {
            "dsn": place.dsn,
            "work": "http",
            "concurrency": CONCURRENCY,
            "authority": str(target.authority or ""),
            "keys": KEYS,
        }
        async with child("bench.worker_process", argument, setting.file("worker.log")) as worker:
            sent = await _sent(setting, worker, target, count)
            await _settled(db, count)
        await check_all_succeeded(db, count)
    return sent


async def _bare(setting: Setting, target: Target, count: int) -> Sent:
    argument = {
        "scheme": target.scheme,
        "port": target.port,
        "hosts": target.case.hosts,
        "authority": str(target.authority or ""),
        "count": count,
        "concurrency": CONCURRENCY,
    }
    async with child("bench.bare_client", argument, setting.file("client.log")) as client:
        return await _sent(setting, client, target, count)


async def _wrk(target: Target) -> float:
    url = f"{target.scheme}://{http_hosts.address(1)}:{target.port}/hook"
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{CONCURRENCY}", f"-d{_WRK_S}s", url, stdout=asyncio.subprocess.PIPE
    )
    said = (await asyncio.wait_for(process.communicate(), _WRK_S + 30))[0].decode()
    rate = _WRK_RATE.search(said)
    assert rate is not None, said
    return float(rate[1])


@asynccontextmanager
async def _target(setting: Setting, case: Case, certificates: http_hosts.Certificates) -> AsyncIterator[Target]:
    with Tally.make(setting.file("tally"), http_target.SLOTS) as tally:
        argument = {
            "tally": str(tally.file),
            "hosts": case.hosts,
            "leaf": str(certificates.leaf) if case.tls else "",
        }
        async with child("bench.http_target", argument, setting.file("target.log")) as process:
            await process.until(lambda: tally.numbers[http_target.PORT] > 0, 30)
            yield Target(case, tally, process, certificates.authority if case.tls else None)


async def _enqueue(db: Database, place: Place, count: int, target: Target) -> None:
    headers = [("Content-Type", "application/json")]
    requests = (new_request(target.url(n), "POST", headers, b'{"n": %d}' % n) for n in range(count))
    jobs = [(place.owner, NewJob(KIND, request.to_payload(), body=request.body)) for request in requests]
    keyring = Keyring.parse(KEYS)
    jobs = [(owner, sealed_job(keyring, owner, job)) for owner, job in jobs]
    for start in range(0, count, 1000):
        await enqueue(db, jobs[start : start + 1000])


async def _sent(setting: Setting, sender: Child, target: Target, count: int) -> Sent:
    pids = (sender.pid, target.process.pid, setting.server_pid)
    await sender.until(lambda: target.tally.count > 0, 60)
    began, already, cpu = time.monotonic(), target.tally.count, [cpu_seconds(pid) for pid in pids]
    end = began + _LIMIT_S
    while target.tally.count < count:  # the bare client ends by itself after its last answer: not asked if it lives
        if time.monotonic() > end:
            raise TimeoutError(f"{target.tally.count} of {count} requests came in {_LIMIT_S:g} s: {sender.words()}")
        await asyncio.sleep(0.002)
    seconds, done = time.monotonic() - began, count - already
    used = [(cpu_seconds(pid) - before) * 1e6 / done for pid, before in zip(pids, cpu, strict=True)]
    return Sent(done / seconds, used[0], used[1], used[2], target.tally.numbers[http_target.CONNECTIONS])


async def _settled(db: Database, count: int) -> None:
    """Wait for the last outcomes before the worker is stopped."""
    for _ in range(500):
        if await db.fetchval("select count(*) from duly.outcome") >= count:
            return
        await asyncio.sleep(0.02)


def _finding(count: int, measured: dict[Case, Rounds]) -> Finding:
    shares = {case: ratio([s.rate for s in r.duly], [s.rate for s in r.bare]) for case, r in measured.items()}
    rows: list[Row] = []
    figures: dict[str, Spread | float] = {}
    for case, rounds in measured.items():
        rates, bare = Spread.of(s.rate for s in rounds.duly), Spread.of(s.rate for s in rounds.bare)
        cpu, bare_cpu = Spread.of(s.sender_us for s in rounds.duly), Spread.of(s.sender_us for s in rounds.bare)
        cpus = ratio([s.sender_us for s in rounds.bare], [s.sender_us for s in rounds.duly])
        server, target = Spread.of(s.server_us for s in rounds.duly), Spread.of(s.target_us for s in rounds.duly)
        rows += [
            Row(
                f"{case.shown}: Duly",
                f"{rates.shown()} jobs/s; CPU µs a job: worker {cpu.shown()}, PostgreSQL {server.shown()}, target "
                f"{target.shown()}; {Spread.of(s.connections for s in rounds.duly).shown()} connections",
            ),
            Row("  aiohttp alone", f"{bare.shown()} requests/s; CPU {bare_cpu.shown()} µs a request"),
        ]
        if rounds.wrk:
            rows.append(Row("  wrk", f"{Spread.of(rounds.wrk).shown()} requests/s"))
            figures[f"{case.key}_wrk"] = Spread.of(rounds.wrk)
        rows.append(Row("  Duly ÷ aiohttp alone", f"rate {shares[case].shown(2)}; CPU {cpus.shown(2)}"))
        figures |= {
            f"{case.key}_jobs_per_second": rates,
            f"{case.key}_worker_us": cpu,
            f"{case.key}_postgresql_us": server,
            f"{case.key}_bare_per_second": bare,
            f"{case.key}_bare_us": bare_cpu,
            f"{case.key}_share_of_bare": shares[case],
            f"{case.key}_cpu_share": cpus,
        }
    return Finding(
        program="deliver",
        measured=f"{count:,} HTTP jobs a case (a signed POST of a small body to a server on loopback) through one"
        f" worker process with concurrency {CONCURRENCY}, and the same requests by aiohttp alone: answers a second at"
        f" the target; {ROUNDS} rounds, alternated.",
        rows=rows,
        rounds=[
            {"case": case.key, "sender": sender, **{name: round(n, 1) for name, n in asdict(s).items()}}
            for case, rounds in measured.items()
            for sender, those in (("duly", rounds.duly), ("aiohttp", rounds.bare))
            for s in those
        ],
        figures=figures,
        goal=f"Duly ÷ aiohttp alone at least {GOAL:.2f} in every case, in jobs a second",
        met=all(share.median >= GOAL for share in shares.values()),
        remarks=() if shutil.which("wrk") else ("wrk is not installed: no figure beside it.",),
    )
