"""A transaction that brings a row into a segment and commits after the segment closed: the row is never stranded."""

from __future__ import annotations

import pytest

from duly import queue
from duly.queue import Database, Line
from duly.upkeep import SegmentKeeper
from support.engine import Engine, settled
from support.sessions import holding


async def turn(database: Database, times: int, *keepers: SegmentKeeper) -> None:
    for _ in range(times):
        await queue.advance(database)
        for keeper in keepers:
            await keeper.step()


@pytest.mark.parametrize("crowded", [0, 8])
async def test_an_enqueue_that_commits_late_is_claimed(database: Database, database_url: str, crowded: int) -> None:
    """Enqueued in segment 1, committed ten segments later: segment 1 was kept for it; nothing else was."""
    engine = await Engine.start(database)
    keeper = SegmentKeeper(database, "ready", crowded=crowded)
    async with holding(database_url) as (session, transaction):
        job_id = await engine.enqueue_on(session)
        await turn(database, 10, keeper)
        assert 1 in (await queue.live_segments(database, "ready")).closed
        await transaction.commit()
    await engine.sound()
    assert [job.id for job in await engine.claim()] == [job_id]
    await turn(database, 2, keeper)
    assert (await queue.live_segments(database, "ready")).closed == ()


async def test_a_keeper_started_later_notes_afresh(database: Database, database_url: str) -> None:
    """A new upkeep process knows nothing of the old one's notes and strands nothing."""
    engine = await Engine.start(database)
    async with holding(database_url) as (session, transaction):
        job_id = await engine.enqueue_on(session)
        await turn(database, 3, SegmentKeeper(database, "ready"))
        await turn(database, 3, SegmentKeeper(database, "ready", crowded=0))
        await transaction.commit()
    await turn(database, 3, SegmentKeeper(database, "ready", crowded=0))
    await engine.sound()
    assert [job.id for job in await engine.claim()] == [job_id]


async def test_an_enqueue_that_is_rolled_back_late_holds_its_segment_no_longer(
    database: Database, database_url: str
) -> None:
    """Once the transaction has ended the segment goes."""
    engine = await Engine.start(database)
    keeper = SegmentKeeper(database, "ready")
    async with holding(database_url) as (session, transaction):
        await engine.enqueue_on(session)
        await turn(database, 3, keeper)
        await transaction.rollback()
    await keeper.step()
    assert (await queue.live_segments(database, "ready")).closed == ()


async def test_an_early_lock_does_not_hold_up_later_segments_for_ever(database: Database, database_url: str) -> None:
    """A transaction that writes now and again, in two segments: both rows are claimed after its commit."""
    engine = await Engine.start(database)
    keeper = SegmentKeeper(database, "ready", crowded=0)
    async with holding(database_url) as (session, transaction):
        ids = {await engine.enqueue_on(session)}
        await turn(database, 3, keeper)
        ids.add(await engine.enqueue_on(session))
        await turn(database, 3, keeper)
        await transaction.commit()
    await turn(database, 1, keeper)
    await engine.sound()
    assert {job.id for job in await engine.claim()} == ids


async def test_a_savepoint_that_is_rolled_back_keeps_the_lock(database: Database, database_url: str) -> None:
    """A first enqueue undone by a savepoint, a second one kept, segments turning between: the kept one is claimed."""
    engine = await Engine.start(database)
    keeper = SegmentKeeper(database, "ready", crowded=0)
    async with holding(database_url) as (session, transaction):
        await session.execute("savepoint s")
        await engine.enqueue_on(session)
        await session.execute("rollback to savepoint s")
        await turn(database, 2, keeper)
        kept = await engine.enqueue_on(session)
        await turn(database, 4, keeper)
        await transaction.commit()
    await turn(database, 1, keeper)
    await engine.sound()
    assert [job.id for job in await engine.claim()] == [kept]


@pytest.mark.parametrize("line", ["ready", "lease"])
async def test_a_claim_or_release_that_commits_late_is_found(database: Database, database_url: str, line: Line) -> None:
    """A claim writes lease, a release writes ready: rows of both lines committed late are seen by rescue and claim."""
    engine = await Engine.start(database)
    keepers = [SegmentKeeper(database, "ready", crowded=0), SegmentKeeper(database, "lease", crowded=0)]
    if line == "lease":
        await engine.enqueue()
    else:
        job = await engine.running()
    async with holding(database_url) as (session, transaction):
        if line == "lease":
            [job] = await engine.claim(db=session)
        else:
            await engine.settle(settled(job, "release"), db=session)
        await turn(database, 6, *keepers)
        await transaction.commit()
    await turn(database, 2, *keepers)
    await engine.sound()
    if line == "lease":
        await queue.deregister(database, engine.worker_id)
        assert [r.job_id for r in await engine.rescue()] == [job.id]
    else:
        assert [j.id for j in await engine.claim()] == [job.id]


async def test_a_move_that_commits_late_is_not_stranded(database: Database, database_url: str) -> None:
    """A keeper that stalls in the middle of a move while others turn on: its rows stay claimable."""
    engine = await Engine.start(database)
    ids = await engine.enqueue(3)
    await queue.advance(database)
    keeper = SegmentKeeper(database, "ready", crowded=0)
    async with holding(database_url) as (session, transaction):
        assert await queue.move(session, "ready", 1, 10) == 3
        await turn(database, 5, keeper)
        await transaction.commit()
    await turn(database, 2, keeper)
    await engine.sound()
    assert {job.id for job in await engine.claim()} == set(ids)


async def test_a_held_snapshot_of_everything_stops_no_turning(database: Database, database_url: str) -> None:
    """FO-044: REPEATABLE READ, ACCESS SHARE on every table, as pg_dump has: enqueue, claim, settle and retire go on."""
    engine = await Engine.start(database)
    keepers = [SegmentKeeper(database, "ready", crowded=0), SegmentKeeper(database, "lease", crowded=0)]
    async with holding(database_url, "repeatable_read") as (session, _):
        tables = await session.fetch(
            """select oid::regclass::text as name from pg_class
               where relkind in ('r', 'p') and relnamespace = 'duly'::regnamespace"""
        )
        await session.execute("lock table " + ", ".join(row["name"] for row in tables) + " in access share mode")
        for _ in range(10):
            await engine.finish(await engine.running())
            await turn(database, 1, *keepers)
        for line in ("ready", "lease"):
            assert (await queue.live_segments(database, line)).closed == ()
        assert await queue.add_days(database, 7) > 0
    assert (await engine.sound()).succeeded == 10
