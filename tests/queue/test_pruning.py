"""Retention: old days go as a whole or in small batches, and nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from datetime import date, timedelta
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model import Retention, State
from duly.queue import Database, Session
from duly.upkeep import Pruner, Upkeep
from duly.upkeep import pruner as pruner_module
from duly.worker import Wakeups
from support.engine import Engine, new_worker
from support.engine import settled as settled_job
from support.old_days import finished, make_day
from support.plans import PlanLog
from support.sessions import autocommitting, holding, until_waiting

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
PLAIN = Retention()


async def prune(pruner: Pruner, steps: int = 200) -> int:
    """Step until there is nothing to do for now; returns how many steps it took."""
    for n in range(1, steps):
        if await pruner.step() >= timedelta(minutes=1):
            return n
    raise AssertionError("it never ends")


async def days(db: Database) -> list[date]:
    """Days older than yesterday that have partitions, of all three facts alike."""
    rows = await db.fetch(
        """select d.day, count(*) as facts
           from (select to_date(right(c.relname, 8), 'YYYYMMDD') as day
                 from pg_inherits i join pg_class c on c.oid = i.inhrelid
                 where i.inhparent in ('duly.job'::regclass, 'duly.attempt'::regclass, 'duly.outcome'::regclass)
                 offset 0) d   -- "offset 0": no other table's name is read as a day
           where d.day < (now() at time zone 'utc')::date - 1
           group by 1 order by 1"""
    )
    assert {row["facts"] for row in rows} <= {3}
    return [row["day"] for row in rows]


async def counts(db: Database) -> tuple[int, int, int, int]:
    row = await db.fetchrow(
        """select (select count(*) from duly.job), (select count(*) from duly.outcome),
                  (select count(*) from duly.attempt), (select count(*) from duly.redrive)"""
    )
    assert row is not None
    return tuple(row)


async def test_a_day_of_which_nothing_is_kept_is_dropped(database: Database) -> None:
    """30 days for what succeeded or was cancelled, 90 for the dead letters: whole days by DROP, the day that is not yet
    old enough as a whole is not looked at; redrives of dropped jobs go too.
    """
    engine = await Engine.start(database)
    old, older, young = [await make_day(database, age) for age in (31, 92, 30)]
    await finished(engine, old, 30, redriven=True)
    await finished(engine, old, 30, state="cancelled")
    await finished(engine, older, 30, state="dead", redriven=True)
    kept = await finished(engine, young, 30)
    pruner = Pruner(database, batch=10, look=7)
    await prune(pruner)
    assert await days(database) == [young]
    assert (pruner.dropped_total, pruner.pruned_total) == (2, 0)
    assert await counts(database) == (30, 30, 30, 0)
    assert await queue.get_job(database, engine.owner, kept[0]) is not None
    await engine.sound()


async def test_what_is_kept_keeps_its_day_and_nothing_else(database: Database) -> None:
    """A dead letter inside its retention, one that ended late, one that still waits: the rest of the day is deleted in
    batches; the day is walked again once something will be old enough, not before.
    """
    engine = await Engine.start(database)
    day = await make_day(database, 40)
    await finished(engine, day, 95, redriven=True)
    dead = await finished(engine, day, 5, state="dead", redriven=True)
    late = await finished(engine, day, 5, days_after=25)
    [waiting] = await finished(engine, day, 1)
    await database.execute("delete from duly.outcome where job_id = $1", waiting)
    await database.execute(
        """insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, trigger)
           values ($1, $2, 5, 2, 1, now() + interval '1 hour', 8, 'retry')""",
        waiting,
        engine.owner.account_id,
    )
    pruner = Pruner(database, batch=10)
    assert await prune(pruner) >= 11
    assert (pruner.dropped_total, pruner.pruned_total) == (0, 95)
    assert await counts(database) == (11, 10, 11, 5)
    assert {job.id for job in await queue.list_jobs(database, engine.owner)} == {*dead, *late, waiting}
    assert await prune(pruner) == 1
    await engine.sound()
    assert await queue.redrive(database, engine.owner, dead[0]) == "redriven"


async def test_each_kind_may_be_kept_for_ever(database: Database) -> None:
    """None: the dead letters stay while the rest goes, or the other way round; both: nothing is looked at."""
    engine = await Engine.start(database)
    day = await make_day(database, 400)
    await finished(engine, day, 10)
    await finished(engine, day, 10, state="dead")
    await prune(Pruner(database, Retention(None, None)))
    assert (await counts(database))[0] == 20
    await prune(Pruner(database, Retention(DAY, None)))
    assert {job.state for job in await queue.list_jobs(database, None)} == {State.DEAD}
    assert (await counts(database))[0] == 10
    day = await make_day(database, 401)
    await finished(engine, day, 10)
    await prune(Pruner(database, Retention(None, DAY)))
    assert {job.state for job in await queue.list_jobs(database, None)} == {State.SUCCEEDED}
    assert await days(database) == [day]


async def test_yesterday_is_never_touched(database: Database) -> None:
    """Ids up to a day old may still be enqueued, whatever the retention says."""
    engine = await Engine.start(database)
    await engine.finish(await engine.running())
    assert await queue.prunable_days(database, Retention(HOUR, HOUR)) == []
    today = (await queue.server_now(database)).date()
    assert not await queue.drop_day(database, today, await queue.server_now(database))
    assert not await queue.drop_day(database, today - DAY, await queue.server_now(database))
    assert not await queue.drop_day(database, today - 500 * DAY, await queue.server_now(database))
    assert await queue.forget_redrives(database, today, 10) == 0


@pytest.mark.parametrize("fate", ["waits", "ended again"])
async def test_a_redrive_after_the_look_saves_its_day(database: Database, fate: str) -> None:
    """Looked at and found to be droppable; then a dead letter is redriven: it waits, or has even ended again."""
    engine = await Engine.start(database)
    day = await make_day(database, 100)
    [dead, *_] = await finished(engine, day, 5, state="dead")
    looked_at = await queue.server_now(database)
    assert await queue.look_at_day(database, day, None, 100, PLAIN) == (False, None)
    assert await queue.redrive(database, engine.owner, dead) == "redriven"
    if fate == "ended again":
        await engine.finish(await engine.claim_one())
    assert not await queue.drop_day(database, day, looked_at)
    await prune(Pruner(database))
    assert [job.id for job in await queue.list_jobs(database, engine.owner)] == [dead]
    await engine.sound()


async def test_a_dead_letter_that_is_being_redriven_is_not_pruned(database: Database, database_url: str) -> None:
    """The batch waits for the redrive: committed, the job lives on; rolled back, it goes."""
    engine = await Engine.start(database)
    for committed in (True, False):
        day = await make_day(database, 100 + committed)
        [dead] = await finished(engine, day, 1, state="dead")
        async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
            assert await queue.redrive(first, engine.owner, dead) == "redriven"
            pruning = asyncio.create_task(queue.prune_day(second, day, None, 10, PLAIN))
            await until_waiting(database, second)
            await (transaction.commit() if committed else transaction.rollback())
            assert (await pruning).count == (0 if committed else 1)
        assert (await queue.get_job(database, engine.owner, dead) is not None) == committed
        await engine.sound()


async def test_two_pruners_take_turns(database: Database, database_url: str) -> None:
    """Who finds another one at work does nothing and comes back later; then each row was pruned once."""
    engine = await Engine.start(database)
    day = await make_day(database, 40)
    await finished(engine, day, 40)
    await finished(engine, day, 1, state="dead")
    pruner = Pruner(database, batch=10)
    await pruner.step()
    async with holding(database_url) as (first, transaction):
        theirs = (await queue.prune_day(first, day, None, 10, PLAIN)).count
        assert (await queue.prune_day(database, day, None, 10, PLAIN)).busy
        assert await pruner.step() == timedelta(minutes=1)
        await transaction.commit()
    await prune(pruner)
    assert pruner.pruned_total + theirs == 40
    assert await counts(database) == (1, 1, 1, 0)


async def test_a_day_in_use_is_not_waited_for(database: Database, database_url: str) -> None:
    """FO-048: as pg_dump does, somebody holds every table: the drop gives up, those who came behind it go on, the other
    days are not forgotten; later it succeeds.
    """
    engine = await Engine.start(database)
    first, second = [await make_day(database, age) for age in (50, 49)]
    await finished(engine, first, 10)
    await finished(engine, second, 10)
    pruner = Pruner(database)
    async with holding(database_url, "repeatable_read") as (dump, transaction):
        await dump.execute("lock table duly.job, duly.attempt, duly.outcome in access share mode")
        began = time.monotonic()
        assert await pruner.step() == timedelta(milliseconds=50)
        drop = asyncio.create_task(pruner.step())
        await asyncio.gather(*(engine.enqueue() for _ in range(5)))
        assert await drop == timedelta(minutes=1)
        assert time.monotonic() - began < 5
        assert await prune(pruner) == 2  # the other day: looked at, in use
        await transaction.commit()
    await prune(pruner)
    assert await days(database) == []
    assert (await engine.sound()).ready == 5


async def test_a_day_that_cannot_be_dropped_is_looked_at_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redriven since the look and ended again: after some refusals the pruner looks, finds it, and deletes the rest."""
    monkeypatch.setattr(pruner_module, "_TRIES", 3)
    engine = await Engine.start(database)
    day = await make_day(database, 100)
    [dead, *_] = await finished(engine, day, 5, state="dead")
    pruner = Pruner(database)
    await pruner.step()
    assert await queue.redrive(database, engine.owner, dead) == "redriven"
    await engine.finish(await engine.claim_one())
    for _ in range(3):
        assert await pruner.step() == timedelta(minutes=1)
    await prune(pruner)
    assert (pruner.dropped_total, pruner.pruned_total) == (0, 4)
    assert [job.id for job in await queue.list_jobs(database, engine.owner)] == [dead]


