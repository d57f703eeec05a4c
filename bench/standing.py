"""A long line that never gets shorter, with and without a held snapshot: `held`'s second half."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from bench.draining import CONCURRENCY, check_all_succeeded
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.holding import held_snapshot
from bench.processes import Child, child
from bench.setting import Place, Setting, enqueue_noops
from bench.tally import Tally
from duly.queue import Database

ROUNDS = 3
GOAL = 0.75

_WARM_UP_S = 2.0
_SLACK = 5_000  # the worker waits when the line is this much too short, the producers when it is full


@dataclass(frozen=True, slots=True)
class Stood:
    """Jobs a second handled, and the line's length at the end of the window."""

    rate: float
    line: int


async def run(setting: Setting) -> Finding:
    """Alternate fresh databases: held, free."""
    standing, window_s = (10_000, 2.0) if setting.quick else (60_000, 20.0)
    held: list[Stood] = []
    free: list[Stood] = []
    for _ in range(ROUNDS):
        held.append(await _stood(setting, standing, window_s, hold=True))
        free.append(await _stood(setting, standing, window_s, hold=False))
    return _finding(standing, window_s, held, free)


async def _stood(setting: Setting, standing: int, window_s: float, *, hold: bool) -> Stood:
    async with setting.database() as place, await Database.open(place.dsn) as db, AsyncExitStack() as stack:
        if hold:
            await stack.enter_async_context(held_snapshot(place.dsn))
        await enqueue_noops(db, place.owner, standing)
        handled = stack.enter_context(Tally.make(setting.file("handled")))
        added = stack.enter_context(Tally.make(setting.file("added"), 2))
        added.numbers[0], added.numbers[1] = standing, standing - _SLACK
        worker = await stack.enter_async_context(_worker(setting, place, handled, added))
        await worker.until(lambda: handled.count > 0, 60)
        producer = await stack.enter_async_context(_producer(setting, place, added, handled, standing))
        await producer.until(lambda: added.count > standing, 60)
        await asyncio.sleep(_WARM_UP_S)
        began, before = time.monotonic(), handled.count
        await asyncio.sleep(window_s)
        rate = (handled.count - before) / (time.monotonic() - began)
        line = added.count - handled.count
        worker.check()
        await producer.end()
        added.numbers[1] = 0
        await worker.until(lambda: handled.count >= added.count, 60)
        await worker.end()
        await check_all_succeeded(db, added.count)
    return Stood(rate, line)


def _worker(setting: Setting, place: Place, handled: Tally, added: Tally) -> AbstractAsyncContextManager[Child]:
    argument = {
        "dsn": place.dsn,
        "work": "paced",
        "tally": str(handled.file),
        "added": str(added.file),
        "concurrency": CONCURRENCY,
    }
    return child("bench.worker_process", argument, setting.file("worker.log"))


def _producer(
    setting: Setting, place: Place, added: Tally, handled: Tally, standing: int
) -> AbstractAsyncContextManager[Child]:
    argument = {
        "dsn": place.dsn,
        "account": place.owner.account_id,
        "project": place.owner.project_id,
        "tally": str(added.file),
        "handled": str(handled.file),
        "standing": standing,
    }
    return child("bench.producer_process", argument, setting.file("producer.log"))


def _finding(standing: int, window_s: float, held: list[Stood], free: list[Stood]) -> Finding:
    share = ratio([s.rate for s in held], [s.rate for s in free])
    rates = {name: Spread.of(s.rate for s in rounds) for name, rounds in (("held", held), ("free", free))}
    lines = {name: Spread.of(s.line for s in rounds) for name, rounds in (("held", held), ("free", free))}
    return Finding(
        program="standing",
        measured=f"{standing:,} no-op jobs (less some thousands) stand in line while one process enqueues and"
        " one worker process drains at the same pace: jobs handled a second"
        f" over {window_s:g} s with and without a held snapshot; {ROUNDS} rounds, alternated on fresh databases.",
        rows=[
            *(
                Row(name, f"{rates[name].shown()} jobs/s; line at the end {lines[name].shown()}")
                for name in ("held", "free")
            ),
            Row("held ÷ free", share.shown(2)),
        ],
        rounds=[
            {"snapshot": name, "rate": round(s.rate, 1), "line": s.line}
            for name, rounds in (("held", held), ("free", free))
            for s in rounds
        ],
        figures={"held_by_free": share, "held_jobs_per_second": rates["held"], "free_jobs_per_second": rates["free"]},
        goal=f"held at least {GOAL:.0%} of free",
        met=share.median >= GOAL,
    )
