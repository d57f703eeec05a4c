"""No-op drain by one worker process, beside PGQueuer in the same run."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from bench.draining import CONCURRENCY, DULY, Drain, Line, check_all_succeeded, drained
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.pgqueuer_process import BEGAN, LEFT, installed
from bench.processes import Child, child
from bench.setting import Place, Setting, analyze, enqueue_noops
from bench.tally import Tally
from duly.queue import Database

ROUNDS = 3
RATE_GOAL = 45_000
PEER_GOAL = 2.0
_PEER = Line(LEFT, BEGAN)


async def run(setting: Setting) -> Finding:
    """Alternate fresh databases: ours, theirs."""
    count = 40_000 if setting.quick else 200_000
    ours: list[Drain] = []
    theirs: list[Drain] = []
    for _ in range(ROUNDS):
        ours.append(await _ours(setting, count))
        if installed():
            theirs.append(await _theirs(setting, count))
    return _finding(count, ours, theirs)


async def _ours(setting: Setting, count: int) -> Drain:
    async with setting.database() as place:
        async with await Database.open(place.dsn) as db:
            await enqueue_noops(db, place.owner, count)
            await analyze(place.dsn)
            found = await drained(setting, place, count, DULY)
            await check_all_succeeded(db, count)
    return found


async def _theirs(setting: Setting, count: int) -> Drain:
    async with setting.database(migrated=False) as place:
        filling = {"dsn": place.dsn, "step": "fill", "count": count}
        async with child("bench.pgqueuer_process", filling, setting.file("fill.log")) as process:
            await process.ended(300)
        await analyze(place.dsn)
        return await drained(setting, place, count, _PEER, _peer_worker)


def _peer_worker(setting: Setting, place: Place, tally: Tally) -> AbstractAsyncContextManager[Child]:
    argument = {"dsn": place.dsn, "step": "work", "tally": str(tally.file)}
    return child("bench.pgqueuer_process", argument, setting.file("peer.log"))


def _finding(count: int, ours: list[Drain], theirs: list[Drain]) -> Finding:
    rates = Spread.of(d.rate for d in ours)
    figures: dict[str, Spread | float] = {
        "jobs_per_second": rates,
        "client_us_per_job": Spread.of(d.client_us for d in ours),
        "server_us_per_job": Spread.of(d.server_us for d in ours),
    }
    rows = [_row("Duly", ours)]
    remarks = []
    times = None
    if theirs:
        times = ratio([d.rate for d in ours], [d.rate for d in theirs])
        figures |= {"pgqueuer_jobs_per_second": Spread.of(d.rate for d in theirs), "times_pgqueuer": times}
        rows += [_row("PGQueuer", theirs), Row("Duly ÷ PGQueuer", times.shown(2))]
    else:
        remarks.append("PGQueuer is not installed, so there was nothing to compare with (pip install pgqueuer)")
    return Finding(
        program="drain",
        measured=f"{count:,} no-op jobs, history kept, drained by one worker process ({CONCURRENCY:,} slots) on a fresh"
        " database: jobs ÷ the database's time from the first claim until nothing was left;"
        f" {ROUNDS} rounds, alternated.",
        rows=rows,
        rounds=[{"system": "duly", **d.to_json()} for d in ours]
        + [{"system": "pgqueuer", **d.to_json()} for d in theirs],
        figures=figures,
        goal=f"at least {RATE_GOAL:,} jobs/s, or {PEER_GOAL:g} times PGQueuer in the same run",
        met=rates.median >= RATE_GOAL or (times is not None and times.median >= PEER_GOAL),
        remarks=remarks,
    )


def _row(system: str, drains: list[Drain]) -> Row:
    rate = Spread.of(d.rate for d in drains)
    client, server = Spread.of(d.client_us for d in drains), Spread.of(d.server_us for d in drains)
    return Row(system, f"{rate.shown()} jobs/s; CPU a job: client {client.shown(1)} µs, server {server.shown(1)} µs")
