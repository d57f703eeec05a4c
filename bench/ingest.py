"""Jobs created a second over HTTP, beside pgbench doing the same in the same server: the statement that the API sends,
with one job, a transaction each; and, for scale, the bare INSERT of such a row into a table that nothing else hangs on.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.processes import child, cpu_seconds
from bench.setting import Place, Setting
from duly.embedded.binaries import find_binaries
from duly.model import NewJob
from duly.queue import Database, Owner, conservation
from duly.service import Keyring, create_key
from duly.service.keyring import new_key
from duly.service.sealing import sealed_job

ROUNDS = 3
GOAL = 0.4
CONNECTIONS = (1, 16, 64)
BATCH = 100

_TPS = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_PLAIN = "create table plain (like duly.job including all)"
_ENQUEUE = """
select place, result, stored_at, other from duly.enqueue(
    array[duly.uuid7()], array[{account}], array[{project}], array['default'], array['http'], array[null]::text[],
    array[5], array[null]::timestamptz[], array[null]::double precision[], array[8], array[30]::double precision[],
    array[null]::timestamptz[], array[null]::jsonb[], array[null]::jsonb[], array[null]::jsonb[],
    array['{payload}']::jsonb[], array['{body}']::bytea[], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}',
    p_patience => '1000ms', p_replays_of => '{{}}');
"""
_INSERT = """
insert into plain (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts, timeout_seconds, run_at,
                   payload, body)
