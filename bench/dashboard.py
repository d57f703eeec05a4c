"""What the dashboard costs: pages over ten million finished jobs, and claims while five tabs are open."""

from __future__ import annotations

import json
from pathlib import Path

from bench.claims import CLAIMED, Claims
from bench.figures import Spread, percentile, ratio
from bench.finding import Finding, Row
from bench.history import fill
from bench.processes import child
from bench.setting import Setting
from duly.queue import Database

ROUNDS = 3
FIRST_PAINT_GOAL_S = 1.0
CLAIM_GOAL = 1.1
TABS = 5


async def run(setting: Setting) -> Finding:
    """Fill one database, then alternate: claims with tabs open, claims with none."""
    jobs, samples = (100_000, 100) if setting.quick else (10_000_000, 500)
    pages: list[dict[str, list[float]]] = []
    open_ms: list[list[float]] = []
    alone_ms: list[list[float]] = []
    async with setting.database() as place:
        await fill(place, jobs)
        async with child("bench.worker_process", {"dsn": place.dsn, "work": "upkeep"}, setting.file("upkeep.log")):
            async with await Database.open(place.dsn) as db:
                claims = await Claims.on(db, place)
                await claims.measured(100)
                for _ in range(ROUNDS):
                    results = setting.file("pages")
                    argument = {"dsn": place.dsn, "tabs": TABS, "results": str(results)}
                    log = setting.file("dashboard.log")
                    async with child("bench.dashboard_process", argument, log) as dashboard:
                        await dashboard.until(results.exists, 120, every_s=0.05)
                        pages.append(_read(results))
                        open_ms.append(await claims.measured(samples))
                        dashboard.check()
                    alone_ms.append(await claims.measured(samples))
    return _finding(jobs, samples, pages, open_ms, alone_ms)


def _read(results: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(results.read_text())
    return found


def _finding(
    jobs: int,
    samples: int,
    pages: list[dict[str, list[float]]],
    open_ms: list[list[float]],
    alone_ms: list[list[float]],
) -> Finding:
    figures: dict[str, Spread | float] = {}
    rows = []
    slowest = 0.0
    for path in pages[0]:
        first = Spread.of(page[path][0] * 1e3 for page in pages)
        again = Spread.of(page[path][1] * 1e3 for page in pages)
        slowest = max(slowest, first.high, again.high)
        figures |= {f"page_{path.strip('/') or 'overview'}_first_ms": first}
        rows.append(Row(path, f"first {first.shown()} ms, again {again.shown()} ms"))
    shares = {"median": 0.5, "p99": 0.99}
    ratios = {}
    for name, share in shares.items():
        with_tabs, alone = ([percentile(v, share) for v in rounds] for rounds in (open_ms, alone_ms))
        ratios[name] = ratio(with_tabs, alone)
        figures |= {
            f"claim_open_{name}_ms": Spread.of(with_tabs),
            f"claim_alone_{name}_ms": Spread.of(alone),
            f"claim_ratio_{name}": ratios[name],
        }
        told = f"{TABS} tabs {Spread.of(with_tabs).shown(2)} ms, none {Spread.of(alone).shown(2)} ms"
        rows.append(Row(f"claim, {name}", f"{told}: × {ratios[name].shown(2)}"))
    return Finding(
        program="dashboard",
        measured=f"Every page of the dashboard over {jobs:,} jobs that finished in the last hour, in a process that has"
        f" just begun, and again; and the time of a claim of {CLAIMED} while {TABS} tabs are open and while none is:"
        f" {samples} claims a round, {ROUNDS} rounds, alternated on one database.",
        rows=rows,
        rounds=[
            {"tabs": tabs, "median_ms": round(percentile(v, 0.5), 4), "p99_ms": round(percentile(v, 0.99), 4)}
            for tabs, rounds in ((TABS, open_ms), (0, alone_ms))
            for v in rounds
        ],
        figures=figures,
        goal=f"every page within {FIRST_PAINT_GOAL_S:g} s, the median of claims at most × {CLAIM_GOAL:g}",
        met=slowest <= FIRST_PAINT_GOAL_S * 1e3 and ratios["median"].median <= CLAIM_GOAL,
    )