async def test_pruning_under_load(database: Database, database_url: str) -> None:
    """FO-048: 20,000 finished rows, half of a day that is kept; four workers' worth of traffic meanwhile, statements
    limited to five seconds: batches commit one by one, nobody waits 0.2 s for a lock, nothing of the traffic is lost.
    """
    engine = await Engine.start(database)
    day, whole = await make_day(database, 40), await make_day(database, 41)
    await finished(engine, day, 10_000)
    await finished(engine, day, 100, state="dead")
    await finished(engine, whole, 10_000)
    done = asyncio.Event()
    longest_wait_s, committed = 0.0, 0

    async def traffic(worker: int) -> int:
        settled = 0
        while not done.is_set():
            await engine.enqueue(20)
            for job in await engine.claim(20, worker=worker, cursor=queue.ClaimCursor()):
                assert await engine.settle(settled_job(job, "succeeded"), worker=worker) == frozenset()
                settled += 1
        return settled

    async def watch() -> None:
        nonlocal longest_wait_s
        while not done.is_set():
            longest_wait_s = max(
                longest_wait_s,
                await database.fetchval(
                    """select coalesce(max(extract(epoch from clock_timestamp() - l.waitstart)), 0)::float8
                   from pg_locks l where not l.granted"""
                ),
            )
            await asyncio.sleep(0.005)

    async with await Database.open(database_url, max_size=1) as own:
        await own.execute("set statement_timeout = '5s'")
        pruner = Pruner(own)
        workers = [await new_worker(database) for _ in range(4)]
        running = [asyncio.create_task(traffic(worker)) for worker in workers]
        watching = asyncio.create_task(watch())
        try:
            last = 0
            while (await pruner.step()) < timedelta(minutes=1):
                committed += pruner.pruned_total > last
                last = pruner.pruned_total
        finally:
            done.set()
        settled = sum(await asyncio.gather(*running))
        await watching
    assert (pruner.pruned_total, pruner.dropped_total, committed) == (10_000, 1, 10)
    assert longest_wait_s < 0.2
    count = await engine.sound()
    assert (count.dead, count.succeeded) == (100, settled)
    assert settled > 0


