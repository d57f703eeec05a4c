"""Deadlocks and serialization failures: sent again by whoever knows the whole transaction, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model import Outcome, State, Success
from duly.model.errors import DatabaseBusyError
from duly.queue import Database
from support.engine import Engine, new_job, settled
from support.roles import alter_database
from support.sessions import holding, until_true, until_waiting
from support.working import state_becomes, working

Call = Callable[[Engine], Awaitable[Any]]
CODES = {"deadlock": "40P01", "serialization": "40001"}


async def trip(db: Database, table: str, event: str, *sqlstates: str, times: int = 1) -> None:
    """The next statements that do this to the table fail: with these states, one after the other, so many times."""
    states = ", ".join(f"'{state}'" for state in sqlstates * times)
    await db.execute("create sequence public.tripped")
    await db.execute(
        f"""create function public.trip() returns trigger language plpgsql as $$
            declare
                v_state text := (array[{states}])[nextval('public.tripped')];
            begin
                if v_state is not null then
                    raise exception 'tripped' using errcode = v_state;
                end if;
                return null;
            end $$"""
    )
    await db.execute(
        f"create trigger trip before {event} on duly.{table} for each statement execute function public.trip()"
    )


async def tried(db: Database) -> int:
    """How often it was done, counted outside all transactions."""
    count: int = await db.fetchval("select case when is_called then last_value else 0 end from public.tripped")
    return count


async def enqueue(engine: Engine) -> Call:
    return lambda engine: engine.enqueue()


async def claim(engine: Engine) -> Call:
    await engine.enqueue()
    return lambda engine: engine.claim_one()


async def settle(engine: Engine) -> Call:
    job = await engine.running()
    return lambda engine: engine.finish(job)


async def cancel(engine: Engine) -> Call:
    [job_id] = await engine.enqueue()
    return lambda engine: queue.cancel(engine.db, engine.owner, job_id)


async def redrive(engine: Engine) -> Call:
    job = await engine.running()
    await engine.finish(job, "dead")
    return lambda engine: queue.redrive(engine.db, engine.owner, job.id)


async def promote(engine: Engine) -> Call:
    await engine.enqueue(delay=timedelta(hours=1))
    await engine.db.execute("update duly.scheduled set run_at = now() - interval '1 second'")
    return lambda engine: queue.promote(engine.db, 10)


async def rescue(engine: Engine) -> Call:
    await engine.running()
    await engine.db.execute("delete from duly.worker")
    return lambda engine: engine.rescue()


async def heartbeat(engine: Engine) -> Call:
    return lambda engine: queue.heartbeat(engine.db, engine.worker_id)


WRITES: dict[Callable[[Engine], Awaitable[Call]], tuple[str, str]] = {
    enqueue: ("job", "insert"),
    claim: ("lease", "insert"),
    settle: ("lease", "delete"),
    cancel: ("outcome", "insert"),
    redrive: ("outcome", "delete"),
    promote: ("scheduled", "delete"),
    rescue: ("lease", "delete"),
    heartbeat: ("worker", "update"),
}


@pytest.mark.parametrize("prepare", WRITES, ids=lambda prepare: prepare.__name__)
async def test_a_statement_of_its_own_is_sent_again(
    database: Database, prepare: Callable[[Engine], Awaitable[Call]]
) -> None:
    """FO-020: rolled back by a deadlock, then by a serialization failure, it succeeds at the third try and counts once;
    no pause of an outage comes between.
    """
    engine = await Engine.start(database)
    call = await prepare(engine)
    before = await database.fetchval("select count(*) from duly.job")
    await trip(database, *WRITES[prepare], *CODES.values())
    assert await call(engine) is not False
    assert await tried(database) == 3
    assert await database.fetchval("select count(*) from duly.job") - before == (prepare is enqueue)
    await engine.sound()


async def test_the_tries_are_few(database: Database) -> None:
    """After three more it is the caller's: DatabaseBusyError, nothing was stored, and the connection is kept."""
    engine = await Engine.start(database)
    await trip(database, "job", "insert", "40001", times=99)
    async with asyncio.timeout(5):
        with pytest.raises(DatabaseBusyError):
            await engine.enqueue()
    assert await tried(database) == 4
    assert (await engine.sound()).jobs == 0


