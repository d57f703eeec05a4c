"""Everything at once, for as long as one likes: `python -m bench.soak [--minutes N]`, half an hour by default.

Workers and clients are killed, stopped past their leases and drained, the server is killed and restarted, backends are
terminated, snapshots held, transactions committed late, and every process has a wall clock of its own that is wrong
and is stepped by an hour. Then it drains, and the journals are held against the database. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import asyncpg
from rich.console import Console

from bench.figures import percentile, significant
from bench.finding import Finding, Row
from bench.results import keep, machine, show
from bench.setting import Place, Setting, open_setting
from bench.skewed_clock import NoCompilerError
from bench.soaking.audit import Attempt, Audit, End, Facts, Job, judge
from bench.soaking.fleet import Fleet
from bench.soaking.journal import read
from bench.soaking.troubles import Troubles
from duly.cli.stopping import Stop, run_loop
from duly.queue import Conservation, Database, conservation

WORKERS = 4
CLIENTS = 3

_FULL_MINUTES = 30.0
_TROUBLE_S = 75.0
_QUIET_S = 20.0
_SETTLING_S = 8.0  # of a quiet time, before lateness counts: leases of the last killed worker run out
_DRAIN_LIMIT_S = 300.0
_END_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a run did and what the audit says of it."""

    minutes: float
    seed: int
    audit: Audit
    ledger: Conservation
    drained_in_s: float
    troubles: dict[str, int]
    processes: int
    skewed: int
    poisoned: int


async def run(setting: Setting, minutes: float, seed: int) -> Soaked:
    """Trouble and quiet by turns for that long, then the drain and the audit. SIGTERM or SIGINT cuts the first part
    short.
    """
    stop, rng = Stop(), random.Random(seed)
    async with setting.database() as place:
        fleet = Fleet(place, setting.folder, WORKERS, CLIENTS, rng)
        troubles = Troubles(fleet, setting.server, place.dsn, rng)
        keeping = asyncio.create_task(fleet.keep())
        quiet: list[tuple[float, float]] = []
        try:
            end_s = time.monotonic() + minutes * 60
            while (left_s := end_s - time.monotonic()) > 0 and not stop.draining.is_set():
                await _trouble(troubles, stop, min(_TROUBLE_S, left_s))
                began_s = time.monotonic()
                await _sleep(stop, _QUIET_S)
                quiet.append((began_s + _SETTLING_S, time.monotonic()))
            await troubles.end_snapshots()
            began_s = time.monotonic()
            late = await fleet.end("client", _END_PATIENCE_S)
            await _drained(place, stop)
            drained_in_s = time.monotonic() - began_s
            late += await fleet.end("worker", _END_PATIENCE_S)
            ledger, facts = await _facts(place)
            audit = judge(read(fleet.journal_file), facts, quiet)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            fleet.close()
    for member in late:
        audit.fault("a process that did not end", f"{member.role} {member.number}")
    for words in fleet.unexpected:
        audit.fault("a process that ended by itself", words)
    return Soaked(
        minutes,
        seed,
        audit,
        ledger,
        drained_in_s,
        dict(troubles.done),
        fleet.members_total,
        fleet.skewed,
        fleet.suicides,
    )


