"""Segments: advance, move, retire, and the floor; a row is never where no claim looks."""

from __future__ import annotations

import pytest

from duly import queue
from duly.queue import Database, Line, LiveSegments
from duly.upkeep import SegmentKeeper
from support.engine import Engine
from support.sessions import holding


async def segment_of(db: Database, line: Line) -> list[int]:
    return [row["segment"] for row in await db.fetch(f"select distinct segment from duly.{line} order by 1")]


async def test_a_fresh_schema_has_one_open_segment(database: Database) -> None:
    """Nothing closed; everything from the current number on is live."""
    for line in ("ready", "lease"):
        assert await queue.live_segments(database, line) == LiveSegments((), 1)


async def test_advance_closes_the_current_segment(database: Database) -> None:
    """New rows stand in the new one, old ones where they were; claims look at both."""
    engine = await Engine.start(database)
    await engine.enqueue()
    assert await queue.advance(database) == 2
    await engine.enqueue()
    assert await queue.live_segments(database, "ready") == LiveSegments((1,), 2)
    assert await segment_of(database, "ready") == [1, 2]
    assert len(await engine.claim()) == 2


@pytest.mark.parametrize("line", ["ready", "lease"])
async def test_move_carries_rows_over_with_their_order(database: Database, line: Line) -> None:
    """Only the segment changes; at most the limit at a time; the order of the line stays."""
    engine = await Engine.start(database)
    for priority in (3, 1, 2):
        await engine.enqueue(2, priority=priority)
    if line == "lease":
        await engine.claim()
    columns = "job_id, run_at, lane_id, account_id, priority, attempt, final_attempt, trigger"
    before = await database.fetch(f"select {columns} from duly.{line} order by 1")
    now = await queue.advance(database)
    assert [await queue.move(database, line, 1, 4) for _ in range(3)] == [4, 2, 0]
    assert await segment_of(database, line) == [now]
    assert await database.fetch(f"select {columns} from duly.{line} order by 1") == before
    if line == "ready":
        assert [job.priority for _ in range(3) for job in await engine.claim(2)] == [1, 1, 2, 2, 3, 3]
    await engine.sound()


async def test_move_passes_by_what_somebody_holds(database: Database, database_url: str) -> None:
    """Rows under a claim that is not committed stay; the move does not wait."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    await queue.advance(database)
    async with holding(database_url) as (session, transaction):
        await engine.claim(2, db=session)
        assert await queue.move(database, "ready", 1, 100) == 1
        await transaction.rollback()
    assert await segment_of(database, "ready") == [1, 2]
    assert len(await engine.claim()) == 3


@pytest.mark.parametrize("line", ["ready", "lease"])
async def test_segment_rows_counts_no_further_than_asked(database: Database, line: Line) -> None:
    """Bounded by at_most; zero for a segment without rows."""
    engine = await Engine.start(database)
    await engine.enqueue(5)
    if line == "lease":
        await engine.claim()
    assert [await queue.segment_rows(database, line, 1, at_most) for at_most in (3, 5, 9)] == [3, 5, 5]
    assert await queue.segment_rows(database, line, 7, 9) == 0


async def test_the_current_segment_is_never_retired(database: Database) -> None:
    """Nor one to come."""
    assert not await queue.retire(database, "ready", 1, [])
    assert not await queue.retire(database, "ready", 99, [])


@pytest.mark.parametrize("line", ["ready", "lease"])
async def test_a_segment_with_a_row_is_not_retired(database: Database, line: Line) -> None:
    """Until the last row has left it."""
    engine = await Engine.start(database)
    await engine.enqueue()
    if line == "lease":
        await engine.claim()
    await queue.advance(database)
    assert not await queue.retire(database, line, 1, [])
    await queue.move(database, line, 1, 10)
    assert await queue.retire(database, line, 1, [])
    assert await queue.retire(database, line, 1, [])


async def test_a_segment_is_not_retired_while_a_noted_transaction_lives(database: Database, database_url: str) -> None:
    """It may still bring a row into it; after its commit the row is seen, after a rollback the segment goes."""
    engine = await Engine.start(database)
    for committed in (True, False):
        async with holding(database_url) as (session, transaction):
            closing = (await queue.live_segments(database, "ready")).upwards_from
            await engine.enqueue_on(session)
            await queue.advance(database)
            holders = sorted(await queue.segment_holders(database, "ready"))
            assert len(holders) == 1
            assert not await queue.retire(database, "ready", closing, holders)
            await (transaction.commit() if committed else transaction.rollback())
        assert await queue.retire(database, "ready", closing, holders) is not committed
    assert len(await engine.claim()) == 1


async def test_a_transaction_that_only_reads_holds_nothing_up(database: Database, database_url: str) -> None:
    """pg_dump's snapshot and ACCESS SHARE are no reason to wait."""
    async with holding(database_url, "repeatable_read") as (session, _):
        await session.fetchval("select count(*) from duly.ready")
        await session.execute("lock table duly.ready, duly.lease, duly.job, duly.scheduled in access share mode")
        await queue.advance(database)
        assert await queue.segment_holders(database, "ready") == frozenset()
        assert await queue.retire(database, "ready", 1, [])


