"""Workers killed at random for a while."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

from duly import queue
from duly.model import RetryPolicy
from duly.queue import Database, Owner
from support.crash_driver import KIND
from support.crash_fleet import Fleet, Process
from support.crash_ledger import all_succeeded, ledger
from support.engine import new_job

JOBS = 300
KILLING_S = 10.0
KILLS = 8


async def test_random_kills_lose_nothing_and_every_extra_run_is_explained(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """Every job succeeds, no attempt is started twice, and each attempt but the last was recorded as worker_lost."""
    rng = random.Random(8)
    jobs = [
        new_job(
            kind=KIND,
            payload={"do": "sleep", "seconds": rng.uniform(0.0, 0.6)},
            delay=timedelta(seconds=rng.uniform(0.0, KILLING_S * 0.8)),
            retry=RetryPolicy(max_attempts=50),
        )
        for _ in range(JOBS)
    ]
    await queue.enqueue(database, [(owner, job) for job in jobs])
    workers = [await _another(fleet, rng) for _ in range(3)]
    for _ in range(KILLS):
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        victim = rng.randrange(len(workers))
        workers[victim].kill()
        workers[victim] = await _another(fleet, rng)
    await all_succeeded(database, JOBS, patience_s=45)

    attempts = await ledger(database)
    assert attempts.keys() == {job.id for job in jobs}
    for lines in attempts.values():
        assert lines == [(n, "worker_lost") for n in range(1, len(lines))] + [(len(lines), "success")]
    starts = fleet.journal.starts()
    known = {(job, number) for job, lines in attempts.items() for number, _ in lines}
    assert starts.keys() <= known
    assert all(n == 1 for n in starts.values())
    assert {(job, len(lines)) for job, lines in attempts.items()} <= starts.keys()
    lost = len(known) - JOBS
    assert 0 < lost <= KILLS * 10  # a worker holds ten at most
    assert all(worker.alive for worker in workers)


async def _another(fleet: Fleet, rng: random.Random) -> Process:
    return await fleet.worker(lease_s=rng.choice([1.0, 1.5, 2.0]), concurrency=10)
