"""How much there is of everything: exact where that is cheap, an estimate that says so where it is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.queue import Database, QueueSettings
from support.engine import Engine, new_job, new_owner, settled
from support.plans import PlanLog
from support.sessions import holding

HOUR = timedelta(hours=1)


async def test_states_are_counted(database: Database) -> None:
    """Each where it is, exactly; what is over is an estimate."""
    engine = await Engine.start(database)
    await engine.enqueue(3, delay=HOUR)
    await engine.enqueue(7)
    jobs = await engine.claim(4)
    await engine.finish(jobs[0], "dead")
    await engine.finish(jobs[1])
    seen = await queue.figures(database)
    assert (seen.scheduled, seen.ready, seen.running, seen.dead) == (3, 3, 2, 1)
    assert seen.estimated == {"finished"}
    assert (seen.workers, seen.slots, seen.breakers) == (1, 100, 0)
    assert 0 <= seen.silent_seconds < 60
    assert seen.notification_queue_usage == 0.0
    assert (seen.ready_segments, seen.lease_segments) >= (1, 1)


async def test_beyond_the_bound_it_is_an_estimate(database: Database) -> None:
    """Counted as far as it goes; the server's statistics say the rest, once it has written them."""
    engine = await Engine.start(database)
    await engine.enqueue(30)
    await engine.enqueue(30, delay=HOUR)
    jobs = await engine.claim(10)
    await engine.settle(*(settled(job, "dead") for job in jobs[:8]))
    seen = await queue.figures(database, at_most=1)
    assert seen.estimated == {"finished", "ready", "scheduled", "running", "dead"}
    assert 2 <= seen.ready <= 30
    assert 2 <= seen.scheduled <= 30
    assert 2 <= seen.running <= 10
    assert 2 <= seen.dead <= 8
    await database.execute("analyze")
    seen = await queue.figures(database, at_most=1)
    assert (seen.ready, seen.scheduled, seen.running) == (20, 30, 2)
    assert (seen.dead, seen.finished) == (8, 8)


async def due_since(engine: Engine, seconds: int, **settings: Any) -> None:
    [job_id] = await engine.enqueue(**settings)
    await engine.db.execute(
        "update duly.ready set run_at = now() - make_interval(secs => $2) where job_id = $1", job_id, seconds
    )


@pytest.mark.parametrize("at_most", [10_000, 2], ids=["counted", "by the heads"])
async def test_the_oldest_due_job_is_found_in_any_lane(database: Database, at_most: int) -> None:
    """Among several owners, lanes and segments, also where not every row is looked at."""
    engine = await Engine.start(database)
    assert (await queue.figures(database)).oldest_due_seconds is None
    for n in range(4):
        await engine.enqueue(3, queue=f"q{n}")
        await queue.advance(database)
    other = await new_owner(database)
    await due_since(engine, 500, queue="late", owner=other)
    await queue.advance(database)
    await engine.enqueue(3, queue="q1")
    age = (await queue.figures(database, at_most=at_most)).oldest_due_seconds
    assert age is not None
    assert 500 <= age < 600


@pytest.mark.parametrize("at_most", [10_000, 1], ids=["counted", "by the heads"])
async def test_a_paused_queue_is_not_late(database: Database, at_most: int) -> None:
    """What waits because its owner said so is not overdue."""
    engine = await Engine.start(database)
    await due_since(engine, 500, queue="paused")
    await due_since(engine, 100, queue="open")
    await queue.set_queue(database, engine.owner.project_id, "paused", QueueSettings(None, None, True))
    age = (await queue.figures(database, at_most=at_most)).oldest_due_seconds
    assert age is not None
    assert 100 <= age < 200


async def test_the_look_at_heads_is_bounded(database: Database) -> None:
    """No more lines than told are looked at, the oldest segments first."""
    engine = await Engine.start(database)
    for n in range(5):
        await due_since(engine, 100 - n, queue=f"q{n}")
    age = (await queue.figures(database, at_most=0, heads=3)).oldest_due_seconds
    assert age is not None
    assert 100 <= age < 200


async def test_a_promoter_that_does_not_look_is_seen(database: Database) -> None:
    """What is due and not promoted counts as due, and how late the promoter is stands beside it."""
    engine = await Engine.start(database)
    await engine.enqueue(delay=HOUR)
    await database.execute("update duly.scheduled set run_at = clock_timestamp() - interval '3 seconds'")
    await database.execute("select setval('duly.promote_at', (extract(epoch from now()) * 1000)::bigint - 60000)")
    seen = await queue.figures(database)
    assert seen.scheduled == 1
    assert seen.oldest_due_seconds is not None
    assert 3 <= seen.oldest_due_seconds < 10
    assert 60 <= seen.promote_late_seconds < 90


_COUNTED = "select pg_stat_force_next_flush()"  # else what a session did is added to what an analyze has found


