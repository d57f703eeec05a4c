"""What a small account's claim costs beside another account's million waiting jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from bench.figures import Spread, percentile, ratio
from bench.finding import Finding, Row
from bench.processes import child
from bench.setting import NOOP, Setting, analyze, enqueue_noops, make_owner
from duly.model.jobs import NewJob
from duly.model.settlement import Settlement
from duly.queue import ClaimCursor, Database, LiveSegments, Owner, claim, enqueue, live_segments, register, settle

ROUNDS = 3
GOAL = 1.5
LIMIT = 10

_WARM_UP = 50
_PAST = 10_000  # jobs done before
_SEGMENTS_EVERY_S = 1.0
_LEASE = timedelta(hours=1)


@dataclass(slots=True)
class Side:
    """One of the two databases, with a worker registered in it. `waiting` small jobs are in line."""

    db: Database
    small: Owner
    worker_id: int
    cursor: ClaimCursor = field(default_factory=ClaimCursor)
    segments: LiveSegments | None = None
    segments_read_at: float = 0.0
    waiting: int = 0


async def run(setting: Setting) -> Finding:
    """Alternate rounds of claims between a database with the crowd and one without."""
    crowd, samples = (20_000, 60) if setting.quick else (1_000_000, 1_000)
    alone_ms: list[list[float]] = []
    crowded_ms: list[list[float]] = []
    async with _side(setting, 0) as alone, _side(setting, crowd) as crowded:
        for side in (alone, crowded):
            await _round(side, _WARM_UP)
        for _ in range(ROUNDS):
            alone_ms.append(await _round(alone, samples))
            crowded_ms.append(await _round(crowded, samples))
        segments = [len((await live_segments(side.db, "ready")).closed) + 1 for side in (alone, crowded)]
    return _finding(crowd, samples, alone_ms, crowded_ms, segments)


@asynccontextmanager
async def _side(setting: Setting, crowd: int) -> AsyncIterator[Side]:
    """A database whose upkeep runs, as in life, while the crowd comes and while claims are measured.

    Both have a past and statistics before the measured connection opens: plans are made for a table that has rows.
    """
    async with setting.database() as place:
        argument = {"dsn": place.dsn, "work": "upkeep"}
        async with child("bench.worker_process", argument, setting.file("upkeep.log")):
            async with await Database.open(place.dsn) as db:
                small = await make_owner(db, "small")
                await enqueue_noops(db, small, _PAST)
                await _work_off(await _registered(db, small), _PAST)
                await enqueue_noops(db, place.owner, crowd)
            await analyze(place.dsn)
            async with await Database.open(place.dsn) as db:
                yield await _registered(db, small)


async def _registered(db: Database, small: Owner) -> Side:
    return Side(db, small, await register(db, "bench", [NOOP], None, LIMIT, _LEASE))


async def _work_off(side: Side, count: int) -> None:
    done = 0
    for _ in range(count):
        jobs = await claim(side.db, side.worker_id, 500, [NOOP], None, side.cursor, await _segments(side))
        await settle(side.db, side.worker_id, [Settlement(j.id, j.attempt, "succeeded") for j in jobs])
        done += len(jobs)
        if done == count:
            return
    raise AssertionError(f"only {done} of {count} jobs could be claimed")


async def _round(side: Side, samples: int) -> list[float]:
    """Milliseconds of `samples` claims that served the small account, as the caller sees them. Filling up and
    settling is not timed.
    """
    took: list[float] = []
    for _ in range(samples * 20):
        if len(took) == samples:
            break
        await _fill_up(side)
        segments = await _segments(side)
        began = time.perf_counter()
        jobs = await claim(side.db, side.worker_id, LIMIT, [NOOP], None, side.cursor, segments)
        seconds = time.perf_counter() - began
        served = sum(job.account_id == side.small.account_id for job in jobs)
        side.waiting -= served
        if served:
            took.append(seconds * 1e3)
        refused = await settle(side.db, side.worker_id, [Settlement(j.id, j.attempt, "succeeded") for j in jobs])
        assert not refused, "a lease of the only worker was lost"
    assert len(took) == samples, (
        f"only {len(took)} of {samples * 20} claims served the small account: fairness is broken"
    )
    return took


async def _fill_up(side: Side) -> None:
    """Keep LIMIT small jobs waiting."""
    missing = LIMIT - side.waiting
    if missing:
        await enqueue(side.db, [(side.small, NewJob(NOOP, None)) for _ in range(missing)])
        side.waiting = LIMIT


async def _segments(side: Side) -> LiveSegments:
    """Read once a second, as a worker does."""
    now = time.monotonic()
    if side.segments is None or now - side.segments_read_at > _SEGMENTS_EVERY_S:
        side.segments = await live_segments(side.db, "ready")
        side.segments_read_at = now
    return side.segments


def _finding(
    crowd: int, samples: int, alone_ms: list[list[float]], crowded_ms: list[list[float]], segments: list[int]
) -> Finding:
    figures: dict[str, Spread | float] = {"segments_alone": segments[0], "segments_crowded": segments[1]}
    rows = []
    ratios = {}
    for name, share in (("median", 0.5), ("p99", 0.99)):
        alone, crowded = ([percentile(v, share) for v in rounds] for rounds in (alone_ms, crowded_ms))
        ratios[name] = ratio(crowded, alone)
        figures |= {
            f"alone_{name}_ms": Spread.of(alone),
            f"crowded_{name}_ms": Spread.of(crowded),
            f"ratio_{name}": ratios[name],
        }
        rows.append(
            Row(
                name,
                f"alone {Spread.of(alone).shown(2)} ms, beside {crowd:,} {Spread.of(crowded).shown(2)} ms:"
                f" × {ratios[name].shown(2)}",
            )
        )
    rows.append(Row("live segments of ready at the end", f"alone {segments[0]}, beside {crowd:,} {segments[1]}"))
    return Finding(
        program="claim",
        measured=f"The time of a claim of {LIMIT} that serves a small account, alone and beside {crowd:,} waiting jobs"
        f" of another account that came in bulk while upkeep ran; {samples} claims a round, {ROUNDS} rounds,"
        " alternated between the two databases.",
        rows=rows,
        rounds=[
            {"database": name, "median_ms": round(percentile(v, 0.5), 4), "p99_ms": round(percentile(v, 0.99), 4)}
            for name, rounds in (("alone", alone_ms), ("crowded", crowded_ms))
            for v in rounds
        ],
        figures=figures,
        goal=f"the median at most × {GOAL:g}",
        met=ratios["median"].median <= GOAL,
    )
