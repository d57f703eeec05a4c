"""Jobs created a second over HTTP, beside pgbench inserting rows of the same shape into the same server."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.processes import child
from bench.setting import Place, Setting
from duly.embedded.binaries import find_binaries
from duly.queue import Database, conservation
from duly.service import create_key

ROUNDS = 3
GOAL = 0.4
CONNECTIONS = (1, 16, 64)
BATCH = 100

_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_PLAIN = "create table plain (like duly.job including all)"
_INSERT = """
insert into plain (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts, timeout_seconds, run_at,
                   payload, body)
values (duly.uuid7(), 1, 1, 1, 'default', 'http', 5, 8, 30, now(),
        '{"url": "http://127.0.0.1:8099/hook", "method": "POST", "headers": [["Content-Type", "application/json"]]}',
        '{"order": 17, "items": ["a", "b"], "total": 12.5}');
"""


@dataclass(frozen=True, slots=True)
class Case:
    """So many connections, each with so many jobs a request."""

    connections: int
    jobs: int

    @property
    def key(self) -> str:
        return f"{'single' if self.jobs == 1 else 'batch'}_{self.connections}"


CASES = tuple(Case(connections, jobs) for jobs in (1, BATCH) for connections in CONNECTIONS)


async def run(setting: Setting) -> Finding:
    """Alternate: pgbench, then the service, at each number of connections."""
    seconds = 1 if setting.quick else 5
    bare: dict[int, list[float]] = {connections: [] for connections in CONNECTIONS}
    ours: dict[str, list[float]] = {case.key: [] for case in CASES}
    for _ in range(ROUNDS):
        async with setting.database() as place:
            async with await Database.open(place.dsn) as db:
                await db.execute(_PLAIN)
                key = (await create_key(db, place.owner.project_id, "bench")).key
                for connections in CONNECTIONS:
                    bare[connections].append(await _pgbench(setting, place, connections, seconds))
                    for case in (case for case in CASES if case.connections == connections):
                        ours[case.key].append(await _created(setting, place, db, key, case, seconds))
    return _finding(seconds, bare, ours)


async def _pgbench(setting: Setting, place: Place, clients: int, seconds: int) -> float:
    """Rows a second: one prepared INSERT a transaction."""
    script = setting.file("insert.sql")
    script.write_text(" ".join(_INSERT.split()) + "\n")
    process = await asyncio.create_subprocess_exec(
        str(find_binaries().program("pgbench")),
        *("--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(2, clients)}"),
        *(f"--time={seconds}", f"--file={script}", place.dsn),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(seconds + 60):
        out, _ = await process.communicate()
    found = _TPS.search(out.decode())
    if process.returncode != 0 or found is None:
        raise RuntimeError(f"pgbench failed: {out.decode()[-2000:]}")
    return float(found[1])


async def _created(setting: Setting, place: Place, db: Database, key: str, case: Case, seconds: int) -> float:
    """Jobs acknowledged a second; each of them must be there."""
    before = (await conservation(db)).jobs
    ready, said = setting.file("port"), setting.file("said")
    async with child("bench.api_process", {"dsn": place.dsn, "ready": str(ready)}, setting.file("api.log")) as api:
        await api.until(lambda: ready.exists() and ready.read_text() != "", 30)
        told = {
            "port": int(ready.read_text()),
            "key": key,
            "connections": case.connections,
            "jobs": case.jobs,
            "seconds": seconds,
            "said": str(said),
        }
        async with child("bench.ingest_process", told, setting.file("ingest.log")) as clients:
            await clients.ended(seconds + 60)
    acknowledged, took_s = json.loads(Path(said).read_text())
    ledger = await conservation(db)
    assert ledger.holds, f"the ledger does not add up: {ledger.faults}"
    assert ledger.jobs - before == acknowledged, f"{acknowledged} were acknowledged, {ledger.jobs - before} are there"
    return float(acknowledged / took_s)


def _finding(seconds: int, bare: dict[int, list[float]], ours: dict[str, list[float]]) -> Finding:
    shares = {case.key: ratio(ours[case.key], bare[case.connections]) for case in CASES}
    figures: dict[str, Spread | float] = {
        **{f"pgbench_{n}": Spread.of(rates) for n, rates in bare.items()},
        **{case.key: Spread.of(ours[case.key]) for case in CASES},
        **{f"{case.key}_share": shares[case.key] for case in CASES},
    }
    rows = [Row(f"pgbench, {n} connections", f"{Spread.of(rates).shown()} rows/s") for n, rates in bare.items()]
    rows += [
        Row(
            f"{'one job' if case.jobs == 1 else f'{case.jobs} jobs'} a request, {case.connections} connections",
            f"{Spread.of(ours[case.key]).shown()} jobs/s, {shares[case.key].shown(2)} of pgbench",
        )
        for case in CASES
    ]
    return Finding(
        program="ingest",
        measured=f"Jobs created a second over HTTP by one API process, sealed, every acknowledged one found in the"
        f" database afterwards; beside pgbench (one prepared INSERT of such a row a transaction); {seconds} s each,"
        f" {ROUNDS} rounds, alternated.",
        rows=rows,
        rounds=[{"system": f"pgbench_{n}", "rates": rates} for n, rates in bare.items()]
        + [{"system": key, "rates": rates} for key, rates in ours.items()],
        figures=figures,
        goal=f"with 64 connections and one job a request at least {GOAL:.0%} of pgbench",
        met=shares["single_64"].median >= GOAL,
    )
