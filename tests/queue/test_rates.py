"""Rates: how many attempts of a queue start over time, exact to a block, whoever claims and whoever dies."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from duly import queue
from duly.queue import ClaimCursor, Database, QueueSettings, Rate, Session
from support.engine import Engine, new_job, new_owner, new_worker, settled
from support.plans import buffers_of
from support.sessions import autocommitting, holding

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


async def limit(engine: Engine, rate: Rate | None, key_concurrency: int | None = None) -> None:
    settings = QueueSettings(rate=rate, key_concurrency=key_concurrency)
    await queue.set_queue(engine.db, engine.owner.project_id, "default", settings)


async def pass_time(engine: Engine, by: timedelta) -> None:
    """As if it were later: the time at which the tokens are all there again comes that much nearer."""
    await engine.db.execute("update duly.rate set full_at = full_at - $1::interval", by)


async def test_a_block_and_then_what_the_rate_gives(database: Database) -> None:
    """100 an hour: ten at once, then one every 36 seconds, never more than a block saved up."""
    engine = await Engine.start(database)
    await limit(engine, Rate(100, HOUR))
    await engine.enqueue(60)
    assert len(await engine.claim()) == 10
    assert await engine.claim() == []
    assert engine.cursor.wait is not None
    # the tokens of 50 ms, one at least, are waited for
    assert timedelta(seconds=34) < engine.cursor.wait <= timedelta(seconds=36)
    await pass_time(engine, timedelta(seconds=37))
    assert len(await engine.claim()) == 1
    await pass_time(engine, timedelta(seconds=3 * 36))
    assert len(await engine.claim()) == 3
    await pass_time(engine, 24 * HOUR)
    assert len(await engine.claim()) == 10
    assert await database.fetchval("select count(*) from duly.rate") == 1


async def test_a_slow_rate_starts_one_at_a_time(database: Database) -> None:
    """One an hour, three a day: one at once, the next after the whole time, however often somebody looks."""
    engine = await Engine.start(database)
    await limit(engine, Rate(1, HOUR))
    await engine.enqueue(5)
    assert len(await engine.claim()) == 1
    for _ in range(5):
        assert await engine.claim() == []
    await pass_time(engine, HOUR)
    assert len(await engine.claim()) == 1
    assert await engine.claim() == []


async def test_kinds_and_keys_share_the_tokens_of_their_queue(database: Database) -> None:
    """A rate beside limits: the smaller room counts, and what did not start costs no token."""
    engine = await Engine.start(database)
    await limit(engine, Rate(100, HOUR), key_concurrency=2)
    for kind in ("k", "l"):
        for key in ("a", "b"):
            await engine.enqueue(5, kind=kind, concurrency_key=key)
    first = await engine.claim(kinds=("k", "l"))
    assert len(first) == 4
    await engine.settle(*(settled(job, "succeeded") for job in first))
    await limit(engine, Rate(100, HOUR))
    assert len(await engine.claim(kinds=("k", "l"))) == 6
    assert await engine.claim(kinds=("k", "l")) == []
    other = await new_owner(database)
    await engine.enqueue(3, owner=other)
    assert len(await engine.claim()) == 3


async def test_a_claim_that_is_rolled_back_took_no_token(database: Database, database_url: str) -> None:
    """While it is open the queue is passed by; afterwards all is as before. A dead worker keeps nothing."""
    engine = await Engine.start(database)
    await limit(engine, Rate(20, HOUR))
    await engine.enqueue(10)
    async with holding(database_url) as (session, transaction):
        assert len(await engine.claim(db=session)) == 2
        assert await engine.claim() == []
        await transaction.rollback()
    assert len(await engine.claim()) == 2
    await engine.expire_worker()
    await pass_time(engine, HOUR)
    assert len(await engine.claim(worker=await new_worker(database))) == 2


async def test_a_retry_is_a_start(database: Database) -> None:
    """It spends a token as the first attempt did; a job given back has spent one, too."""
    engine = await Engine.start(database)
    await limit(engine, Rate(20, HOUR))
    [job_id] = await engine.enqueue()
    await engine.finish(await engine.claim_one(), "retry")
    await engine.due_now(job_id)
    await engine.finish(await engine.claim_one(), "release")
    assert await engine.claim() == []
    await pass_time(engine, timedelta(minutes=3))
    assert (await engine.claim_one()).id == job_id


async def test_a_new_rate_gives_no_tokens_away(database: Database) -> None:
    """Set again and again, a queue starts no more than its rate gives; a faster one ends the wait of a slower one;
    none at all opens it.
    """
    engine = await Engine.start(database)
    await engine.enqueue(60)
    for _ in range(3):
        await limit(engine, Rate(100, HOUR))
        await engine.claim()
    assert (await engine.sound()).running == 10
    await limit(engine, Rate(100, SECOND))
    wait = await database.fetchval("select duly.rate_wait(project_id, name, rate_limit, rate_seconds) from duly.queue")
    assert wait <= 0.1
    await limit(engine, None)
    assert len(await engine.claim()) == 50
    assert await database.fetchval("select count(*) from duly.rate") == 0
    await limit(engine, Rate(100, HOUR))
    assert await queue.unset_queue(database, engine.owner.project_id, "default")
    assert not await queue.unset_queue(database, engine.owner.project_id, "default")
    assert await queue.get_queue(database, engine.owner.project_id, "default") == QueueSettings()


async def test_rivals_together_start_no_more_than_the_rate_gives(database: Database, database_url: str) -> None:
    """Four workers claim as fast as they can for two seconds at 200 a second, while a snapshot is held: in no stretch
    of time were more started than the rate gives, and a block.
    """
    engine = await Engine.start(database)
    rate, block = 200, 20
    await limit(engine, Rate(rate, SECOND))
    await engine.put(*(new_job(concurrency_key=str(n % 3)) for n in range(1000)))
    end = time.monotonic() + 2

    async def work() -> None:
        worker, cursor = await new_worker(database), ClaimCursor()
        async with autocommitting(database_url) as session:
            while time.monotonic() < end:
                await engine.claim(7, worker=worker, cursor=cursor, db=session)
                await asyncio.sleep(0)

    async with holding(database_url, "repeatable_read") as (snapshot, _):
        await snapshot.fetchval("select count(*) from duly.ready")
        await asyncio.gather(*(work() for _ in range(4)))
    rows = await database.fetch("select claimed_at from duly.lease order by claimed_at")
    starts = [row["claimed_at"].timestamp() for row in rows]
    for began in range(0, len(starts), 10):
        for ended in range(began, len(starts), 10):
            assert ended - began <= (starts[ended] - starts[began]) * rate + block + 1
    took = starts[-1] - starts[0]
    assert len(starts) > took * rate * 0.5, "the rate was not used"
    await engine.sound()


async def test_a_held_snapshot_makes_no_token_dearer(database: Database, database_url: str) -> None:
    """Three thousand blocks later, none of whose rows vacuum may take, a look at the rate touches a few pages."""
    engine = await Engine.start(database)
    await limit(engine, Rate(1000, HOUR))
    await engine.enqueue()
    async with holding(database_url, "repeatable_read") as (snapshot, _):
        await snapshot.fetchval("select count(*) from duly.rate")
        await database.execute(
            """do $$ begin
                   for n in 1 .. 3000 loop
                       perform duly.spend((select id from duly.project limit 1), 'default', 1000000, 1, 1);
                   end loop;
               end $$"""
        )
        project = engine.owner.project_id

        async def look(db: Session) -> None:
            for _ in range(3):  # at first plans are made
                await db.fetchval("select duly.rate_wait($1, 'default', 1000, 3600.0)", project)

        cost = await buffers_of(database_url, look)
    assert cost[-1] < 20


@pytest.mark.parametrize("bad", ["0, 1", "1000001, 1", "1, 0", "1, null", "null, 1"])
async def test_a_rate_is_whole(database: Database, bad: str) -> None:
    """A limit and a time, both within bounds: the table says so, whoever writes to it."""
    engine = await Engine.start(database)
    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute(
            f"insert into duly.queue (project_id, name, rate_limit, rate_seconds) values ($1, 'q', {bad})",
            engine.owner.project_id,
        )
