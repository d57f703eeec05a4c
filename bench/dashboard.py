"""What the dashboard costs: pages over ten million finished jobs, and claims while five tabs are open."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import asyncpg

from bench.figures import Spread, percentile, ratio
from bench.finding import Finding, Row
from bench.processes import child
from bench.setting import NOOP, Place, Setting, analyze
from duly.model.jobs import NewJob
from duly.model.settlement import Settlement
from duly.queue import ClaimCursor, Database, LiveSegments, claim, enqueue, live_segments, register, settle

ROUNDS = 3
FIRST_PAINT_GOAL_S = 1.0
CLAIM_GOAL = 1.1
TABS = 5

_CLAIMED = 10
_CHUNK = 200_000
_SEGMENTS_EVERY_S = 1.0
_FILL_LIMIT_S = 600.0
# An hour of history, every tenth attempt failed, every fiftieth job dead; bodies and answers as they are in life.
_FILL = """
    with made as materialized (
        select duly.uuid7() as id, n, now() - interval '1 hour' + n * interval '1 hour' / $5 as at
        from generate_series($3::integer, $4::integer) n
    ), facts as (
        insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts, timeout_seconds,
            run_at, payload, body, created_at)
        select m.id, $1, $2, 1, 'default', 'http', 5, 8, 30, m.at,
            jsonb_build_object('url', 'https://host-' || m.n % 50 || '.example.com/hook', 'method', 'POST'),
            convert_to(repeat('x', 100), 'utf8'), m.at from made m
    ), ended as (
        insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt, finished_at)
        select m.id, $1, case when m.n % 50 = 0 then 'dead' else 'succeeded' end,
            case when m.n % 50 = 0 then 'permanent' end, 1, 8, m.at from made m
    )
    insert into duly.attempt (job_id, number, worker_id, trigger, started_at, finished_at, outcome, status_code, error)
    select m.id, 1, 1, 'schedule', m.at - interval '0.1 s', m.at,
        case when m.n % 10 = 0 then 'http_error' else 'success' end, case when m.n % 10 = 0 then 404 else 200 end,
        case when m.n % 10 = 0 then 'the target answered 404' end
    from made m order by m.n
"""


async def run(setting: Setting) -> Finding:
    """Fill one database, then alternate: claims with tabs open, claims with none."""
    jobs, samples = (100_000, 100) if setting.quick else (10_000_000, 500)
    pages: list[dict[str, list[float]]] = []
    open_ms: list[list[float]] = []
    alone_ms: list[list[float]] = []
    async with setting.database() as place:
        await _fill(place, jobs)
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


class Claims:
    """One worker that claims ten jobs and settles them, again and again."""

    def __init__(self, db: Database, place: Place, worker_id: int) -> None:
        self._db = db
        self._place = place
        self._worker_id = worker_id
        self._cursor = ClaimCursor()
        self._segments: LiveSegments | None = None
        self._read_at_s = 0.0

    @classmethod
    async def on(cls, db: Database, place: Place) -> Claims:
        return cls(db, place, await register(db, "bench", [NOOP], None, _CLAIMED, timedelta(hours=1)))

    async def measured(self, samples: int) -> list[float]:
        """Milliseconds of `samples` claims, as the caller sees them; the rest of the round is not timed."""
        took = []
        for _ in range(samples):
            await enqueue(self._db, [(self._place.owner, NewJob(NOOP, None)) for _ in range(_CLAIMED)])
            segments = await self._live()
            began = time.perf_counter()
            jobs = await claim(self._db, self._worker_id, _CLAIMED, [NOOP], None, self._cursor, segments)
            took.append((time.perf_counter() - began) * 1e3)
            refused = await settle(self._db, self._worker_id, [Settlement(j.id, j.attempt, "succeeded") for j in jobs])
            assert not refused, "a lease of the only worker was lost"
            assert jobs, "nothing was claimed"
        return took

    async def _live(self) -> LiveSegments:
        now_s = time.monotonic()
        if self._segments is None or now_s - self._read_at_s > _SEGMENTS_EVERY_S:
            self._segments = await live_segments(self._db, "ready")
            self._read_at_s = now_s
        return self._segments


async def _fill(place: Place, jobs: int) -> None:
    connection = await asyncpg.connect(place.dsn)
    try:
        for start in range(0, jobs, _CHUNK):
            owner = place.owner
            last = min(start + _CHUNK, jobs) - 1
            await connection.execute(
                _FILL, owner.account_id, owner.project_id, start, last, jobs, timeout=_FILL_LIMIT_S
            )
    finally:
        await connection.close()
    await analyze(place.dsn)


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
        f" just begun, and again; and the time of a claim of {_CLAIMED} while {TABS} tabs are open and while none is:"
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
