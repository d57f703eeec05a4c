"""Limits under rivals: 200 rounds of overlapping transactions for each kind of limit, and never one job too many."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from uuid import UUID

import pytest

from duly import queue
from duly.model import ClaimedJob
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, LiveSegments, QueueSettings, Session
from support.engine import Engine, new_worker, settled
from support.sessions import autocommitting

ROUNDS = 200
EDGES: tuple[Edge, ...] = ("succeeded", "retry", "release", "interrupted")
NOW = timedelta(0)
COUNT = {
    "account": "select coalesce(max(n), 0) from (select count(*) n from duly.lease group by account_id) c",
    "queue": """select coalesce(max(n), 0) from (select count(*) n from duly.lease l join duly.job j on j.id = l.job_id
                group by j.project_id, j.queue) c""",
    "key": """select coalesce(max(n), 0) from (select count(*) n from duly.lease l join duly.job j on j.id = l.job_id
              where j.concurrency_key is not null group by j.project_id, j.queue, j.concurrency_key) c""",
}


class Claimants:
    """Three sessions, each a worker of its own, whose transactions stay open while the others go on."""

    def __init__(self, engine: Engine, sessions: list[Session], workers: list[int], rng: random.Random) -> None:
        self.engine = engine
        self.sessions = sessions
        self.workers = workers
        self.rng = rng
        self.held: list[list[ClaimedJob]] = [[] for _ in sessions]
        self.old: LiveSegments | None = None

    async def claim(self, n: int) -> list[ClaimedJob]:
        segments = self.old if self.old and self.rng.random() < 0.5 else None  # as old as a worker's may be
        return await self.engine.claim(
            self.rng.randrange(1, 8),
            worker=self.workers[n],
            kinds=("k", "l"),
            cursor=ClaimCursor(),
            segments=segments,
            db=self.sessions[n],
        )

    async def round(self) -> int:
        """Each session claims inside a transaction of its own; some end jobs; leases move; then all end at random."""
        order = list(range(len(self.sessions)))
        self.rng.shuffle(order)
        transactions, claimed = {}, {}
        for n in order:
            transactions[n] = self.sessions[n].connection.transaction()
            await transactions[n].start()
            if self.held[n] and self.rng.random() < 0.5:
                await self.give(n, self.sessions[n])
            claimed[n] = await self.claim(n)
            if self.rng.random() < 0.3:
                await self.turn()
        self.rng.shuffle(order)
        for n in order:
            if self.rng.random() < 0.75:
                await transactions[n].commit()
                self.held[n] += claimed[n]
            else:
                await transactions[n].rollback()
        return sum(map(len, claimed.values()))

    async def give(self, n: int, session: Session) -> None:
        """End some of what a worker holds, in its transaction; refused ones ended in one that was committed."""
        jobs = self.rng.sample(self.held[n], self.rng.randrange(1, len(self.held[n]) + 1))
        edge = self.rng.choice(EDGES)
        await self.engine.settle(*(settled(job, edge, delay=NOW) for job in jobs), worker=self.workers[n], db=session)

    async def turn(self) -> None:
        closed = await queue.advance(self.engine.db) - 1
        await queue.move(self.engine.db, "lease", closed, 3)
        await queue.promote(self.engine.db, 10)

    async def settle_down(self) -> None:
        """Between rounds: what is leased and nobody knows of is given back, and the lists are true again."""
        rows = await self.engine.db.fetch("select job_id, worker_id from duly.lease")
        leased: dict[UUID, int] = {row["job_id"]: row["worker_id"] for row in rows}
        self.held = [
            list({j.id: j for j in jobs if leased.get(j.id) == worker}.values())
            for jobs, worker in zip(self.held, self.workers, strict=True)
        ]
        for n, worker in enumerate(self.workers):
            if self.held[n] and self.rng.random() < 0.5:
                await self.engine.settle(*(settled(job, "release") for job in self.held[n]), worker=worker)
                self.held[n] = []
        self.old = await queue.live_segments(self.engine.db, "ready")


@pytest.mark.parametrize("kind", COUNT)
async def test_no_limit_is_ever_exceeded(database: Database, database_url: str, kind: str) -> None:
    """FO-011: account limit 5, queue limit 3, key limit 1, beside stale lists, moving leases and rollbacks."""
    engine, rng = await Engine.start(database), random.Random(11)
    allowed = {"account": 5, "queue": 3, "key": 1}[kind]
    await engine.enqueue(30, kind="k")
    for n in range(6):
        name = f"q{n % 3}" if kind == "account" else "q"
        await engine.enqueue(10, kind="kl"[n % 2], concurrency_key=str(n // 2), queue=name)
    if kind == "account":
        await queue.set_account_concurrency(database, engine.owner.account_id, allowed)
    else:
        settings = QueueSettings(concurrency=allowed) if kind == "queue" else QueueSettings(key_concurrency=allowed)
        for name in ("default", "q"):
            await queue.set_queue(database, engine.owner.project_id, name, settings)
    claimed = full = 0
    async with autocommitting(database_url) as a, autocommitting(database_url) as b, autocommitting(database_url) as c:
        claimants = Claimants(engine, [a, b, c], [await new_worker(database) for _ in range(3)], rng)
        for _ in range(ROUNDS):
            claimed += await asyncio.wait_for(claimants.round(), 20)
            running = await database.fetchval(COUNT[kind])
            assert running <= allowed
            full += running == allowed
            await claimants.settle_down()
            if await database.fetchval("select count(*) from duly.ready") < 20:
                await engine.enqueue(20)
    await engine.sound()
    assert claimed > ROUNDS, "hardly anything was claimed"
    assert full > ROUNDS / 5, "the limit was hardly ever reached"