async def test_the_floor_rises_over_what_is_retired_and_no_further(database: Database) -> None:
    """Numbers below the floor need not be listed any more; a live one stops it; it never falls."""
    engine = await Engine.start(database)
    await queue.advance(database)
    await engine.enqueue()
    for _ in range(3):
        await queue.advance(database)
    for segment in (1, 3, 4):
        assert await queue.retire(database, "ready", segment, [])
    await queue.raise_floor(database, "ready")
    assert await queue.live_segments(database, "ready") == LiveSegments((2,), 5)
    assert await database.fetchval("select last_value from duly.ready_floor") == 2
    assert [r["segment"] for r in await database.fetch("select segment from duly.retired order by 1")] == [3, 4]
    await engine.claim()
    assert await queue.retire(database, "ready", 2, [])
    await queue.raise_floor(database, "ready")
    await queue.raise_floor(database, "ready")
    assert await database.fetchval("select last_value from duly.ready_floor") == 5
    assert await database.fetchval("select count(*) from duly.retired") == 0
    assert await queue.live_segments(database, "lease") == LiveSegments((1, 2, 3, 4), 5)


async def test_a_keeper_retires_what_is_empty_and_leaves_a_backlog_alone(database: Database) -> None:
    """One round: empty segments go, a segment with rows stays while there are few of them."""
    engine = await Engine.start(database)
    await queue.advance(database)
    await engine.enqueue(3)
    await queue.advance(database)
    keeper = SegmentKeeper(database, "ready")
    await keeper.step()
    assert await queue.live_segments(database, "ready") == LiveSegments((2,), 3)
    assert (keeper.retired_total, keeper.moved_total, keeper.closed) == (1, 0, 1)


async def test_a_keeper_carries_survivors_over_when_there_are_many_segments(database: Database) -> None:
    """More closed ones than `crowded`: the oldest, with few rows, are emptied into the current one and retired."""
    engine = await Engine.start(database)
    for _ in range(5):
        await engine.enqueue(2)
        await queue.advance(database)
    keeper = SegmentKeeper(database, "ready", crowded=2)
    await keeper.step()
    live = await queue.live_segments(database, "ready")
    assert live == LiveSegments((4, 5), 6)
    assert (keeper.retired_total, keeper.moved_total) == (3, 6)
    assert len(await engine.claim()) == 10


async def test_a_keeper_does_not_move_a_full_segment(database: Database) -> None:
    """move_below: a segment with that many rows or more is not worth carrying."""
    engine = await Engine.start(database)
    await engine.enqueue(10)
    await queue.advance(database)
    keeper = SegmentKeeper(database, "ready", crowded=0, move_below=10)
    await keeper.step()
    assert (keeper.moved_total, await segment_of(database, "ready")) == (0, [1])


async def test_two_keepers_of_a_line_do_no_harm(database: Database) -> None:
    """Each step of either is safe beside the other's."""
    engine = await Engine.start(database)
    keepers = [SegmentKeeper(database, "ready", crowded=0) for _ in range(2)]
    for _ in range(5):
        await engine.enqueue(3)
        await queue.advance(database)
        for keeper in keepers:
            await keeper.step()
        await engine.sound()
    assert len(await engine.claim()) == 15


@pytest.mark.parametrize("line", ["ready", "lease"])
async def test_the_floor_passes_a_segment_that_stays(database: Database, line: Line) -> None:
    """A live segment far behind is kept: still live, its rows still found; the floor and the list go on without it."""
    engine = await Engine.start(database)
    await engine.enqueue(3, priority=9)
    if line == "lease":
        await engine.claim()
    keeper = SegmentKeeper(database, line, crowded=1000)
    for _ in range(100):
        await queue.advance(database)
    for _ in range(3):  # retire the empty ones; note the one to keep; pass it
        await keeper.step()
    floor = await database.fetchval(f"select last_value from duly.{line}_floor")
    assert floor > 60
    assert await database.fetchval("select count(*) from duly.retired where line = $1", line) < 40
    assert (await queue.live_segments(database, line)).closed == (1,)
    await engine.sound()
    if line == "ready":
        assert len(await engine.claim()) == 3


async def test_a_kept_segment_is_retired_once_it_is_empty(database: Database) -> None:
    """Then it is on no list any more."""
    engine = await Engine.start(database)
    await engine.enqueue()
    keeper = SegmentKeeper(database, "ready", crowded=1000)
    for _ in range(50):
        await queue.advance(database)
    for _ in range(3):
        await keeper.step()
    assert len(await engine.claim()) == 1
    await keeper.step()
    assert (await queue.live_segments(database, "ready")).closed == ()
    assert await database.fetchval("select count(*) from duly.kept where line = 'ready'") == 0
    await engine.sound()


async def test_segments_turn_by_rows_and_stay_small_beside_one_that_stays(database: Database) -> None:
    """A row that nobody takes does not make all other segments grow: 5,000 rows claimed still open the next."""
    engine = await Engine.start(database)
    await engine.enqueue(priority=9)
    keeper = SegmentKeeper(database, "ready", crowded=1000)
    for _ in range(200):
        await queue.advance(database)
    for _ in range(3):
        await keeper.step()
    before = await database.fetchval("select last_value from duly.segment_current")
    await database.execute("select duly.advance_after(5000, 5000, 4)")  # one live segment beside the current: certain
    assert await database.fetchval("select last_value from duly.segment_current") == before + 1
