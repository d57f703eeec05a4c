"""How many jobs run at once: of an account, a queue, a key; and pauses. Counted from the leases, nothing else."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model import State
from duly.queue import Database, QueueSettings
from support.engine import Engine, new_job, new_owner, new_worker, settled
from support.sessions import holding

MOMENT = timedelta(milliseconds=10)  # so short a lease that the grace after a server start is over


async def limit(engine: Engine, name: str = "default", **settings: Any) -> None:
    await queue.set_queue(engine.db, engine.owner.project_id, name, QueueSettings(**settings))


async def test_a_queue_runs_as_many_as_it_may(database: Database) -> None:
    """Over several claims, workers, kinds and keys; every end of a job makes room for one."""
    engine = await Engine.start(database)
    await limit(engine, concurrency=5)
    for kind in ("k", "l"):
        for key in (None, "a", "b"):
            await engine.enqueue(4, kind=kind, concurrency_key=key)
    other = await new_worker(database)
    running = await engine.claim(3, kinds=("k", "l")) + await engine.claim(100, worker=other, kinds=("k", "l"))
    assert len(running) == 5
    assert await engine.claim(kinds=("k", "l")) == []
    for edge in ("succeeded", "retry", "snooze", "interrupted", "release", "dead"):
        worker = engine.worker_id if running[0] in running[:3] else other
        job = running.pop(0)
        refused = await engine.settle(settled(job, edge), worker=worker)
        if refused:
            await engine.settle(settled(job, edge), worker=other)
        claimed = await engine.claim(kinds=("k", "l"))
        assert len(claimed) == 1
        running += claimed
    assert (await engine.sound()).running == 5


async def test_a_key_runs_as_many_as_it_may(database: Database) -> None:
    """Each key by itself, over kinds; what has no key is free; the queue's own limit counts too."""
    engine = await Engine.start(database)
    await limit(engine, key_concurrency=2)
    for kind in ("k", "l"):
        for key in ("a", "b", None):
            await engine.enqueue(3, kind=kind, concurrency_key=key)
    jobs = await engine.claim(kinds=("k", "l"))
    rows = await database.fetch("select j.concurrency_key from duly.lease l join duly.job j on j.id = l.job_id")
    keys = Counter(key for [key] in rows)
    assert keys == {"a": 2, "b": 2, None: 6}
    assert await engine.claim(kinds=("k", "l")) == []
    await engine.settle(*(settled(job, "release") for job in jobs))
    await limit(engine, concurrency=3, key_concurrency=1)
    assert len(await engine.claim(kinds=("k", "l"))) == 3
    await engine.sound()


async def test_an_account_runs_as_many_as_it_may(database: Database) -> None:
    """Over its projects and queues; another account is free."""
    engine = await Engine.start(database)
    second = await new_owner(database, engine.owner.account_id)
    stranger = await new_owner(database)
    await queue.set_account_concurrency(database, engine.owner.account_id, 4)
    await engine.enqueue(5)
    await engine.enqueue(5, queue="other")
    await engine.enqueue(5, owner=second)
    await engine.enqueue(5, owner=stranger)
    counts = Counter(job.account_id for job in await engine.claim())
    assert counts == {engine.owner.account_id: 4, stranger.account_id: 5}
    await queue.set_account_concurrency(database, engine.owner.account_id, None)
    assert len(await engine.claim()) == 11


async def test_a_paused_queue_hands_out_nothing(database: Database) -> None:
    """Its jobs wait, others go on; resumed, they run. What runs at the pause ends as usual."""
    engine = await Engine.start(database)
    running = await engine.running(queue="q")
    await limit(engine, "q", paused=True)
    await engine.enqueue(3, queue="q", concurrency_key="a")
    [other] = await engine.enqueue(queue="r")
    assert [job.id for job in await engine.claim()] == [other]
    await engine.finish(running)
    assert await queue.get_queue(database, engine.owner.project_id, "q") == QueueSettings(paused=True)
    assert await queue.get_queue(database, engine.owner.project_id, "r") == QueueSettings()
    await limit(engine, "q")
    assert len(await engine.claim()) == 3


async def test_a_limit_that_falls_stops_nothing(database: Database) -> None:
    """Three run, one may: nothing is claimed until all three have ended; raised, there is room at once."""
    engine = await Engine.start(database)
    await engine.enqueue(6)
    running = await engine.claim(3)
    await limit(engine, concurrency=1)
    for job in running:
        assert await engine.claim() == []
        await engine.finish(job)
    assert len(await engine.claim()) == 1
    await limit(engine, concurrency=3)
    assert len(await engine.claim()) == 2


