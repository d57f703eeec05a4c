"""What keeps the queue turning: promote, and new days."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta

from duly import queue
from duly.model import Trigger
from duly.queue import Database
from duly.upkeep import Promoter
from support.engine import Engine
from support.sessions import autocommitting, holding, until_waiting

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LONG_UP = timedelta(days=30)


async def due_since(engine: Engine, ago: timedelta, n: int = 1) -> None:
    """Jobs that are scheduled although their time passed `ago` ago."""
    ids = await engine.enqueue(n, delay=HOUR)
    await engine.db.execute("update duly.scheduled set run_at = now() - $2::interval where job_id = any ($1)", ids, ago)


async def test_promote_takes_what_is_due_and_says_how_long_to_sleep(database: Database) -> None:
    """Due jobs become ready under their own trigger; the rest stays; the sleep ends when the next one is due."""
    engine = await Engine.start(database)
    await due_since(engine, SECOND, 2)
    await engine.enqueue(delay=10 * MINUTE)
    promoted = await queue.promote(database, 100, at_most=HOUR)
    assert promoted.count == 2
    assert 9 * MINUTE < promoted.sleep <= 10 * MINUTE
    jobs = await engine.claim()
    assert [(job.attempt, job.trigger) for job in jobs] == [(1, Trigger.SCHEDULE)] * 2
    await engine.sound()


async def test_promote_sleeps_no_longer_than_asked(database: Database) -> None:
    """Nothing to come, or only later than that: `at_most`. A full batch: not at all."""
    engine = await Engine.start(database)
    assert SECOND / 2 < (await queue.promote(database, 100, at_most=SECOND)).sleep <= SECOND
    await engine.enqueue(delay=2 * HOUR)
    assert SECOND / 2 < (await queue.promote(database, 100, at_most=SECOND)).sleep <= SECOND
    await due_since(engine, SECOND, 2)
    assert (await queue.promote(database, 2)).sleep == timedelta(0)


async def test_whoever_schedules_something_earlier_wakes_the_promoter_once(
    database: Database, database_url: str
) -> None:
    """Enqueue, retry and rescue notify when their job is due before the promoter looks again; not when it is due
    later.
    """
    engine = await Engine.start(database, lease=SECOND / 20)
    heard = 0

    def note(*_: object) -> None:
        nonlocal heard
        heard += 1

    async with autocommitting(database_url) as listener:
        await listener.connection.add_listener("duly.wake", note)

        async def rings(n: int) -> bool:
            nonlocal heard
            await listener.fetchval("select 1")  # notifications come before the answer
            counted, heard = heard, 0
            return counted == n

        await queue.promote(database, 10, at_most=10 * MINUTE)
        await engine.enqueue(delay=HOUR)
        assert await rings(0)
        await engine.enqueue(delay=5 * MINUTE)
        await engine.enqueue(delay=6 * MINUTE)
        assert await rings(1)
        await engine.finish(await engine.running(), "retry", delay=MINUTE)
        await engine.finish(await engine.running(), "snooze", delay=2 * MINUTE)
        assert await rings(1)
        await engine.running()
        await engine.expire_worker()
        assert len(await engine.rescue()) == 1
        assert await rings(1)


async def test_promote_looks_at_the_last_minute_and_a_sweep_at_all_the_past(database: Database) -> None:
    """The window bounds the cost; what was committed late is found by the sweep."""
    engine = await Engine.start(database)
    await due_since(engine, 2 * MINUTE)
    await due_since(engine, 59 * SECOND)
    assert (await queue.promote(database, 100)).count == 1
    assert (await queue.promote(database, 100, sweep=True)).count == 1
    assert (await engine.sound()).ready == 2


async def test_promote_takes_the_longest_due_first_and_no_more_than_its_limit(database: Database) -> None:
    """Three due, two taken: the two that waited longest."""
    engine = await Engine.start(database)
    for seconds in (1, 30, 20):
        await due_since(engine, seconds * SECOND)
    assert (await queue.promote(database, 2)).count == 2
    assert len(await engine.claim()) == 2
    left = await database.fetchval("select extract(epoch from now() - run_at) from duly.scheduled")
    assert left < 20


async def test_promoters_pass_by_what_another_one_holds(database: Database, database_url: str) -> None:
    """Two at once: each row once, no waiting."""
    engine = await Engine.start(database)
    await due_since(engine, SECOND, 10)
    async with holding(database_url) as (session, transaction):
        assert (await queue.promote(session, 4)).count == 4
        assert (await queue.promote(database, 100)).count == 6
        await transaction.commit()
    assert (await engine.sound()).ready == 10


async def test_a_promoter_sweeps_at_its_first_step_and_sleeps_at_most_a_second(database: Database) -> None:
    """A new process catches up at once; it goes on without a pause while there is a full batch."""
    engine = await Engine.start(database)
    await due_since(engine, HOUR, 1001)
    promoter = Promoter(database)
    assert await promoter.step() == timedelta(0)
    assert timedelta(0) < await promoter.step() <= SECOND
    assert promoter.promoted_total == 1001


async def test_days_are_made_ahead_and_only_once(database: Database) -> None:
    """Yesterday to n days ahead for all facts and tags, by UTC; repeatable; a job of any finds its place."""
    first = await queue.add_days(database, 10)
    assert first == 6 * 4
    assert await queue.add_days(database, 10) == 0
    today: date = (await queue.server_now(database)).date()
    for fact in ("job", "job_tag", "attempt", "outcome"):
        for day in range(-1, 11):
            name = f"duly.{fact}_{today + timedelta(days=day):%Y%m%d}"
            assert await database.fetchval("select to_regclass($1) is not null", name), name


async def test_days_can_be_made_by_several_at_once(database: Database, database_url: str) -> None:
    """Serialized by a lock: the second waits, then finds them made."""
    async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
        assert await queue.add_days(first, 6) == 2 * 4
        other = asyncio.create_task(queue.add_days(second, 6))
        await until_waiting(database, second)
        await transaction.commit()
        assert await other == 0