async def _trouble(troubles: Troubles, stop: Stop, seconds: float) -> None:
    striking = asyncio.create_task(troubles.run())
    stopped = asyncio.create_task(stop.draining.wait())
    try:
        await asyncio.wait({striking, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        striking.cancel()
        [end] = await asyncio.gather(striking, return_exceptions=True)
    if isinstance(end, Exception):
        raise end


async def _sleep(stop: Stop, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.draining.wait()
    except TimeoutError:
        pass


async def _drained(place: Place, stop: Stop) -> None:
    """Return when every job is final, or after the limit: what is left then is the audit's to tell."""
    end_s = time.monotonic() + _DRAIN_LIMIT_S
    async with _connected(place) as db:
        while time.monotonic() < end_s and not stop.aborting.is_set():
            ledger = await conservation(db)
            if ledger.scheduled + ledger.ready + ledger.running == 0:
                return
            await asyncio.sleep(1.0)


@asynccontextmanager
async def _connected(place: Place) -> AsyncIterator[Database]:
    async with await Database.open(place.dsn, max_size=1, name="soak") as db:
        yield db


_JOBS = """
    select id, payload->>'do' as order_given, queue, extract(epoch from run_at)::float8 as run_at,
           extract(epoch from created_at)::float8 as created_at
    from duly.job
"""
_ATTEMPTS = """
    select job_id, number, worker_id, outcome, extract(epoch from finished_at)::float8 as finished_at,
           extract(epoch from next_run_at)::float8 as next_run_at
    from duly.attempt
"""
_ENDS = "select job_id, state, reason, attempt from duly.outcome"
_NOW = "select extract(epoch from clock_timestamp())::float8"


async def _facts(place: Place) -> tuple[Conservation, Facts]:
    """Everything, with the database's times turned into the monotonic clock's."""
    async with _connected(place) as db:
        ledger = await conservation(db)
    connection = await asyncpg.connect(place.dsn)
    try:
        before_s = time.monotonic()
        ahead_s = await connection.fetchval(_NOW) - (before_s + time.monotonic()) / 2
        jobs = {
            row["id"]: Job(row["order_given"], row["queue"], row["run_at"] - ahead_s, row["created_at"] - ahead_s)
            for row in await connection.fetch(_JOBS)
        }
        attempts = {
            (row["job_id"], row["number"]): Attempt(
                row["worker_id"],
                row["outcome"],
                row["finished_at"] - ahead_s,
                None if row["next_run_at"] is None else row["next_run_at"] - ahead_s,
            )
            for row in await connection.fetch(_ATTEMPTS)
        }
        ends = {
            row["job_id"]: End(row["state"], row["reason"], row["attempt"]) for row in await connection.fetch(_ENDS)
        }
    finally:
        await connection.close()
    return ledger, Facts(jobs, attempts, ends, ledger.faults, ledger.scheduled + ledger.ready + ledger.running)


def finding(soaked: Soaked) -> Finding:
    """The run as a table and as JSON."""
    audit, ledger = soaked.audit, soaked.ledger
    unexplained = audit.violations["an extra execution that nothing explains"]
    missing = audit.violations["acknowledged and not final"]
    extra = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(audit.extra.items())) or "none"
    late_ms = [second * 1000 for second in audit.lateness_s]
    lateness = {f"late_p{share * 100:g}_ms": percentile(late_ms, share) for share in (0.5, 0.95, 0.99) if late_ms}
    counts = {
        "acknowledged": audit.acknowledged,
        "not_final": missing,
        "executions": audit.executions,
        "extra_executions": audit.extra.total(),
        "extra_unexplained": unexplained,
        "outcomes_refused": audit.refused,
        "overlaps": audit.overlaps,
        "violations": audit.violations.total(),
        "processes_started": soaked.processes,
        "processes_skewed": soaked.skewed,
        "workers_poisoned": soaked.poisoned,
    }
    return Finding(
        program="soak",
        measured=f"{WORKERS} workers and {CLIENTS} clients for {soaked.minutes:g} minutes in trouble of every kind,"
        f" then a drain; journals held against the database (seed {soaked.seed}).",
        rows=[
            Row("conservation faults", str(ledger.faults)),
            Row("acknowledged", f"{audit.acknowledged:,}; not final: {missing}"),
            Row("jobs", f"{ledger.succeeded:,} succeeded, {ledger.dead:,} dead, {ledger.cancelled:,} cancelled"),
            Row("executions", f"{audit.executions:,}; extra: {extra}; unexplained: {unexplained}"),
            Row("overlapping executions", f"{audit.overlaps:,}, by workers that were stopped or fenced"),
            Row("outcomes refused", f"{audit.refused:,}"),
            *(Row(name, f"{n:,}") for name, n in sorted(soaked.troubles.items())),
            Row("processes started", f"{soaked.processes:,}; {soaked.skewed:,} of them with a clock 120 s off"),
            Row("workers ended by poison", f"{soaked.poisoned:,}"),
            Row("drained in", f"{soaked.drained_in_s:.0f} s"),
            Row("start after due, in quiet", ", ".join(f"{name} {value:.0f}" for name, value in lateness.items())),
            *(Row(f"VIOLATION {name}", f"{n:,}") for name, n in sorted(audit.violations.items()) if n),
        ],
        rounds=[{"troubles": soaked.troubles, "ledger": asdict(ledger), "extra": dict(audit.extra)}],
        figures={
            "minutes": soaked.minutes,
            **counts,
            "drained_in_s": significant(soaked.drained_in_s),
            **{name: significant(value) for name, value in lateness.items()},
        },
        goal="no violation",
        met=not audit.violations.total(),
        remarks=[f"{name}: {words}" for name, some in audit.examples.items() for words in some],
    )


def main() -> int:
    """0 when nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--minutes", type=float, default=_FULL_MINUTES, help="how long there is trouble (default: 30)")
    parser.add_argument("--seed", type=int, default=None, help="of what strikes when; the processes differ anyway")
    told = parser.parse_args()
    seed = random.randrange(1_000_000) if told.seed is None else told.seed
    with open_setting(quick=False) as setting:
        about = machine(setting.server.version)
        try:
            soaked = run_loop(lambda: run(setting, told.minutes, seed))
        except NoCompilerError as error:
            print(error, file=sys.stderr)
            return 1
    found = finding(soaked)
    show(found, keep(found, about, quick=told.minutes < _FULL_MINUTES), Console())
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
