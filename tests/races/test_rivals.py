"""Two sessions want the same row: who goes first is forced by a held lock, and both orders end well."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from duly import queue
from duly.model import Settlement, State
from duly.queue import ClaimCursor, Database
from duly.upkeep import SegmentKeeper
from support.engine import Engine, new_worker, settled
from support.sessions import autocommitting, holding, until_waiting

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=50)


@pytest.mark.parametrize("committed", [True, False])
async def test_cancel_behind_a_claim(database: Database, database_url: str, committed: bool) -> None:
    """The cancel waits for the claim: committed, it is a request to the one that runs; rolled back, the job is
    cancelled.
    """
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert len(await engine.claim(db=first)) == 1
        cancel = asyncio.create_task(queue.cancel(second, engine.owner, job_id))
        await until_waiting(database, second)
        await (transaction.commit() if committed else transaction.rollback())
        assert await cancel == ("requested" if committed else "cancelled")
    assert (await engine.view(job_id)).state == (State.RUNNING if committed else State.CANCELLED)
    await engine.sound()


async def test_claim_beside_a_cancel(database: Database, database_url: str) -> None:
    """The claim does not wait: it passes by the row that is being cancelled, and takes it if the cancel is rolled
    back.
    """
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    async with holding(database_url) as (first, transaction):
        assert await queue.cancel(first, engine.owner, job_id) == "cancelled"
        assert await engine.claim() == []
        await transaction.rollback()
    assert len(await engine.claim()) == 1


async def test_cancel_behind_a_promote(database: Database, database_url: str) -> None:
    """The row moves from scheduled to ready under the cancel's eyes: caught at the next look."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(delay=HOUR)
    await database.execute("update duly.scheduled set run_at = now()")
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert (await queue.promote(first, 10)).count == 1
        cancel = asyncio.create_task(queue.cancel(second, engine.owner, job_id))
        await until_waiting(database, second)
        await transaction.commit()
        assert await cancel == "cancelled"
    assert (await engine.sound()).cancelled == 1


@pytest.mark.parametrize("edge", ["succeeded", "retry", "release"])
async def test_cancel_behind_a_settle(database: Database, database_url: str, edge: str) -> None:
    """FO-024: the lease goes while the cancel waits for it: final stays final, what goes on is cancelled after all."""
    engine = await Engine.start(database)
    job = await engine.running()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        await engine.settle(settled(job, edge, delay=HOUR), db=first)  # type: ignore[arg-type]
        cancel = asyncio.create_task(queue.cancel(second, engine.owner, job.id))
        await until_waiting(database, second)
        await transaction.commit()
        assert await cancel == ("final" if edge == "succeeded" else "cancelled")
    await engine.sound()


async def test_settle_behind_a_cancel(database: Database, database_url: str) -> None:
    """The settle waits for the request and obeys it: a failure goes no further."""
    engine = await Engine.start(database)
    job = await engine.running()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await queue.cancel(first, engine.owner, job.id) == "requested"
        settle = asyncio.create_task(engine.settle(settled(job, "retry", delay=HOUR), db=second))
        await until_waiting(database, second)
        await transaction.commit()
        assert await settle == frozenset()
    assert (await engine.view(job.id)).state == State.CANCELLED


async def test_two_cancels(database: Database, database_url: str) -> None:
    """Both say cancelled; one outcome."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await queue.cancel(first, engine.owner, job_id) == "cancelled"
        other = asyncio.create_task(queue.cancel(second, engine.owner, job_id))
        await until_waiting(database, second)
        await transaction.commit()
        assert await other == "cancelled"
    assert (await engine.sound()).cancelled == 1


async def test_two_redrives(database: Database, database_url: str) -> None:
    """One redrives, the other finds it done: never two rows."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, "dead")
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await queue.redrive(first, engine.owner, job.id) == "redriven"
        other = asyncio.create_task(queue.redrive(second, engine.owner, job.id))
        await until_waiting(database, second)
        await transaction.commit()
        assert await other == "wrong_state"
    assert (await engine.sound()).ready == 1


async def test_settle_behind_a_move(database: Database, database_url: str) -> None:
    """The lease is carried to another segment while the settle waits: it is found by its key and settled, not
    refused.
    """
    engine = await Engine.start(database)
    job = await engine.running()
    await queue.advance(database)
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await queue.move(first, "lease", 1, 10) == 1
        settle = asyncio.create_task(engine.settle(settled(job, "succeeded"), db=second))
        await until_waiting(database, second)
        await transaction.commit()
        assert await settle == frozenset()
    assert (await engine.view(job.id)).state == State.SUCCEEDED
    await engine.sound()


async def test_move_beside_a_settle(database: Database, database_url: str) -> None:
    """The move passes by the lease that is being settled."""
    engine = await Engine.start(database)
    job = await engine.running()
    await queue.advance(database)
    async with holding(database_url) as (first, transaction):
        await engine.settle(settled(job, "succeeded"), db=first)
        assert await queue.move(database, "lease", 1, 10) == 0
        await transaction.commit()
    await engine.sound()


async def test_claim_beside_a_move(database: Database, database_url: str) -> None:
    """Rows that are being carried over are passed by, and claimed in their new segment afterwards, once."""
    engine = await Engine.start(database)
    ids = await engine.enqueue(4)
    await queue.advance(database)
    async with holding(database_url) as (first, transaction):
        assert await queue.move(first, "ready", 1, 2) == 2
        taken = await engine.claim()
        assert len(taken) == 2
        await transaction.commit()
    taken += await engine.claim()
    assert sorted(job.id for job in taken) == sorted(ids)
    await engine.sound()