async def test_upkeep_prunes(database: Database, database_url: str) -> None:
    """By default: 30 days, 90 for dead letters."""
    engine = await Engine.start(database)
    await finished(engine, await make_day(database, 31), 3)
    upkeep = Upkeep(database, Wakeups(database_url))
    for _ in ("look", "drop"):
        assert await upkeep.retention_step() < timedelta(seconds=1)
    assert await upkeep.retention_step() >= timedelta(minutes=45)
    assert await days(database) == []


def walks(node: dict[str, Any]) -> str:
    """The scan that this node is, if it is not a look-up by a primary key or by the dead letters' own index."""
    table, index, kind = node.get("Relation Name", ""), node.get("Index Name", ""), node["Node Type"]
    if (
        not table.startswith(("scheduled", "ready", "lease", "redrive", "outcome", "attempt", "job"))
        or kind == "Tid Scan"
    ):
        return ""
    if kind in ("Index Scan", "Index Only Scan") and "id" in node.get("Index Cond", ""):
        return "" if index.endswith("_pkey") or index.startswith("outcome_") else f"{kind} by {index}"
    return "" if kind in ("ModifyTable", "LockRows") else f"{kind} on {table}"


async def test_pruning_reads_by_key_only(database: Database, database_url: str) -> None:
    """Whatever waits, however much is dead, with any statistics: the ids of a day are looked up by the primary
    keys, never by an index that has the id further behind.
    """
    engine = await Engine.start(database)
    day = await make_day(database, 40)
    await finished(engine, day, 500)
    await finished(engine, day, 1, state="dead")
    for _ in range(20):
        await engine.enqueue(1000, delay=HOUR)
        await engine.enqueue(1000)
    wrong: set[tuple[str, str, str]] = set()
    for state in ("as it comes", "analysed", "emptied", "vacuumed"):
        if state == "analysed":
            await database.execute("analyze")
        elif state == "emptied":
            await database.execute("delete from duly.scheduled")
            await database.execute("delete from duly.ready")
        elif state == "vacuumed":
            await database.execute("vacuum analyze duly.scheduled, duly.ready, duly.lease, duly.outcome")
        connection = await asyncpg.connect(database_url)
        try:
            log, session = await PlanLog.on(connection), Session(connection, "duly")
            for _ in range(7):  # custom plans, then generic ones
                await queue.look_at_day(session, day, None, 100, Retention(None, DAY))
                await queue.prune_day(session, day, None, 10, PLAIN)
                await queue.drop_day(session, day, await queue.server_now(session))
                await queue.forget_redrives(session, day - 9 * DAY, 10)
            for plan in await log.take():
                wrong |= {(state, scan, plan.statement[:60]) for node in plan.nodes() if (scan := walks(node))}
        finally:
            await connection.close()
    assert not wrong


