"""What a large account does to two hundred small ones, and what they leave it."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from bench.figures import Spread, percentile, ratio
from bench.finding import Finding, Row
from bench.processes import child
from bench.setting import NOOP, Setting, analyze, enqueue_noops, make_owner
from bench.tally import Tally
from duly.model.jobs import NewJob
from duly.queue import Database, Owner, enqueue

ROUNDS = 3
ACCOUNTS = 200
SLOTS = 200
DELAY_GOAL = 2.0
REST_GOAL = 0.8

_WARM_UP_S = 2.0
_SEED = 20261206


@dataclass(frozen=True, slots=True)
class Phase:
    """Milliseconds from the enqueue's call to the start of each small job, and jobs a second of the large account."""

    delays_ms: list[float]
    large_per_second: float

    def p99(self) -> float:
        return percentile(self.delays_ms, 0.99)


async def run(setting: Setting) -> Finding:
    """Alternate fresh databases: the small ones alone, beside the large one, the large one alone."""
    crowd, seconds = (20_000, 3) if setting.quick else (1_000_000, 20)
    alone, beside, large = [], [], []
    for _ in range(ROUNDS):
        alone.append(await _phase(setting, 0, ACCOUNTS, seconds))
        beside.append(await _phase(setting, crowd, ACCOUNTS, seconds))
        large.append(await _phase(setting, crowd, 0, seconds))
    return _finding(crowd, seconds, alone, beside, large)


async def _phase(setting: Setting, crowd: int, accounts: int, seconds: int) -> Phase:
    total = accounts * seconds
    slots = 2 * (total + 1) + 1
    async with setting.database() as place, await Database.open(place.dsn) as db:
        owners = [await make_owner(db, f"small {n}") for n in range(accounts)]
        await enqueue_noops(db, place.owner, crowd)
        await analyze(place.dsn)
        with Tally.make(setting.file("tally"), slots) as tally:
            argument = {
                "dsn": place.dsn,
                "work": "mixed",
                "tally": str(tally.file),
                "slots": slots,
                "concurrency": SLOTS,
                "shared": True,
            }
            async with child("bench.worker_process", argument, setting.file("worker.log")) as worker:
                if crowd:
                    await worker.until(lambda: tally.numbers[1] > 0, 60)
                await asyncio.sleep(_WARM_UP_S)
                began, before = time.monotonic(), tally.numbers[1]
                called = await _small_jobs(db, owners, seconds)
                large = (tally.numbers[1] - before) / (time.monotonic() - began)
                await worker.until(lambda: tally.count >= total, 60)
                delays = [(tally.numbers[2 * n + 1] - at) / 1e6 for n, at in called.items()]
    return Phase(delays, large)


async def _small_jobs(db: Database, owners: list[Owner], seconds: int) -> dict[int, int]:
    """A job a second of each account, each at its own moment; number → when its enqueue was called, in ns."""
    rng, called, began = random.Random(_SEED), {}, time.monotonic()

    async def one(nth: int, owner: Owner, phase_s: float) -> None:
        for second in range(seconds):
            await asyncio.sleep(max(0.0, began + second + phase_s - time.monotonic()))
            number = 1 + nth * seconds + second  # slot 1 counts the large account's jobs
            called[number] = time.monotonic_ns()
            await enqueue(db, [(owner, NewJob(NOOP, number))])

    async with asyncio.TaskGroup() as group:
        for nth, owner in enumerate(owners):
            group.create_task(one(nth, owner, rng.random()))
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    return called


def _finding(crowd: int, seconds: int, alone: list[Phase], beside: list[Phase], large: list[Phase]) -> Finding:
    p99_alone, p99_beside = [p.p99() for p in alone], [p.p99() for p in beside]
    rest = ratio([p.large_per_second for p in beside], [p.large_per_second for p in large])
    delay = ratio(p99_beside, p99_alone)
    return Finding(
        program="fairness",
        measured=f"{ACCOUNTS} accounts enqueue a job a second each for {seconds} s, one worker process with {SLOTS}"
        f" slots, alone and beside an account with {crowd:,} due jobs that take 100 ms: from the enqueue's call to the"
        f" job's first line; {ROUNDS} rounds, alternated on fresh databases.",
        rows=[
            Row(
                "p99 of the small accounts",
                f"alone {Spread.of(p99_alone).shown(1)} ms, beside {Spread.of(p99_beside).shown(1)} ms:"
                f" × {delay.shown(2)}",
            ),
            Row(
                "jobs a second of the large account",
                f"alone {Spread.of(p.large_per_second for p in large).shown()},"
                f" beside the small ones {Spread.of(p.large_per_second for p in beside).shown()}: × {rest.shown(2)}",
            ),
        ],
        rounds=[
            {"phase": name, "p99_ms": round(p.p99(), 3) if p.delays_ms else None, "large": round(p.large_per_second, 1)}
            for name, phases in (("alone", alone), ("beside", beside), ("large", large))
            for p in phases
        ],
        figures={"p99_alone_ms": Spread.of(p99_alone), "p99_beside_ms": Spread.of(p99_beside), "ratio_p99": delay}
        | {"large_share": rest},
        goal=f"p99 at most × {DELAY_GOAL:g}, and the large account keeps {REST_GOAL:.0%} of its pace",
        met=delay.median <= DELAY_GOAL and rest.median >= REST_GOAL,
    )
