"""Workers killed at random under limits: never more runs than may, and what the dead held comes back."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from duly import queue
from duly.model import RetryPolicy
from duly.queue import Database, Owner, QueueSettings
from support.crash_driver import KIND
from support.crash_fleet import Fleet
from support.crash_ledger import all_succeeded
from support.engine import new_job

JOBS = 400
LIMITS = {"account": 5, "queue": 3, "key": 1}


async def test_limits_hold_while_workers_are_killed(database: Database, owner: Owner, fleet: Fleet) -> None:
    """FO-011: account limit 5, queue limit 3, key limit 1, four workers of which one is killed again and again: in no
    sample runs more than may, limits are reached, and every job succeeds. `python -m bench limits` does it
    with 20,000 jobs and eight workers.
    """
    rng = random.Random(55)
    await queue.set_account_concurrency(database, owner.account_id, LIMITS["account"])
    for name in ("a", "b"):
        settings = QueueSettings(concurrency=LIMITS["queue"], key_concurrency=LIMITS["key"])
        await queue.set_queue(database, owner.project_id, name, settings)
    jobs = [
        new_job(
            kind=KIND,
            payload={"do": "sleep", "seconds": rng.uniform(0.0, 0.05)},
            queue=rng.choice("ab"),
            concurrency_key=rng.choice([None, "1", "2", "3"]),
            retry=RetryPolicy(max_attempts=50),
        )
        for _ in range(JOBS)
    ]
    workers = [await fleet.worker(lease_s=1.0, concurrency=20) for _ in range(4)]
    await queue.enqueue(database, [(owner, job) for job in jobs])
    most: Counter[str] = Counter()
    kills, kill_at, ends_at = 0, time.monotonic() + 0.2, time.monotonic() + 60
    while time.monotonic() < ends_at and not await _ended(database):
        for what, running in (await _running(database)).items():
            assert running <= LIMITS[what], f"{running} of one {what} run at once"
            most[what] = max(most[what], running)
        if time.monotonic() > kill_at and kills < 6:
            victim = rng.randrange(len(workers))
            workers[victim].kill()
            workers[victim] = await fleet.worker(lease_s=1.0, concurrency=20)
            kills += 1
            kill_at = time.monotonic() + rng.uniform(0.3, 1.0)
        await asyncio.sleep(0.005)
    await all_succeeded(database, JOBS, patience_s=60)
    assert kills > 0
    assert most["queue"] == LIMITS["queue"]
    assert most["key"] == LIMITS["key"]


async def _running(db: Database) -> dict[str, int]:
    rows = await db.fetch(
        """select l.account_id, b.queue, n.concurrency_key as key from duly.lease l
           join duly.lane n on n.id = l.lane_id join duly.lane_block b on b.id = n.block_id"""
    )
    groups = {
        "account": Counter(row["account_id"] for row in rows),
        "queue": Counter(row["queue"] for row in rows),
        "key": Counter((row["queue"], row["key"]) for row in rows if row["key"]),
    }
    return {what: max(counts.values(), default=0) for what, counts in groups.items()}


async def _ended(db: Database) -> bool:
    ended: bool = await db.fetchval("select count(*) = $1 from duly.outcome", JOBS)
    return ended