async def test_an_account_may_keep_its_jobs_for_a_time_of_its_own(database: Database) -> None:
    """Shorter or longer than the worker's, for the dead letters apart from the rest: what is of others stays as it was,
    and a day goes as a whole once no account needs it.
    """
    brief, plain, long = [await Engine.start(database) for _ in range(3)]
    set_to = "update duly.account set limits = $2 where id = $1"
    await database.execute(set_to, brief.owner.account_id, '{"keep": 432000, "keep_dead": 864000}')
    await database.execute(set_to, long.owner.account_id, '{"keep": 8640000}')
    for engine in (brief, long):
        await queue.apply_limits(database, engine.owner.account_id)
    week, month, ages = [await make_day(database, age) for age in (8, 40, 120)]
    for engine in (brief, plain, long):
        for day in (week, month, ages):
            await finished(engine, day, 4)
            await finished(engine, day, 3, state="dead")
    pruner = Pruner(database, batch=10, look=7)
    await prune(pruner)

    async def kept(engine: Engine) -> list[int]:
        rows = await database.fetch(
            """select count(o.job_id) as n from unnest($2::date[]) day
                 left join duly.job j on j.account_id = $1 and (j.created_at at time zone 'utc')::date = day
                 left join duly.outcome o on o.job_id = j.id
                group by day order by day desc""",
            engine.owner.account_id,
            [week, month, ages],
        )
        return [row["n"] for row in rows]

    assert await kept(brief) == [3, 0, 0]
    assert await kept(plain) == [7, 3, 0]
    assert await kept(long) == [7, 7, 0]
    assert await days(database) == [month, week]
    assert pruner.dropped_total == 1
