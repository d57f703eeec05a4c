"""Fences under rivals: 200 rounds in which everybody who may have lost a lease goes on writing under it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from duly import queue
from duly.model import ClaimedJob
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, Session
from support.engine import Engine, new_worker, settled
from support.sessions import autocommitting, overlapping

ROUNDS = 200
NOW = timedelta(0)
MOMENT = timedelta(milliseconds=10)  # so short a lease that the grace after a server start is over
EDGES: tuple[Edge, ...] = ("succeeded", "dead", "retry", "snooze", "interrupted", "release", "cancelled")


class Owners:
    """One job, three workers that each believe to hold it, a rescuer, somebody who cancels: who may write, may."""

    def __init__(self, engine: Engine, workers: list[int], rng: random.Random) -> None:
        self.engine = engine
        self.db = engine.db
        self.workers = workers
        self.rng = rng
        self.believed: list[tuple[int, ClaimedJob]] = []
        self.met: Counter[str] = Counter()

    async def begin(self) -> None:
        """A job that one worker claimed, lost, and another claimed, as often as chance has it."""
        self.believed = []
        await self.db.execute("select duly.withdraw(job_id, null) from duly.ready")
        await self.db.execute("select duly.withdraw(job_id, null) from duly.scheduled")
        await self.engine.enqueue(max_attempts=50)
        for n in range(self.rng.randrange(1, 4)):
            if n:
                await self.lose()
            worker = self.rng.choice(self.workers)
            [job] = await self.engine.claim(1, worker=worker, cursor=ClaimCursor())
            self.believed.append((worker, job))

    async def lose(self) -> None:
        worker, job = self.believed[-1]
        await self.engine.expire_worker(worker)
        assert [lost.job_id for lost in await self.engine.rescue()] == [job.id]
        await self.db.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
        await self.engine.due_now(job.id)

    def step(self) -> Callable[[Session], Awaitable[Any]]:
        return self.rng.choice((self._settle, self._settle, self._settle, self._rescue, self._cancel, self._give_back))

    async def _settle(self, session: Session) -> None:
        worker, job = self.rng.choice(self.believed)
        edge = self.rng.choice(EDGES)
        refused = await self.engine.settle(settled(job, edge, delay=NOW), worker=worker, db=session)
        holder = self.believed[-1]
        assert refused or (worker, job) == holder, "a lost lease was accepted"
        self.met["refused" if refused else edge] += 1

    async def _rescue(self, session: Session) -> None:
        worker, _ = self.believed[-1]
        await session.execute(
            "update duly.worker set lease_expires_at = now() - interval '1 second' where id = $1", worker
        )
        self.met["rescued"] += len(await self.engine.rescue(db=session))

    async def _cancel(self, session: Session) -> None:
        answer = await queue.cancel(session, self.engine.owner, self.believed[-1][1].id, abort=True)
        self.met[f"cancel {answer}"] += 1

    async def _give_back(self, session: Session) -> None:
        worker, _ = self.rng.choice(self.believed)
        self.met["given back"] += await queue.give_back(
            session, worker, [], await queue.live_segments(session, "lease")
        )


async def test_no_lost_lease_is_ever_written_under(database: Database, database_url: str) -> None:
    """FO-002, FO-003: of two overlapping writes at most one finds the lease; the job is in one place after each round,
    and each attempt is in the ledger once at most.
    """
    engine, rng = await Engine.start(database, MOMENT), random.Random(5)
    owners = Owners(engine, [await new_worker(database, MOMENT) for _ in range(3)], rng)
    waited = 0
    async with autocommitting(database_url) as first, autocommitting(database_url) as second:
        for n in range(ROUNDS):
            await owners.begin()
            one, other, commit = owners.step(), owners.step(), rng.random() < 0.7
            waited += await overlapping(database, first, one, second, other, commit=commit)
            await database.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
            for worker, job in owners.believed:  # whatever was left is ended, under the lease that is good
                await engine.settle(settled(job, "succeeded"), worker=worker)
            assert await database.fetchval("select count(*) from duly.lease") == 0
            if n % 20 == 0:
                await engine.sound()
    await engine.sound()
    assert waited > ROUNDS / 10, "the rounds do not overlap"
    assert {"refused", "rescued", "cancel requested", "given back", *EDGES} <= owners.met.keys(), owners.met