values (duly.uuid7(), {account}, {project}, 1, 'default', 'http', 5, 8, 30, now(), '{payload}', '{body}');
"""
_SCRIPTS = {"enqueue": _ENQUEUE, "insert": _INSERT}
_TARGET = "http://127.0.0.1:8099/hook"
_BODY = b'{"order": 17, "items": ["a", "b"], "total": 12.5}'


@dataclass(frozen=True, slots=True)
class Case:
    """So many connections, each with so many jobs a request."""

    connections: int
    jobs: int

    @property
    def key(self) -> str:
        return f"{'single' if self.jobs == 1 else 'batch'}_{self.connections}"

    @property
    def shown(self) -> str:
        one = "one job" if self.jobs == 1 else f"{self.jobs} jobs"
        return f"{one} a request, {self.connections} connection{'' if self.connections == 1 else 's'}"


@dataclass(slots=True)
class Measured:
    """Of every round: rows or jobs a second; for jobs, CPU µs of each by the API, by PostgreSQL and by the clients."""

    rates: list[float] = field(default_factory=list)
    api_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)


CASES = tuple(Case(connections, jobs) for jobs in (1, BATCH) for connections in CONNECTIONS)


async def run(setting: Setting) -> Finding:
    """Alternate: pgbench, then the service, at each number of connections."""
    seconds = 1 if setting.quick else 5
    bare = {f"{name}_{connections}": Measured() for name in _SCRIPTS for connections in CONNECTIONS}
    ours = {case.key: Measured() for case in CASES}
    for _ in range(ROUNDS):
        async with setting.database() as place:
            async with await Database.open(place.dsn) as db:
                await db.execute(_PLAIN)
                key = (await create_key(db, place.owner.project_id, "bench")).key
                for connections in CONNECTIONS:
                    for name in _SCRIPTS:
                        await _pgbench(setting, place, name, connections, seconds, bare[f"{name}_{connections}"])
                    for case in (case for case in CASES if case.connections == connections):
                        await _created(setting, place, db, key, case, seconds, ours[case.key])
    return _finding(seconds, bare, ours)


async def _pgbench(setting: Setting, place: Place, name: str, clients: int, seconds: int, into: Measured) -> None:
    """One prepared statement a transaction."""
    script = setting.file("statement.sql")
    script.write_text(" ".join(_SCRIPTS[name].format(**_stored(place.owner)).split()) + "\n")
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
    into.rates.append(float(found[1]))


def _stored(owner: Owner) -> dict[str, Any]:
    """What a job of the clients is when it is stored, for the scripts."""
    payload = {"url": _TARGET, "method": "POST", "headers": [["Content-Type", "application/json"]]}
    job = sealed_job(Keyring.parse(new_key()), owner, NewJob("http", payload, _BODY))
    return {
        "account": owner.account_id,
        "project": owner.project_id,
        "payload": json.dumps(job.payload),
        "body": f"\\x{(job.body or b'').hex()}",
    }


async def _created(
    setting: Setting, place: Place, db: Database, key: str, case: Case, seconds: int, into: Measured
) -> None:
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
        cpu_s = cpu_seconds(api.pid), cpu_seconds(setting.server_pid)
        async with child("bench.ingest_process", told, setting.file("ingest.log")) as clients:
            await clients.ended(seconds + 60)
        used_s = cpu_seconds(api.pid) - cpu_s[0], cpu_seconds(setting.server_pid) - cpu_s[1]
    acknowledged, took_s, client_s = json.loads(Path(said).read_text())
    ledger = await conservation(db)
    assert ledger.holds, f"the ledger does not add up: {ledger.faults}"
    assert ledger.jobs - before == acknowledged, f"{acknowledged} were acknowledged, {ledger.jobs - before} are there"
    into.rates.append(acknowledged / took_s)
    for spent_s, us in zip((*used_s, client_s), (into.api_us, into.server_us, into.client_us), strict=True):
        us.append(spent_s * 1e6 / acknowledged)


def _finding(seconds: int, bare: dict[str, Measured], ours: dict[str, Measured]) -> Finding:
    shares = {
        f"{case.key}_of_{name}": ratio(ours[case.key].rates, bare[f"{name}_{case.connections}"].rates)
        for case in CASES
        for name in _SCRIPTS
    }
    figures: dict[str, Spread | float] = {f"{key}_share": share for key, share in shares.items()}
    for key, measured in {**{f"pgbench_{key}": found for key, found in bare.items()}, **ours}.items():
        figures[key] = Spread.of(measured.rates)
        for part in ("api_us", "server_us", "client_us"):
            if getattr(measured, part):
                figures[f"{key}_{part}"] = Spread.of(getattr(measured, part))
    rows = [
        Row(
            f"pgbench, {key.replace('_', ', ')} connection{'' if key.endswith('_1') else 's'}",
            f"{_shown(found)} rows/s",
        )
        for key, found in bare.items()
    ]
    rows += [
        Row(
            case.shown,
            f"{_shown(ours[case.key])} jobs/s: {shares[f'{case.key}_of_enqueue'].shown(2)} of the same statement,"
            f" {shares[f'{case.key}_of_insert'].shown(2)} of the bare INSERT",
        )
        for case in CASES
    ]
    return Finding(
        program="ingest",
        measured=f"Jobs created a second over HTTP by one API process, sealed, every acknowledged one found in the"
        f" database afterwards; beside pgbench (the same statement with one job a transaction, prepared; and the bare"
        f" INSERT of such a row); clients, API and PostgreSQL share the machine's cores; {seconds} s each,"
        f" {ROUNDS} rounds, alternated.",
        rows=rows,
        rounds=[
            {"system": key, "rates": measured.rates, "server_us": measured.server_us, "api_us": measured.api_us}
            for key, measured in {**{f"pgbench_{key}": found for key, found in bare.items()}, **ours}.items()
        ],
        figures=figures,
        goal=f"with 64 connections and one job a request at least {GOAL:.0%} of pgbench with the same statement",
        met=shares["single_64_of_enqueue"].median >= GOAL,
    )


def _shown(measured: Measured) -> str:
    """Rates, and where the CPU went if that was asked."""
    parts = {"API": measured.api_us, "PostgreSQL": measured.server_us, "clients": measured.client_us}
    spent = ", ".join(f"{name} {Spread.of(us).median:,.0f}" for name, us in parts.items() if us)
    return Spread.of(measured.rates).shown() + (f" (CPU µs each: {spent})" if spent else "")