async def test_full_and_paused_lanes_hide_nothing(database: Database) -> None:
    """Two hundred keys of a full queue and of a paused one, a hundred full keys: the one job behind them is claimed."""
    engine = await Engine.start(database)
    await limit(engine, "paused", paused=True)
    await limit(engine, "full", concurrency=1)
    await limit(engine, "keys", key_concurrency=1)
    for name in ("paused", "full"):
        await engine.put(*(new_job(queue=name, concurrency_key=str(n)) for n in range(200)))
    for _ in range(2):
        await engine.put(*(new_job(queue="keys", concurrency_key=str(n)) for n in range(100)))
    while await engine.claim():
        pass
    assert (await engine.sound()).running == 101
    [last] = await engine.enqueue(queue="z")
    assert [job.id for job in await engine.claim(10)] == [last]
    for n in range(3):  # the round begins anywhere
        [last] = await engine.enqueue(queue="a", concurrency_key=str(n))
        assert [job.id for job in await engine.claim(10)] == [last]


async def test_a_key_goes_one_by_one_in_the_order_of_the_line(database: Database) -> None:
    """FO-058: key limit 1: by priority, then time; a retry lets the next one go first."""
    engine = await Engine.start(database)
    await limit(engine, key_concurrency=1)
    [late] = await engine.enqueue(concurrency_key="a", priority=9)
    [second] = await engine.enqueue(concurrency_key="a")
    [third] = await engine.enqueue(concurrency_key="a")
    [first] = await engine.enqueue(concurrency_key="a", priority=0)
    for expected in (first, second, third, late):
        [job] = await engine.claim()
        assert job.id == expected
        assert await engine.claim() == []
        await engine.finish(job, "retry" if expected == second else "succeeded")
    assert (await engine.sound()).scheduled == 1


async def test_a_lost_lease_gives_the_slot_back(database: Database) -> None:
    """FO-013: the holder dies, its lease ends: the slot is free; twenty times over, slots are what leases are."""
    engine = await Engine.start(database, MOMENT)
    await limit(engine, concurrency=1)
    for _ in range(20):
        await engine.running(max_attempts=1)
        assert await engine.claim() == []
        await engine.expire_worker()
        assert [lost.way for lost in await engine.rescue()] == ["dead"]
        await database.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
    assert (await engine.sound()).dead == 20


async def test_a_dead_job_does_not_lock_its_key(database: Database) -> None:
    """FO-014: job 1 kills its worker on its only attempt; jobs 2 and 3 of the same key run, one after the other."""
    engine = await Engine.start(database, MOMENT)
    await limit(engine, key_concurrency=1)
    first = await engine.running(concurrency_key="serial", max_attempts=1)
    rest = await engine.enqueue(2, concurrency_key="serial")
    await engine.expire_worker()
    await engine.rescue()
    assert (await engine.view(first.id)).state is State.DEAD
    await database.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
    for left in (2, 1):
        [job] = await engine.claim()
        assert job.id in rest
        await engine.finish(job)
        assert (await engine.sound()).ready == left - 1


async def test_two_claims_never_count_the_same_room(database: Database, database_url: str) -> None:
    """FO-011: limit 1, two jobs, two overlapping transactions: the second gets nothing, before and after the commit."""
    engine = await Engine.start(database)
    await limit(engine, concurrency=1)
    await engine.enqueue(2)
    async with holding(database_url) as (first, transaction):
        assert len(await engine.claim(db=first)) == 1
        assert await engine.claim() == []
        await transaction.commit()
    assert await engine.claim() == []
    assert (await engine.sound()).running == 1


async def test_leases_that_are_carried_over_still_count(database: Database) -> None:
    """The segment of a running job changes; the slot stays taken."""
    engine = await Engine.start(database)
    await limit(engine, concurrency=2)
    await engine.enqueue(5)
    assert len(await engine.claim()) == 2
    for _ in range(3):
        closed = await queue.advance(database) - 1
        await queue.move(database, "lease", closed, 10)
        assert await queue.retire(database, "lease", closed, [])
        assert await engine.claim() == []
    await engine.sound()


async def test_a_limit_of_none_is_refused(database: Database) -> None:
    """To stop a queue there is the pause."""
    engine = await Engine.start(database)
    for settings in (QueueSettings(concurrency=0), QueueSettings(key_concurrency=-1)):
        with pytest.raises(asyncpg.CheckViolationError):
            await queue.set_queue(database, engine.owner.project_id, "q", settings)


async def test_a_locked_queue_hides_no_other(database: Database, database_url: str) -> None:
    """Its settings are being changed, in a transaction that stays open: its 200 lanes are passed by."""
    engine = await Engine.start(database)
    await limit(engine, "limited", concurrency=10)
    await engine.put(*(new_job(queue="limited", concurrency_key=str(n), priority=0) for n in range(200)))
    others = await engine.enqueue(5, queue="other")
    async with holding(database_url) as (session, transaction):
        await queue.set_queue(session, engine.owner.project_id, "limited", QueueSettings(concurrency=20))
        assert {job.id for job in await engine.claim(10)} == set(others)
        await transaction.commit()
    assert len(await engine.claim()) == 20
