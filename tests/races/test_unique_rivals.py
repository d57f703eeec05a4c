"""Two transactions want one unique key: the second waits for the first, and never do two jobs hold it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly import queue
from duly.model import Unique
from duly.model.settlement import Edge
from duly.queue import Database, Session
from support.engine import Engine, new_job, settled_attempt
from support.sessions import autocommitting, holding, overlapping, until_waiting

HOUR = timedelta(hours=1)
ROUNDS = 200
EDGES: tuple[Edge, ...] = ("succeeded", "dead", "retry", "interrupted")
STEPS = ("enqueue", "enqueue", "enqueue", "enqueue", "replace", "replace", "claim", "settle", "cancel", "redrive")


def keyed(until: Any = "final", on_conflict: Any = "error", **settings: Any) -> Any:
    return new_job(unique=Unique("k", until, on_conflict), **settings)


@pytest.mark.parametrize("on_conflict", ["error", "keep", "replace"])
@pytest.mark.parametrize("committed", [True, False])
async def test_two_enqueues_at_once(database: Database, database_url: str, committed: bool, on_conflict: str) -> None:
    """The second waits until the first is committed, and yields or replaces, or rolled back, and gets the key."""
    engine = await Engine.start(database)
    first, second = keyed(), keyed(on_conflict=on_conflict)
    async with holding(database_url) as (holder, transaction), autocommitting(database_url) as rival:
        await queue.enqueue(holder, [(engine.owner, first)])
        task = asyncio.create_task(queue.enqueue(rival, [(engine.owner, second)]))
        await until_waiting(database, rival)
        await (transaction.commit() if committed else transaction.rollback())
        [answer] = await task
    result = {"error": "taken", "keep": "kept", "replace": "created"}[on_conflict] if committed else "created"
    assert (answer.result, answer.other) == (result, first.id if committed else None)
    assert (await engine.sound()).ready == 1


async def test_batches_in_opposite_order_do_not_lock_each_other_out(database: Database, database_url: str) -> None:
    """Keys are taken in their own order, whatever order the jobs stand in."""
    engine = await Engine.start(database)
    names = [str(n) for n in range(30)]
    batches = [[(engine.owner, new_job(unique=Unique(name))) for name in order] for order in (names, names[::-1])]
    async with autocommitting(database_url) as one, autocommitting(database_url) as other:
        for _ in range(10):
            answers = await asyncio.gather(queue.enqueue(one, batches[0]), queue.enqueue(other, batches[1]))
            results = Counter(answer.result for answer in answers[0] + answers[1])
            assert results in ({"created": 30, "taken": 30}, {"repeated": 30, "taken": 30})
    assert (await engine.sound()).ready == 30


async def test_replace_beside_a_claim(database: Database, database_url: str) -> None:
    """The replacing enqueue waits for the claim of the old job: it runs now, so the new one is refused."""
    engine = await Engine.start(database)
    await engine.put(keyed())
    async with holding(database_url) as (claimer, transaction), autocommitting(database_url) as rival:
        [running] = await engine.claim(db=claimer)
        task = asyncio.create_task(queue.enqueue(rival, [(engine.owner, keyed(on_conflict="replace"))]))
        await until_waiting(database, rival)
        await transaction.commit()
        [answer] = await task
    assert (answer.result, answer.other) == ("taken", running.id)
    assert (await engine.sound()).running == 1


async def test_an_enqueue_behind_a_redrive(database: Database, database_url: str) -> None:
    """Both want the key that a dead job let go: the redrive was first, the enqueue yields; and the other way round."""
    engine = await Engine.start(database)
    await engine.put(keyed())
    dead = await engine.claim_one()
    await engine.finish(dead, "dead")
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as rival:
        assert await queue.redrive(first, engine.owner, dead.id) == "redriven"
        task = asyncio.create_task(queue.enqueue(rival, [(engine.owner, keyed())]))
        await until_waiting(database, rival)
        await transaction.commit()
        assert [(a.result, a.other) for a in await task] == [("taken", dead.id)]
    await engine.finish(await engine.claim_one(), "dead")
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as rival:
        await queue.enqueue(first, [(engine.owner, keyed())])
        redrive = asyncio.create_task(queue.redrive(rival, engine.owner, dead.id))
        await until_waiting(database, rival)
        await transaction.commit()
        assert await redrive == "key_taken"
    await engine.sound()


class Rivals:
    """Random pairs of steps on one key, each step in a transaction of its own, overlapping by a held lock."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine = engine
        self.rng = rng
        self.ids: list[UUID] = []
        self.met: Counter[str] = Counter()

    async def begin(self) -> None:
        """Two times in three nobody holds the key when the round begins, and there is a dead job that did."""
        if self.rng.random() < 2 / 3:
            db = self.engine.db
            while lease := await db.fetchrow("select job_id, attempt from duly.lease limit 1"):
                await self.engine.settle(settled_attempt(lease["job_id"], lease["attempt"], "dead"))
            for job_id in self.ids[-4:]:
                await queue.cancel(db, self.engine.owner, job_id)

    def step(self) -> Callable[[Session], Awaitable[Any]]:
        name = self.rng.choice(STEPS)
        self.met[name] += 1
        return getattr(self, f"_{name}")  # type: ignore[no-any-return]

    async def _enqueue(self, session: Session, on_conflict: str | None = None) -> None:
        job = keyed(
            self.rng.choice(("start", "final", "final")),
            on_conflict or self.rng.choice(("error", "keep")),
            delay=self.rng.choice((None, None, HOUR)),
        )
        self.ids.append(job.id)
        [answer] = await queue.enqueue(session, [(self.engine.owner, job)])
        self.met[answer.result] += 1

    async def _replace(self, session: Session) -> None:
        await self._enqueue(session, "replace")

    async def _claim(self, session: Session) -> None:
        await self.engine.claim(1, db=session)

    async def _settle(self, session: Session) -> None:
        lease = await session.fetchrow("select job_id, attempt from duly.lease order by random() limit 1")
        if lease is not None:
            settlement = settled_attempt(lease["job_id"], lease["attempt"], self.rng.choice(EDGES), delay=HOUR)
            await self.engine.settle(settlement, db=session)

    async def _cancel(self, session: Session) -> None:
        if self.ids:
            await queue.cancel(session, self.engine.owner, self.rng.choice(self.ids[-4:]))

    async def _redrive(self, session: Session) -> None:
        if self.ids:
            self.met[await queue.redrive(session, self.engine.owner, self.rng.choice(self.ids[-4:]))] += 1


async def test_no_key_is_ever_held_twice(database: Database, database_url: str) -> None:
    """200 rounds of two overlapping transactions, committed or rolled back at random: one holder, or none."""
    engine = await Engine.start(database)
    rng = random.Random(3)
    rivals = Rivals(engine, rng)
    waited = 0
    async with autocommitting(database_url) as first, autocommitting(database_url) as second:
        for n in range(ROUNDS):
            await rivals.begin()
            one, other, commit = rivals.step(), rivals.step(), rng.random() < 0.7
            waited += await overlapping(database, first, one, second, other, commit=commit)
            assert await database.fetchval(_HELD) <= 1
            assert await database.fetchval(_LIVE) <= 1
            if n % 20 == 0:
                await engine.sound()
    await engine.sound()
    assert waited > ROUNDS / 10, "the rounds do not overlap"
    assert {"created", "taken", "kept", "redriven", "key_taken"} <= rivals.met.keys(), rivals.met


_HELD = "select count(*) from duly.unique_key k where duly.key_is_held(k.job_id, k.until, k.expires_at)"
_LIVE = """
    select count(*) from duly.job j where j.unique_for = 'until_final'
      and not exists (select from duly.outcome o where o.job_id = j.id)
"""
