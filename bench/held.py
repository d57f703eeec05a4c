"""Drain cycles on one database while another session holds a snapshot: does the queue get slower with every job
done?
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from bench.draining import check_all_succeeded, drained
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.holding import held_snapshot
from bench.setting import Setting, enqueue_noops
from duly.queue import Database

ROUNDS = 3
GOAL = 0.80


async def run(setting: Setting) -> Finding:
    """Alternate fresh databases: held, free."""
    cycles, count = (3, 5_000) if setting.quick else (8, 50_000)
    held: list[list[float]] = []
    free: list[list[float]] = []
    for _ in range(ROUNDS):
        held.append(await _cycles(setting, cycles, count, hold=True))
        free.append(await _cycles(setting, cycles, count, hold=False))
    return _finding(cycles, count, held, free)


async def _cycles(setting: Setting, cycles: int, count: int, *, hold: bool) -> list[float]:
    async with setting.database() as place, await Database.open(place.dsn) as db:
        async with AsyncExitStack() as stack:
            if hold:
                await stack.enter_async_context(held_snapshot(place.dsn))
            rates = []
            for _ in range(cycles):
                await enqueue_noops(db, place.owner, count)
                rates.append((await drained(setting, place, count)).rate)
        await check_all_succeeded(db, cycles * count)
    return rates


def _finding(cycles: int, count: int, held: list[list[float]], free: list[list[float]]) -> Finding:
    kept = ratio([r[-1] for r in held], [r[0] for r in held])
    kept_free = ratio([r[-1] for r in free], [r[0] for r in free])
    beside = ratio([sum(r) for r in held], [sum(r) for r in free])
    curves = {
        name: [Spread.of(r[n] for r in rounds) for n in range(cycles)]
        for name, rounds in (("held", held), ("free", free))
    }
    return Finding(
        program="held",
        measured=f"{cycles} cycles of {count:,} no-op jobs on one database, enqueued and then drained by one worker"
        " process, while another session holds a REPEATABLE READ snapshot from before the first;"
        f" {ROUNDS} rounds, alternated with the same and no snapshot.",
        rows=[
            *(
                Row(
                    f"cycle {n + 1}",
                    f"held {curves['held'][n].shown()} jobs/s, free {curves['free'][n].shown()} jobs/s",
                )
                for n in range(cycles)
            ),
            Row("last cycle ÷ first, held", kept.shown(2)),
            Row("last cycle ÷ first, free", kept_free.shown(2)),
            Row("held ÷ free, all cycles", beside.shown(2)),
        ],
        rounds=[
            {"snapshot": name, "rates": [round(rate) for rate in rates]}
            for name, rounds in (("held", held), ("free", free))
            for rates in rounds
        ],
        figures={
            "last_by_first_held": kept,
            "last_by_first_free": kept_free,
            "held_by_free": beside,
            **{f"{name}_cycle_{n + 1}": spread for name, curve in curves.items() for n, spread in enumerate(curve)},
        },
        goal=f"the last held cycle at least {GOAL:.0%} of the first",
        met=kept.median >= GOAL,
    )
