"""Drain cycles while the database is being dumped."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import asyncpg

from bench.draining import check_all_succeeded, drained
from bench.dumping import BALLAST_MIB, add_ballast, slow_dump
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.setting import Setting, enqueue_noops
from duly.queue import Database

ROUNDS = 3
GOAL = 0.80

_BALLASTED = "bench_ballasted"


async def run(setting: Setting) -> Finding:
    """Alternate fresh databases, each with the ballast: dumped, in peace."""
    period_s, count = (20.0, 20_000) if setting.quick else (120.0, 50_000)
    rounds = 1 if setting.quick else ROUNDS
    await setting.make_database(_BALLASTED)
    await add_ballast(setting.server.dsn(_BALLASTED))
    dumped: list[list[float]] = []
    peace: list[list[float]] = []
    for _ in range(rounds):
        dumped.append(await _cycles(setting, period_s, count, dump=True))
        peace.append(await _cycles(setting, period_s, count, dump=False))
    return _finding(period_s, count, dumped, peace)


async def _cycles(setting: Setting, period_s: float, count: int, *, dump: bool) -> list[float]:
    """Cycles until the period is over; with a dump that is under way from before the first to after the last."""
    async with setting.database(template=_BALLASTED) as place, await Database.open(place.dsn) as db:
        rates = []
        async with AsyncExitStack() as stack:
            dumping = await stack.enter_async_context(slow_dump(place.dsn, setting.file("dump.log"))) if dump else None
            end = time.monotonic() + period_s
            while time.monotonic() < end:
                await enqueue_noops(db, place.owner, count)
                rates.append((await drained(setting, place, count)).rate)
            if dumping is not None:
                assert dumping.runs, f"the dump ended early, after {dumping.read_bytes} bytes: it needs more ballast"
                await _check_still_copies(place.dsn)
        await check_all_succeeded(db, count * len(rates))
    return rates


async def _check_still_copies(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        held = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'pg_dump' and backend_xmin is not null"
        )
        assert held == 1, "the dump does not hold its snapshot any more"
    finally:
        await connection.close()


def _finding(period_s: float, count: int, dumped: list[list[float]], peace: list[list[float]]) -> Finding:
    share = ratio([_mean(r) for r in dumped], [_mean(r) for r in peace])
    last = ratio([r[-1] for r in dumped], [r[0] for r in dumped])
    rates = {name: Spread.of(_mean(r) for r in rounds) for name, rounds in (("dumped", dumped), ("in peace", peace))}
    return Finding(
        program="dump",
        measured=f"Cycles of {count:,} no-op jobs for {period_s:g} s, enqueued and then drained by one worker process,"
        f" while a pg_dump of the whole database (with {BALLAST_MIB} MiB of other data, read slowly) holds ACCESS SHARE"
        f" on every table and its snapshot; {len(dumped)} round(s), alternated with the same in peace.",
        rows=[
            *(Row(name, f"{spread.shown()} jobs/s") for name, spread in rates.items()),
            Row("dumped ÷ in peace", share.shown(2)),
            Row("last cycle ÷ first, dumped", f"{last.shown(2)} over {len(dumped[-1])} cycles"),
        ],
        rounds=[
            {"dump": name == "dumped", "rates": [round(rate) for rate in rates_]}
            for name, rounds in (("dumped", dumped), ("peace", peace))
            for rates_ in rounds
        ],
        figures={
            "dumped_by_peace": share,
            "last_by_first_dumped": last,
            "dumped_jobs_per_second": rates["dumped"],
            "peace_jobs_per_second": rates["in peace"],
        },
        goal=f"dumped at least {GOAL:.0%} of in peace",
        met=share.median >= GOAL,
    )


def _mean(rates: list[float]) -> float:
    """Jobs ÷ time over cycles of equal size."""
    return len(rates) / sum(1 / rate for rate in rates)
