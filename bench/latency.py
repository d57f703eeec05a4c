"""How soon an idle worker starts a job that comes, and how late a delayed one.

Both clocks are CLOCK_MONOTONIC of one machine, so they compare across processes. The commit is known to lie between
the enqueue's call and its answer: latency is counted from the answer (so it can be below zero when the worker is
faster) and, as the upper bound, from the call.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import timedelta

from bench.figures import Spread, percentile
from bench.finding import Finding, Row
from bench.processes import Child, child
from bench.setting import NOOP, Place, Setting
from bench.tally import Tally
from duly.model.jobs import NewJob
from duly.queue import Database, enqueue

ROUNDS = 3
P99_GOAL_MS = 15.0
LATENESS_GOAL_MS = 50.0

_EVERY_S = 0.05
_WARM_UP = 20
_DELAY_S = (1.0, 3.0)
_SEED = 20261201


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds, one number a job."""

    from_answer: list[float]
    from_call: list[float]
    lateness: list[float]


async def run(setting: Setting) -> Finding:
    """Rounds of single jobs, then delayed ones, to one idle worker; a fresh database a round."""
    count = 30 if setting.quick else 300
    rng = random.Random(_SEED)
    return _finding(count, [await _round(setting, count, rng) for _ in range(ROUNDS)])


async def _round(setting: Setting, count: int, rng: random.Random) -> Round:
    slots = 2 * (_WARM_UP + 2 * count) + 1
    async with setting.database() as place, await Database.open(place.dsn) as db:
        with Tally.make(setting.file("tally"), slots) as tally:
            argument = {"dsn": place.dsn, "work": "stamp", "tally": str(tally.file), "slots": slots}
            async with child("bench.worker_process", argument, setting.file("worker.log")) as worker:
                await _single(db, place, range(_WARM_UP), rng)
                await worker.until(lambda: tally.count == _WARM_UP, 30)
                first = _WARM_UP
                calls = await _single(db, place, range(first, first + count), rng)
                await worker.until(lambda: tally.count == first + count, 30)
                started = [tally.numbers[2 * n + 1] for n in range(first, first + count)]
                lateness = await _delayed(db, place, tally, worker, range(first + count, first + 2 * count), rng)
    return Round(
        [(at - answered) / 1e6 for at, (_, answered) in zip(started, calls, strict=True)],
        [(at - called) / 1e6 for at, (called, _) in zip(started, calls, strict=True)],
        lateness,
    )


async def _single(db: Database, place: Place, numbers: range, rng: random.Random) -> list[tuple[int, int]]:
    """Enqueue one job every 50 ms, jittered by half of it either way, so that no rhythm of the worker is met; when
    each was called and answered.
    """
    calls = []
    for n in numbers:
        await asyncio.sleep(_EVERY_S * rng.uniform(0.5, 1.5))
        job = NewJob(NOOP, n)
        called = time.monotonic_ns()
        await enqueue(db, [(place.owner, job)])
        calls.append((called, time.monotonic_ns()))
    return calls


async def _delayed(
    db: Database, place: Place, tally: Tally, worker: Child, numbers: range, rng: random.Random
) -> list[float]:
    jobs = [NewJob(NOOP, n, delay=timedelta(seconds=rng.uniform(*_DELAY_S))) for n in numbers]
    await enqueue(db, [(place.owner, job) for job in jobs])
    await worker.until(lambda: tally.count == numbers.stop, 30, every_s=0.1)
    return [tally.numbers[2 * n + 2] / 1e6 for n in numbers]


def _finding(count: int, rounds: list[Round]) -> Finding:
    figures: dict[str, Spread | float] = {}
    rows = []
    for what, column in (
        ("pick-up from the enqueue's answer", [r.from_answer for r in rounds]),
        ("pick-up from the enqueue's call", [r.from_call for r in rounds]),
        ("lateness of delayed jobs", [r.lateness for r in rounds]),
    ):
        spreads = {name: Spread.of(percentile(v, share) for v in column) for name, share in _SHARES.items()}
        rows.append(Row(what, ", ".join(f"{name} {spread.shown(1)}" for name, spread in spreads.items()) + " ms"))
        figures |= {f"{what.replace(' ', '_')}_{name}_ms": spread for name, spread in spreads.items()}
    p99 = Spread.of(percentile(r.from_answer, 0.99) for r in rounds)
    latest = max(max(r.lateness) for r in rounds)
    return Finding(
        program="latency",
        measured=f"An idle worker on a fresh database: one job every 50 ms (jittered) × {count},"
        f" from its enqueue to its handler's first line; then {count} jobs"
        f" with delays of 1 to 3 s, from when they were due; {ROUNDS} rounds.",
        rows=rows,
        rounds=[
            {
                "from_answer_p99_ms": round(percentile(r.from_answer, 0.99), 3),
                "from_call_p99_ms": round(percentile(r.from_call, 0.99), 3),
                "lateness_p99_ms": round(percentile(r.lateness, 0.99), 3),
                "lateness_max_ms": round(max(r.lateness), 3),
            }
            for r in rounds
        ],
        figures=figures,
        goal=f"pick-up p99 at most {P99_GOAL_MS:g} ms (median of the rounds),"
        f" no delayed job later than {LATENESS_GOAL_MS:g} ms",
        met=p99.median <= P99_GOAL_MS and latest <= LATENESS_GOAL_MS,
    )


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
