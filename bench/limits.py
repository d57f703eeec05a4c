"""Limits under kills: what runs, sampled all the while, is never more than may."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass, field

from bench.finding import Finding, Row
from bench.processes import Child
from bench.setting import NOOP, Place, Setting
from bench.tally import Tally
from duly.model import RetryPolicy
from duly.model.jobs import NewJob
from duly.queue import Database, QueueSettings, conservation, enqueue, set_account_concurrency, set_queue

WORKERS = 8
LIMITS = {"account": 5, "queue": 3, "key": 1}
LIMIT_S = 900.0

_QUEUES = ("a", "b")
_KEYS = 10
_LEASE_S = 2.0
_SEED = 20261205
_SAMPLE = """
    with running as (
        select l.account_id, b.queue, n.concurrency_key
        from duly.lease l join duly.lane n on n.id = l.lane_id join duly.lane_block b on b.id = n.block_id)
    select coalesce((select max(n) from (select count(*) n from running group by account_id) c), 0) as account,
           coalesce((select max(n) from (select count(*) n from running group by queue) c), 0) as queue,
           coalesce((select max(n) from (
               select count(*) n from running where concurrency_key <> '' group by queue, concurrency_key) c), 0) as key
"""


@dataclass(slots=True)
class Seen:
    """What the samples told."""

    samples: int = 0
    most: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))
    full: int = 0
    kills: int = 0
    seconds: float = 0.0


async def run(setting: Setting) -> Finding:
    """One database, all workers on it, until every job has succeeded."""
    count = 400 if setting.quick else 20_000
    async with setting.database() as place, await Database.open(place.dsn) as db:
        await _fill(db, place, count)
        seen = await _worked_off(setting, place, db, count)
        total = await conservation(db)
    assert not total.faults, total.faults
    return _finding(count, seen, total.succeeded)


async def _fill(db: Database, place: Place, count: int) -> None:
    rng = random.Random(_SEED)
    await set_account_concurrency(db, place.owner.account_id, LIMITS["account"])
    for name in _QUEUES:
        await set_queue(db, place.owner.project_id, name, QueueSettings(LIMITS["queue"], LIMITS["key"]))
    for start in range(0, count, 1000):
        jobs = [
            NewJob(
                NOOP,
                round(rng.uniform(0, 0.01), 4),
                queue=rng.choice(_QUEUES),
                concurrency_key=rng.choice([None, *map(str, range(_KEYS))]),
                retry=RetryPolicy(max_attempts=100),
            )
            for _ in range(min(1000, count - start))
        ]
        await enqueue(db, [(place.owner, job) for job in jobs])


async def _worked_off(setting: Setting, place: Place, db: Database, count: int) -> Seen:
    rng, seen = random.Random(_SEED), Seen()
    with Tally.make(setting.file("tally")) as tally:
        argument = {"dsn": place.dsn, "work": "nap", "tally": str(tally.file), "concurrency": 20, "lease_s": _LEASE_S}

        def another() -> Child:
            return Child("bench.worker_process", argument, setting.file("worker.log"))

        workers = [another() for _ in range(WORKERS)]
        try:
            began = time.monotonic()
            kill_at = began + 2.0
            while time.monotonic() - began < LIMIT_S:
                await _look(db, seen)
                if seen.samples % 25 == 0 and await _ended(db, count):
                    break
                if time.monotonic() > kill_at:
                    victim = rng.randrange(WORKERS)
                    os.kill(workers[victim].pid, signal.SIGKILL)
                    await workers[victim].end()
                    workers[victim] = another()
                    seen.kills += 1
                    kill_at = time.monotonic() + rng.uniform(2, 8)
                await asyncio.sleep(0.02)
            seen.seconds = time.monotonic() - began
        finally:
            for worker in workers:
                await worker.end()
    return seen


async def _look(db: Database, seen: Seen) -> None:
    row = await db.fetchrow(_SAMPLE)
    assert row is not None
    seen.samples += 1
    seen.most = {name: max(most, row[name]) for name, most in seen.most.items()}
    seen.full += row["account"] == LIMITS["account"]


async def _ended(db: Database, count: int) -> bool:
    ended: bool = await db.fetchval("select count(*) = $1 from duly.outcome", count)
    return ended


def _finding(count: int, seen: Seen, succeeded: int) -> Finding:
    within = all(seen.most[name] <= limit for name, limit in LIMITS.items())
    return Finding(
        program="limits",
        measured=f"{count:,} jobs of one account under limits of {LIMITS['account']} for the account, {LIMITS['queue']}"
        f" for each of {len(_QUEUES)} queues and {LIMITS['key']} for each of {_KEYS} keys of a queue, {WORKERS} worker"
        f" processes with leases of {_LEASE_S:g} s, one of them killed every few seconds; what runs was counted all the"
        " while, every 20 ms.",
        rows=[
            Row(
                "most that ran at once",
                ", ".join(f"{name} {most} of {LIMITS[name]}" for name, most in seen.most.items()),
            ),
            Row("samples", f"{seen.samples:,}, the account full in {seen.full / max(1, seen.samples):.0%}"),
            Row("kills", str(seen.kills)),
            Row("succeeded", f"{succeeded:,} of {count:,} in {seen.seconds:.0f} s"),
        ],
        rounds=[{"most": seen.most, "samples": seen.samples, "kills": seen.kills, "succeeded": succeeded}],
        figures={"jobs_per_second": count / max(seen.seconds, 0.001), **{k: float(v) for k, v in seen.most.items()}},
        goal="never more than a limit, and every job succeeds",
        met=within and succeeded == count,
    )