@pytest.mark.parametrize("code", CODES)
async def test_in_a_callers_own_transaction_it_surfaces(database: Database, code: str) -> None:
    """What came before in the transaction is gone, and only the caller knows it: sent once, raised as it is."""
    engine = await Engine.start(database)
    await trip(database, "job", "insert", CODES[code], times=99)
    expected = asyncpg.DeadlockDetectedError if code == "deadlock" else asyncpg.SerializationError
    with pytest.raises(expected):
        async with database.transaction() as session:
            await engine.enqueue_on(session)
    assert await tried(database) == 1
    assert (await engine.sound()).jobs == 0


async def test_the_victim_of_a_real_deadlock_waits_its_turn(database: Database, database_url: str) -> None:
    """Two lock the same two things in opposite order: the server ends one, which runs when the other is done."""
    await alter_database(database_url, "set deadlock_timeout = '50ms'")
    async with await Database.open(database_url) as db, holding(database_url) as (rival, transaction):
        await rival.execute("select pg_advisory_xact_lock(1)")
        await rival.execute("set local deadlock_timeout = '1min'")
        crossing = """do $$ begin perform nextval('public.tripped'); perform pg_advisory_xact_lock(2);
                      perform pg_advisory_xact_lock(1); end $$"""
        await db.execute("create sequence public.tripped")
        victim = asyncio.create_task(db.execute(crossing))
        waiting = """select exists (select from pg_locks where locktype = 'advisory' and objid = 1 and not granted)"""
        async with asyncio.timeout(10):
            while not await database.fetchval(waiting):
                await asyncio.sleep(0.005)
            await rival.execute("select pg_advisory_xact_lock(2)")  # granted once the victim is rolled back
            await transaction.commit()
            await victim
        assert await tried(db) == 2


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_caller_enqueues_in_a_stricter_transaction(
    database: Database, database_url: str, isolation: str
) -> None:
    """FO-045: the job exists with the caller's commit and runs like any other."""
    engine = await Engine.start(database)

    async def handler(job: object) -> Outcome:
        return Success()

    await engine.enqueue()
    async with working(database, database_url, {"k": handler}):
        async with holding(database_url, isolation) as (session, transaction):
            await session.fetchval("select count(*) from duly.job")  # takes the snapshot
            await engine.enqueue(3)
            job_id = await engine.enqueue_on(session)
            await transaction.commit()
        await state_becomes(engine, job_id, State.SUCCEEDED)


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_two_stricter_transactions_that_meet_end_with_a_clean_40001(
    database: Database, database_url: str, isolation: str
) -> None:
    """FO-045: both make the same new lane; the second is told to run again, and then succeeds."""
    engine = await Engine.start(database)
    async with (
        holding(database_url, isolation) as (first, committing),
        holding(database_url, isolation) as (second, _),
    ):
        await second.fetchval("select count(*) from duly.job")
        await engine.enqueue_on(first, queue="new")
        late = asyncio.create_task(engine.enqueue_on(second, queue="new"))
        await until_waiting(database, second)
        await committing.commit()
        with pytest.raises(asyncpg.SerializationError):
            await late
    async with holding(database_url, isolation) as (again, committing):
        await engine.enqueue_on(again, queue="new")
        await committing.commit()
    assert (await engine.sound()).ready == 2


async def test_two_settles_of_one_job_stay_one(database: Database) -> None:
    """A settle that was rolled back and sent again is not refused as a second one."""
    engine = await Engine.start(database)
    jobs = [await engine.running() for _ in range(3)]
    await trip(database, "outcome", "insert", "40P01", times=3)
    assert await engine.settle(*(settled(job, "succeeded") for job in jobs)) == frozenset()
    assert (await engine.sound()).succeeded == 3


async def test_the_api_counts_as_a_caller_of_single_statements(database: Database) -> None:
    """Creates that share a statement are all stored when it is sent again, each once."""
    from duly.service import Creator

    engine = await Engine.start(database)
    await trip(database, "job", "insert", "40P01", times=2)
    creator = Creator(database)
    answers = await asyncio.gather(*(creator.create(engine.owner, new_job()) for _ in range(20)))
    await creator.close()
    assert {answer.result for answer in answers} == {"created"}
    assert (await engine.sound()).jobs == 20
    await until_true(lambda: creator.waiting == 0)
