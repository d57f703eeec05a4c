"""Due schedules and their fires, in SQL: taken once, by who read them last, in one transaction with their jobs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from duly import queue
from duly.model import uuid7
from duly.queue import Database, DueSchedule, Fire, Turned
from duly.queue.schedules import START_OF_FIRES
from support.engine import Engine
from support.schedules import scheduled
from support.sessions import holding

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MUCH = 1_000_000


async def due(db: Database, *, sweep: bool = False, limit: int = 100, limit_bytes: int = MUCH) -> list[DueSchedule]:
    return await queue.due_schedules(db, limit, limit_bytes, sweep=sweep)


def turned(one: DueSchedule, *fires: Fire, then: timedelta | None = MINUTE) -> Turned:
    next_fire_at = None if then is None else one.next_fire_at + then
    return Turned(one, next_fire_at, next_fire_at, fires)


async def take(db: Database, *turns: Turned) -> set[tuple[UUID, datetime]]:
    async with db.transaction() as tx:
        return await queue.take_fires(tx, turns)


async def state_of(db: Database, schedule_id: UUID) -> asyncpg.Record:
    row = await db.fetchrow("select * from duly.schedule_turn where schedule_id = $1", schedule_id)
    assert row is not None
    return row


async def test_what_is_due_and_for_how_long(database: Database) -> None:
    """The longest due first; what is older than a minute only by a sweep; nothing that is paused, parked or over."""
    old = await scheduled(database, late=HOUR)
    late = await scheduled(database, late=10 * SECOND)
    just = await scheduled(database)
    await scheduled(database, late=-HOUR)
    for state in ("paused", "parked", "ended"):
        await scheduled(database, state=state)
    assert [one.schedule_id for one in await due(database)] == [late, just]
    assert [one.schedule_id for one in await due(database, sweep=True)] == [old, late, just]
    assert [one.schedule_id for one in await due(database, limit=1)] == [late]
    assert await queue.until_next_look(database, SECOND) == timedelta(0)


async def test_those_of_tasks_alone(database: Database) -> None:
    """Whoever asks for them is told of nothing else, not even by how long to sleep; all others are told of both."""
    http = await scheduled(database, late=10 * SECOND)
    assert await queue.due_schedules(database, 10, MUCH, sweep=True, tasks_only=True) == []
    assert await queue.until_next_look(database, HOUR, tasks_only=True) == HOUR
    task = await scheduled(database, late=20 * SECOND, is_task=True)
    [one] = await queue.due_schedules(database, 10, MUCH, tasks_only=True)
    assert one.schedule_id == task
    assert await queue.until_next_look(database, HOUR, tasks_only=True) == timedelta(0)
    assert [one.schedule_id for one in await due(database)] == [task, http]
    assert [one.schedule_id for one in await due(database, limit=1)] == [task]


async def test_a_batch_weighs_what_it_may(database: Database) -> None:
    """The first in any case, however heavy."""
    ids = [await scheduled(database, late=n * SECOND, weight=600) for n in (30, 20, 10)]
    assert [one.schedule_id for one in await due(database, limit_bytes=1)] == ids[:1]
    assert [one.schedule_id for one in await due(database, limit_bytes=601)] == ids[:2]


async def test_how_long_to_sleep(database: Database) -> None:
    """Until the next look, or as long as is asked for."""
    assert await queue.until_next_look(database, HOUR) == HOUR
    await scheduled(database, late=-MINUTE)
    assert 50 * SECOND < await queue.until_next_look(database, HOUR) <= MINUTE
    assert await queue.until_next_look(database, SECOND) == SECOND


async def test_a_fire_is_taken_once(database: Database) -> None:
    """Who comes second with the same reading gets nothing and changes nothing."""
    schedule = await scheduled(database)
    [one] = await due(database)
    turn = turned(one, Fire(one.next_fire_at, "made", 1, uuid7()))
    assert await take(database, turn) == {(schedule, one.next_fire_at)}
    assert await take(database, turn) == set()
    row = await state_of(database, schedule)
    assert (row["made"], row["last_fire_at"], row["next_fire_at"]) == (1, one.next_fire_at, one.next_fire_at + MINUTE)
    assert row["since_at"] < row["next_fire_at"]


async def test_a_fire_that_is_there_is_not_made_again(database: Database) -> None:
    """Even if the schedule was set back to it."""
    schedule = await scheduled(database)
    [one] = await due(database)
    fire = Fire(one.next_fire_at, "made", 1, uuid7())
    await take(database, turned(one, fire))
    await database.execute("update duly.schedule_turn set next_fire_at = $1, look_at = $1", one.next_fire_at)
    again = turned(one, fire, Fire(one.next_fire_at + SECOND, "made", 1, uuid7()))
    assert await take(database, again) == {(schedule, one.next_fire_at + SECOND)}
    assert (await state_of(database, schedule))["made"] == 2


async def test_an_edit_since_it_was_read_counts(database: Database) -> None:
    """So does a pause, and a delete."""
    await scheduled(database)
    [one] = await due(database)
    turn = turned(one, Fire(one.next_fire_at, "made", 1, uuid7()))
    await database.execute("update duly.schedule_turn set revision = 2")
    assert await take(database, turn) == set()
    await database.execute("delete from duly.schedule")
    assert await take(database, turn) == set()
    assert await database.fetchval("select count(*) from duly.fire") == 0


async def test_one_that_somebody_has_in_hand_is_left_to_them(database: Database, database_url: str) -> None:
    """Nobody waits; if they roll back it is due as before."""
    first, second = await scheduled(database, late=2 * SECOND), await scheduled(database)
    found = await due(database)
    turns = [turned(one, Fire(one.next_fire_at, "made", 1, uuid7())) for one in found]
    async with holding(database_url) as (rival, _):
        await queue.take_fires(rival, turns[:1])
        assert {schedule for schedule, _ in await take(database, *turns)} == {second}
    assert [one.schedule_id for one in await due(database)] == [first]


async def test_two_at_once_make_one(database: Database) -> None:
    """Ten firers with the same reading."""
    await scheduled(database)
    [one] = await due(database)
    turn = turned(one, Fire(one.next_fire_at, "made", 1, uuid7()))
    taken = await asyncio.gather(*(take(database, turn) for _ in range(10)))
    assert sum(map(len, taken)) == 1


async def test_an_owner_that_falls_silent_loses_what_it_took(database: Database, database_url: str) -> None:
    """After five seconds the server ends its transaction: the schedule is due again."""
    await scheduled(database)
    [one] = await due(database)
    async with holding(database_url) as (rival, _):
        await queue.take_fires(rival, [turned(one)])
        assert await rival.fetchval("select current_setting('idle_in_transaction_session_timeout')") == "5s"


async def test_the_last_fire_ends_it(database: Database) -> None:
    """No next fire: ended. What was passed over is in the ledger and makes no job."""
    schedule = await scheduled(database)
    [one] = await due(database)
    missed = Fire(one.next_fire_at - SECOND, "missed", 7)
    assert await take(database, turned(one, missed, then=None)) == set()
    row = await state_of(database, schedule)
    assert (row["state"], row["look_at"], row["made"]) == ("ended", None, 0)
    assert await database.fetchval("select covers from duly.fire where outcome = 'missed'") == 7


async def test_a_job_that_has_not_ended_makes_it_busy(database: Database) -> None:
    """Whatever state it waits in, until it is final; asked only where overlaps matter."""
    engine = await Engine.start(database)
    schedules = {overlap: await scheduled(database, overlap=overlap) for overlap in ("allow", "skip", "wait")}
    [job] = await engine.enqueue()
    for schedule in schedules.values():
        await database.execute(
            """insert into duly.fire (schedule_id, fire_at, trigger, outcome, job_id)
               values ($1, now(), 'schedule', 'made', $2)""",
            schedule,
            job,
        )
    busy = {one.schedule_id for one in await due(database) if one.busy}
    assert busy == {schedules["skip"], schedules["wait"]}
    await queue.cancel(database, engine.owner, job)
    assert not any(one.busy for one in await due(database))


async def test_put_off(database: Database) -> None:
    """Looked at later; a fire that waits is told from one that cannot be made, and only as long as it is as it was."""
    schedule = await scheduled(database)
    [one] = await due(database)
    await queue.put_off(database, one, HOUR, waits=False)
    assert await due(database, sweep=True) == []
    assert (await state_of(database, schedule))["waiting_since"] is None
    await queue.put_off(database, one, -SECOND, waits=True)
    [again] = await due(database)
    assert again.waiting
    assert again.next_fire_at == one.next_fire_at
    await take(database, turned(again))
    await queue.put_off(database, one, HOUR, waits=True)
    assert (await state_of(database, schedule))["waiting_since"] is None


async def test_park(database: Database) -> None:
    """Out of the round, with the reason; not if it was changed since."""
    schedule = await scheduled(database)
    [one] = await due(database)
    assert await queue.park(database, one, "its zone is gone")
    assert not await queue.park(database, one, "again")
    row = await state_of(database, schedule)
    assert (row["state"], row["parked_why"], row["next_fire_at"]) == ("parked", "its zone is gone", None)


async def test_a_refused_fire_shows_as_skipped(database: Database) -> None:
    """With the reason, and without a job."""
    await scheduled(database)
    [one] = await due(database)
    async with database.transaction() as tx:
        await queue.take_fires(tx, [turned(one, Fire(one.next_fire_at, "made", 1, uuid7()))])
        await queue.refuse_fires(tx, [(one.schedule_id, one.next_fire_at, "the key is taken")])
    row = await database.fetchrow("select outcome, job_id, why from duly.fire")
    assert row is not None
    assert tuple(row) == ("skipped", None, "the key is taken")


async def test_old_fires_go_in_batches(database: Database) -> None:
    """From where the last batch ended, and none that is not old enough."""
    schedule = uuid7()
    await database.execute(
        """insert into duly.fire (schedule_id, fire_at, trigger, outcome)
           select $1, now() - n * interval '1 day', 'schedule', 'made' from generate_series(1, 50) n""",
        schedule,
    )
    before = await queue.server_now(database) - timedelta(days=30, hours=1)
    place = await queue.prune_fires(database, START_OF_FIRES, before, 15)
    assert place is not None
    assert await database.fetchval("select count(*) from duly.fire") == 35
    place = await queue.prune_fires(database, place, before, 15)
    assert place is not None
    assert await queue.prune_fires(database, place, before, 15) is None
    assert await database.fetchval("select count(*) from duly.fire") == 30


async def test_health(database: Database) -> None:
    """FO-054: overdue is what should have fired more than a minute ago; what waits for a job is not, unless nobody
    looks at it any more.
    """
    await scheduled(database, late=10 * SECOND)
    await scheduled(database, state="paused")
    await scheduled(database, state="parked")
    seen = await queue.schedule_health(database)
    assert (seen.active, seen.paused, seen.parked, seen.overdue) == (1, 1, 1, 0)
    late = await scheduled(database, late=2 * HOUR)
    seen = await queue.schedule_health(database)
    assert (seen.active, seen.overdue) == (2, 1)
    assert 2 * HOUR <= seen.most_late < 3 * HOUR
    [one] = [one for one in await due(database, sweep=True) if one.schedule_id == late]
    await queue.put_off(database, one, SECOND, waits=True)
    assert (await queue.schedule_health(database)).overdue == 0
    await queue.put_off(database, one, -HOUR, waits=True)
    assert (await queue.schedule_health(database)).overdue == 1
    await queue.put_off(database, one, SECOND, waits=False)
    assert (await queue.schedule_health(database)).overdue == 0


@pytest.mark.parametrize(
    "statement", ["update duly.schedule_turn set next_fire_at = null", "delete from duly.schedule"]
)
async def test_the_rows_hold_together(database: Database, statement: str) -> None:
    """An active one has a next fire; a schedule that goes takes its turn along."""
    await scheduled(database)
    if statement.startswith("delete"):
        await database.execute(statement)
        assert await database.fetchval("select count(*) from duly.schedule_turn") == 0
    else:
        with pytest.raises(asyncpg.CheckViolationError):
            await database.execute(statement)
