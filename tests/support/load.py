"""One process of the conservation test: `python -m support.load ROLE`, its orders as JSON on stdin, its report as
JSON on stdout.

Roles: `traffic` does everything that clients and workers do, at random; `keeper` turns segments twenty times a
second, moves all
survivors, promotes and rescues.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly import queue
from duly.model import ClaimedJob, DeadReason, NewJob, Report, RetryPolicy, Settlement
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, Owner
from duly.upkeep import SegmentKeeper

EDGES: tuple[Edge, ...] = (
    "succeeded",
    "succeeded",
    "succeeded",
    "dead",
    "cancelled",
    "retry",
    "snooze",
    "interrupted",
    "release",
)


@dataclass
class Traffic:
    """Random work on one owner, remembering what the database said."""

    db: Database
    owner: Owner
    worker_id: int
    rng: random.Random
    enqueued: list[UUID] = field(default_factory=list)
    claimed: list[tuple[str, int]] = field(default_factory=list)
    released: Counter[tuple[str, int]] = field(default_factory=Counter)
    held: list[ClaimedJob] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    cursor: ClaimCursor = field(default_factory=ClaimCursor)

    def job(self) -> NewJob:
        delay = timedelta(milliseconds=self.rng.randrange(300)) if self.rng.random() < 0.2 else None
        return NewJob(
            "k",
            {},
            concurrency_key=str(self.rng.randrange(5)),
            priority=self.rng.choice((3, 5)),
            delay=delay,
            retry=RetryPolicy(max_attempts=50),
        )

    async def enqueue(self) -> None:
        jobs = [self.job() for _ in range(self.rng.randrange(1, 40))]
        await queue.enqueue(self.db, [(self.owner, job) for job in jobs])
        self.enqueued += [job.id for job in jobs]

    async def enqueue_early_and_commit_late(self) -> None:
        """Segments turn many times in between; one in five is rolled back."""
        jobs = [self.job() for _ in range(5)]
        try:
            async with self.db.transaction() as session:
                await queue.enqueue(session, [(self.owner, job) for job in jobs])
                await asyncio.sleep(self.rng.uniform(0.1, 1.5))
                if self.rng.random() < 0.2:
                    raise LookupError
        except LookupError:
            return
        self.enqueued += [job.id for job in jobs]

    async def claim(self) -> None:
        segments = await queue.live_segments(self.db, "ready")
        if self.rng.random() < 0.5:  # as old as a worker's may be
            await asyncio.sleep(self.rng.uniform(0, 0.3))
        jobs = await queue.claim(self.db, self.worker_id, self.rng.randrange(1, 60), ["k"], None, self.cursor, segments)
        self.held += jobs
        self.claimed += [(str(job.id), job.attempt) for job in jobs]

    async def settle(self) -> None:
        self.rng.shuffle(self.held)
        n = self.rng.randrange(1, 80)
        jobs, self.held = self.held[:n], self.held[n:]
        settlements = [self.settlement(job) for job in jobs]
        refused = await queue.settle(self.db, self.worker_id, settlements)
        self.refused += [str(job_id) for job_id in refused]
        for s in settlements:
            if s.job_id not in refused:
                self.done[s.edge] += 1
                if s.edge == "release":
                    self.released[str(s.job_id), s.attempt] += 1

    def settlement(self, job: ClaimedJob) -> Settlement:
        edge = self.rng.choice(EDGES)
        if edge == "dead":
            return Settlement(job.id, job.attempt, edge, reason=DeadReason.PERMANENT, report=Report("error", "no"))
        if edge in ("retry", "snooze"):
            delay = timedelta(milliseconds=self.rng.randrange(200))
            return Settlement(job.id, job.attempt, edge, delay=delay, report=Report("error", "again"))
        return Settlement(job.id, job.attempt, edge)

    async def cancel(self) -> None:
        if self.enqueued:
            job_id = self.rng.choice(self.enqueued[-200:])
            self.done[f"cancel {await queue.cancel(self.db, self.owner, job_id)}"] += 1

    async def redrive(self) -> None:
        if self.enqueued:
            job_id = self.rng.choice(self.enqueued[-500:])
            self.done[f"redrive {await queue.redrive(self.db, self.owner, job_id)}"] += 1

    async def run(self, until: float) -> None:
        steps = (self.enqueue, self.claim, self.claim, self.settle, self.settle, self.cancel, self.redrive)
        late: set[asyncio.Task[None]] = set()
        while time.monotonic() < until:
            await self.rng.choice(steps)()
            if len(late) < 3 and self.rng.random() < 0.1:
                late.add(asyncio.create_task(self.enqueue_early_and_commit_late()))
            for task in [task for task in late if task.done()]:
                late.discard(task)
                task.result()
        await asyncio.gather(*late)
        while self.held:
            await self.settle()


async def traffic(db: Database, orders: dict[str, Any]) -> dict[str, Any]:
    worker_id = await queue.register(db, f"load {orders['seed']}", ["k"], None, 100, timedelta(minutes=10))
    it = Traffic(db, Owner(*orders["owner"]), worker_id, random.Random(orders["seed"]))
    await it.run(time.monotonic() + orders["seconds"])
    return {
        "enqueued": [str(job_id) for job_id in it.enqueued],
        "claimed": it.claimed,
        "released": [[*key, n] for key, n in it.released.items()],
        "refused": it.refused,
        "done": dict(it.done),
    }


async def keeper(db: Database, orders: dict[str, Any]) -> dict[str, Any]:
    keepers = [SegmentKeeper(db, "ready", crowded=0), SegmentKeeper(db, "lease", crowded=0)]
    until = time.monotonic() + orders["seconds"]
    turns = failures = 0
    while time.monotonic() < until:
        began = time.monotonic()
        await queue.advance(db)
        turns += 1
        for one in keepers:
            await one.step()
        await queue.promote(db, 500, sweep=turns % 20 == 0)
        failures += len(await queue.rescue(db, await queue.live_segments(db, "lease"), 500))
        await asyncio.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
    moved, retired = (sum(values) for values in zip(*((k.moved_total, k.retired_total) for k in keepers), strict=True))
    return {"turns": turns, "moved": moved, "retired": retired, "rescued": failures}


async def main(role: str, orders: dict[str, Any]) -> dict[str, Any]:
    async with await Database.open(orders["url"], max_size=6, name=f"load-{role}") as db:
        try:
            return await (traffic if role == "traffic" else keeper)(db, orders)
        except asyncpg.PostgresError as error:
            return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    json.dump(asyncio.run(main(sys.argv[1], json.load(sys.stdin))), sys.stdout)