async def test_a_claim_with_a_list_from_before_the_move_finds_what_was_moved(
    database: Database, database_url: str
) -> None:
    """Old list, everything moved and retired since: the rows stand in a newer segment, which the claim adds by
    itself.
    """
    engine = await Engine.start(database)
    ids = await engine.enqueue(3)
    old = await queue.live_segments(database, "ready")
    await queue.advance(database)
    await SegmentKeeper(database, "ready", crowded=0).step()
    assert {job.id for job in await engine.claim(segments=old)} == set(ids)


async def test_two_rescuers(database: Database, database_url: str) -> None:
    """FO-002: Each lost lease is rescued once, without waiting: one attempt row, one place."""
    engine = await Engine.start(database, lease=SOON)
    await queue.heartbeat(database, engine.worker_id)
    await database.execute("update duly.worker set lease_expires_at = now() + interval '1 minute'")
    await engine.enqueue(6)
    jobs = await engine.claim()
    await engine.expire_worker()
    async with holding(database_url) as (first, transaction):
        mine = await engine.rescue(4, db=first)
        yours = await engine.rescue(100)
        await transaction.commit()
    assert (len(mine), len(yours)) == (4, 2)
    assert {r.job_id for r in (*mine, *yours)} == {job.id for job in jobs}
    assert (await engine.sound()).scheduled == 6


async def test_rescue_beside_a_settle(database: Database, database_url: str) -> None:
    """FO-002: The last-moment settle of an expired worker: the rescue passes by its lease; what was done counts."""
    engine = await Engine.start(database, lease=SOON)
    job = await engine.running()
    await engine.expire_worker()
    async with holding(database_url) as (first, transaction):
        assert await engine.settle(settled(job, "succeeded"), db=first) == frozenset()
        assert await engine.rescue() == []
        await transaction.commit()
    assert await engine.rescue() == []
    assert (await engine.view(job.id)).state == State.SUCCEEDED


async def test_settle_behind_a_rescue(database: Database, database_url: str) -> None:
    """FO-002: The settle waits, finds the lease gone and is refused: the rescue's attempt row is the only one."""
    engine = await Engine.start(database, lease=SOON)
    job = await engine.running()
    await engine.expire_worker()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert len(await engine.rescue(db=first)) == 1
        settle = asyncio.create_task(engine.settle(settled(job, "succeeded"), db=second))
        await until_waiting(database, second)
        await transaction.commit()
        assert await settle == {job.id}
    assert await engine.attempts(job.id) == [(1, "schedule", "worker_lost")]
    await engine.sound()


async def test_two_settles_of_one_attempt(database: Database, database_url: str) -> None:
    """A settle sent again after a lost reply while the first still commits: refused, one row."""
    engine = await Engine.start(database)
    job = await engine.running()
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await engine.settle(settled(job, "succeeded"), db=first) == frozenset()
        again = asyncio.create_task(engine.settle(settled(job, "dead"), db=second))
        await until_waiting(database, second)
        await transaction.commit()
        assert await again == {job.id}
    assert (await engine.view(job.id)).state == State.SUCCEEDED


async def test_settle_batches_in_opposite_order_do_not_deadlock(database: Database, database_url: str) -> None:
    """Several rows are locked in id order, whatever order they are given in: the second waits, then is refused."""
    engine = await Engine.start(database)
    await engine.enqueue(50)
    jobs = sorted(await engine.claim(), key=lambda job: job.id)
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        await engine.settle(settled(jobs[0], "succeeded"), db=first)
        other = asyncio.create_task(engine.settle(*(settled(job, "succeeded") for job in reversed(jobs)), db=second))
        await until_waiting(database, second)
        await engine.settle(*(settled(job, "succeeded") for job in jobs[1:]), db=first)
        await transaction.commit()
        assert await other == {job.id for job in jobs}
    assert (await engine.sound()).succeeded == 50


async def test_many_claims_at_once_never_take_a_job_twice(database: Database) -> None:
    """Eight workers at once, several segments, a keeper moving rows: each (job, attempt) is handed out once."""
    engine = await Engine.start(database)
    ids = set()
    for n in range(20):
        ids |= set(await engine.enqueue(50, concurrency_key=str(n % 3)))
        await queue.advance(database)
    keeper = SegmentKeeper(database, "ready", crowded=0)
    taken: list[tuple[object, int]] = []

    async def work(worker: int) -> None:
        cursor = ClaimCursor()
        while jobs := await engine.claim(37, worker=worker, cursor=cursor):
            taken.extend((job.id, job.attempt) for job in jobs)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(work(await new_worker(database)))
        for _ in range(3):
            await keeper.step()
    await work(engine.worker_id)
    assert len(taken) == len(set(taken)) == len(ids)
    await engine.sound()


async def test_a_deregistered_workers_claim_in_flight_is_not_stranded(database: Database, database_url: str) -> None:
    """A claim that commits after its worker's row went: an orphan, rescued at once."""
    engine = await Engine.start(database)
    await engine.enqueue()
    async with holding(database_url) as (first, transaction):
        [job] = await engine.claim(db=first)
        await queue.deregister(database, engine.worker_id)
        await transaction.commit()
    assert [r.job_id for r in await engine.rescue()] == [job.id]
    assert await engine.settle(Settlement(job.id, 1, "succeeded")) == {job.id}
    await engine.sound()