async def load_finished(db: Database, n: int) -> None:
    """n jobs that are over, one in twenty dead, as rows of the ledger alone."""
    async with db.session() as session:
        for _ in range(n // 100_000):
            await session.execute(
                """insert into duly.outcome (job_id, account_id, state, attempt, final_attempt)
                   select duly.uuid7(), 1, case when n % 20 = 0 then 'dead' else 'succeeded' end, 1, 8
                   from generate_series(1, 100000) n"""
            )
        await session.execute(_COUNTED)


async def load_ready(db: Database, engine: Engine, n: int, lanes: int) -> None:
    """n ready jobs over so many lanes and fifty segments."""
    await engine.put(*(new_job(queue=f"q{k}") for k in range(lanes)))
    async with db.session() as session:
        for _ in range(n // 100_000):
            await session.execute(
                """insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt,
                                           final_attempt, trigger)
                   select 10 + n % 50, duly.uuid7(), now(), now() + interval '5 hours', l.id, $1, 5, 1, 8, 'schedule'
                   from generate_series(1, 100000) n
                   join (select id, row_number() over () - 1 as nth from duly.lane) l on l.nth = n % $2::integer""",
                engine.owner.account_id,
                lanes,
            )
        await session.execute(_COUNTED)
    await db.execute("select setval('duly.segment_current', 60)")


BUFFERS = 35_000
"""10,001 rows of ready counted, at worst a page of index and one of heap for each; a thousand heads at some five pages;
the same number of scheduled, of running and of dead letters. A walk over the half million would touch many times that
for ready alone."""


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_cost_does_not_grow_with_what_there_is(database: Database, database_url: str) -> None:
    """Half a million ready jobs in two thousand lanes, a million that are over, and no statistics, then with: only
    bounded index scans, and a bounded number of pages.
    """
    engine = await Engine.start(database)
    for table in await database.fetch(
        "select oid::regclass::text as name from pg_class where relkind = 'r' and relnamespace = 'duly'::regnamespace"
    ):
        await database.execute(f"alter table {table['name']} set (autovacuum_enabled = off)")
    await load_finished(database, 1_000_000)
    await load_ready(database, engine, 500_000, 2_000)
    for analyzed in (False, True):
        if analyzed:
            await database.execute("analyze")
        connection = await asyncpg.connect(database_url)
        try:
            log = await PlanLog.on(connection)
            session = queue.Session(connection, "duly")
            for _ in range(7):  # custom plans, then generic ones
                seen = await queue.figures(session)
                plans = await log.take()
                assert len(plans) > 10
                walked = [
                    node["Relation Name"]
                    for plan in plans
                    for node in plan.nodes()
                    if node["Node Type"] == "Seq Scan"
                    and node["Relation Name"].startswith(("ready", "lease", "scheduled", "job", "outcome", "attempt"))
                    and node["Relation Name"] not in ("ready_floor", "lease_floor")
                ]
                assert walked == []
                assert max(plan.buffers for plan in plans) < BUFFERS
        finally:
            connection.terminate()
    assert seen.estimated == {"finished", "ready", "dead"}
    assert 400_000 < seen.ready < 600_000
    assert 40_000 < seen.dead < 60_000
    assert 900_000 < seen.finished < 1_100_000


async def test_whoever_holds_vacuum_back_is_named(database: Database, database_url: str) -> None:
    """A session with a snapshot, and one that has written and sleeps; nobody: an empty list."""
    assert [h for h in await queue.snapshot_holders(database) if h.name != "duly-test"] == []
    async with holding(database_url, "repeatable_read") as (reader, _), holding(database_url) as (writer, _):
        await reader.execute("set application_name = 'a report'")
        await reader.fetchval("select count(*) from duly.job")
        await writer.execute("set application_name = 'a forgotten one'")
        await writer.execute("update duly.account set name = name")
        await writer.execute("select pg_current_xact_id()")
        await database.execute("select pg_current_xact_id()")
        held = {holder.name: holder for holder in await queue.snapshot_holders(database)}
    assert held["a report"].kind == held["a forgotten one"].kind == "session"
    assert held["a forgotten one"].state == "idle in transaction"
    assert all(h.transactions >= 1 and h.seconds is not None and h.pid for h in held.values())


async def test_the_worst_holder_comes_first(database: Database, database_url: str) -> None:
    """By the transactions begun since."""
    async with holding(database_url, "repeatable_read") as (first, _):
        await first.execute("set application_name = 'first'")
        await first.fetchval("select count(*) from duly.job")
        await database.execute("select pg_current_xact_id()")
        async with holding(database_url, "repeatable_read") as (second, _):
            await second.fetchval("select count(*) from duly.job")
            await database.execute("select pg_current_xact_id()")
            [worst] = await queue.snapshot_holders(database, 1)
    assert worst.name == "first"
    assert worst.transactions >= 2
