"""Unique keys: who holds one, in every state and for each scope, and what becomes of those who come second."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly import queue
from duly.model import NewJob, State, Unique
from duly.queue import Database, Enqueued
from support.engine import Engine, new_job, new_owner
from support.sessions import holding

HOUR = timedelta(hours=1)
MOMENT = timedelta(milliseconds=10)  # so short a lease that the grace after a server start is over


def keyed(key: str = "k", until: Any = "final", on_conflict: Any = "error", **settings: Any) -> NewJob:
    return new_job(unique=Unique(key, until, on_conflict), **settings)


async def put(engine: Engine, job: NewJob) -> Enqueued:
    [answer] = await engine.put(job)
    return answer


async def bring_to(engine: Engine, state: str, until: Any, key: str = "k") -> UUID:
    """A job with the key that has come so far."""
    job = keyed(key, until, delay=HOUR if state == "scheduled" else None, max_attempts=3)
    assert (await put(engine, job)).result == "created"
    if state in ("scheduled", "ready"):
        return job.id
    if state == "cancelled":
        await queue.cancel(engine.db, engine.owner, job.id)
        return job.id
    claimed = next(claimed for claimed in await engine.claim() if claimed.id == job.id)
    match state:
        case "running":
            pass
        case "retry" | "snooze":
            await engine.finish(claimed, state, delay=HOUR)
        case "interrupted" | "succeeded" | "dead":
            await engine.finish(claimed, state)
        case "lost":
            await engine.expire_worker()
            assert job.id in {lost.job_id for lost in await engine.rescue()}
            await engine.db.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
        case other:
            raise AssertionError(other)
    return job.id


STATES = ("scheduled", "ready", "running", "retry", "snooze", "interrupted", "lost", "succeeded", "dead", "cancelled")
HELD = {
    "start": {"scheduled", "ready"},
    "final": set(STATES) - {"succeeded", "dead", "cancelled"},
    HOUR: set(STATES) - {"cancelled"},
}


@pytest.mark.parametrize("until", HELD, ids=str)
async def test_a_key_is_held_exactly_as_long_as_its_scope_says(database: Database, until: Any) -> None:
    """FO-027: a second job is taken or created as the first one's state says; both end, no row is stuck."""
    engine = await Engine.start(database, MOMENT)
    for state in sorted(STATES, key=("ready", "scheduled").count):  # those that wait come last: a claim takes all
        first = await bring_to(engine, state, until, state)
        answer = await put(engine, keyed(state, delay=HOUR))
        if state in HELD[until]:
            assert (answer.result, answer.other) == ("taken", first)
            assert await queue.get_job(database, engine.owner, answer.job_id) is None
        else:
            assert (answer.result, answer.other) == ("created", None)
            await queue.cancel(database, engine.owner, answer.job_id)
        again = await put(engine, keyed(state, on_conflict="keep", delay=HOUR))
        assert again.result == ("kept" if state in HELD[until] else "created")
    await engine.sound()


async def test_a_failed_job_waits_beside_the_one_that_took_its_key(database: Database) -> None:
    """FO-027: until_start: A runs, A2 waits under the same key, A fails or its worker dies: A's retry is queued."""
    engine = await Engine.start(database, MOMENT)
    for way in ("retry", "lost"):
        await put(engine, keyed(way, "start"))
        running = await engine.claim_one()
        second = await put(engine, keyed(way, "start", delay=HOUR))
        assert second.result == "created"
        if way == "retry":
            await engine.finish(running, "retry")
        else:
            await engine.expire_worker()
            assert [lost.way for lost in await engine.rescue()] == ["scheduled"]
        assert (await engine.view(running.id)).state is State.SCHEDULED
        assert (await put(engine, keyed(way, "start"))).other == second.job_id
        await engine.db.execute("update duly.worker set lease_expires_at = now() + interval '1 hour'")
        await engine.due_now(running.id)
        await engine.finish(await engine.claim_one())
    await engine.sound()


async def test_a_key_for_a_time_is_free_after_it(database: Database) -> None:
    """By the database's clock, whatever became of the job."""
    engine = await Engine.start(database)
    first = await put(engine, keyed(until=HOUR))
    await database.execute("update duly.unique_key set expires_at = now() - interval '1 second'")
    second = await put(engine, keyed(until=HOUR))
    assert (second.result, second.other) == ("created", None)
    assert (await put(engine, keyed())).other == second.job_id
    assert (await engine.view(first.job_id)).state is State.READY


@pytest.mark.parametrize("until", ["start", "final", HOUR], ids=str)
async def test_replace_withdraws_a_waiting_job(database: Database, until: Any) -> None:
    """The old one is cancelled with the reason, the new one has the key; over and over."""
    engine = await Engine.start(database)
    old = await put(engine, keyed(until=until, delay=HOUR))
    for _ in range(3):
        new = await put(engine, keyed(until=until, on_conflict="replace"))
        assert (new.result, new.other) == ("created", old.job_id)
        view = await engine.view(old.job_id)
        assert (view.state, view.reason) == (State.CANCELLED, "replaced")
        old = new
    assert [job.id for job in await engine.claim()] == [old.job_id]
    await engine.sound()


async def test_replace_leaves_alone_what_runs(database: Database) -> None:
    """A running job is not withdrawn, nor one that ended inside its time: the new one is refused."""
    engine = await Engine.start(database)
    running = await bring_to(engine, "running", "final")
    answer = await put(engine, keyed(on_conflict="replace"))
    assert (answer.result, answer.other) == ("taken", running)
    await put(engine, keyed("timed", HOUR))
    done = await engine.claim_one()
    await engine.finish(done)
    answer = await put(engine, keyed("timed", on_conflict="replace"))
    assert (answer.result, answer.other) == ("taken", done.id)
    assert (await engine.view(running)).state is State.RUNNING
    await engine.sound()


async def test_a_repeat_is_a_repeat(database: Database) -> None:
    """FO-028: the same job again, after a lost reply: while it holds the key, after it ended, after another took it."""
    engine = await Engine.start(database)
    job = keyed()
    assert (await put(engine, job)).result == "created"
    assert await put(engine, job) == ((job.id, "repeated", (await engine.view(job.id)).created_at, None))
    claimed = await engine.claim_one()
    await engine.finish(claimed)
    assert (await put(engine, job)).result == "repeated"
    other = await put(engine, keyed())
    assert other.result == "created"
    assert (await put(engine, job)).result == "repeated"
    assert (await put(engine, keyed())).other == other.job_id
    assert (await put(engine, new_job(id=job.id))).result == "conflict"
    assert (await put(engine, keyed("other", id=job.id))).result == "conflict"
    assert (await put(engine, keyed("other"))).result == "created"


async def test_one_batch_may_ask_twice(database: Database) -> None:
    """In the order given: the first gets the key; keep and error know it, replace takes its place."""
    engine = await Engine.start(database)
    batch = [keyed(), keyed(), new_job(), keyed(on_conflict="keep"), keyed("other"), keyed(on_conflict="replace")]
    answers = await engine.put(*batch)
    assert [answer.result for answer in answers] == ["created", "taken", "created", "kept", "created", "created"]
    first, last = answers[0].job_id, answers[-1]
    assert [answer.other for answer in answers] == [None, first, None, first, None, first]
    assert (await engine.view(first)).state is State.CANCELLED
    assert {job.id for job in await engine.claim()} == {answers[2].job_id, answers[4].job_id, last.job_id}
    assert (await engine.sound()).jobs == 4


async def test_a_key_belongs_to_its_project(database: Database) -> None:
    """Another project of the same account has keys of its own."""
    engine = await Engine.start(database)
    assert (await put(engine, keyed())).result == "created"
    neighbour = await new_owner(database, engine.owner.account_id)
    [answer] = await engine.put(keyed(), owner=neighbour)
    assert answer.result == "created"


async def test_keys_differ_in_every_character(database: Database) -> None:
    """FO-026: what looks alike is not alike; nothing is folded, trimmed or joined."""
    engine = await Engine.start(database)
    keys = ["a", "A", "a ", " a", "ä", "a\u0308", "1", "1.0", "true", "a|b", "a\tb", "x" * 200]
    answers = await engine.put(*(keyed(key) for key in keys))
    assert {answer.result for answer in answers} == {"created"}
    assert {answer.result for answer in await engine.put(*(keyed(key) for key in keys))} == {"taken"}


async def test_redrive_takes_the_key_again(database: Database) -> None:
    """While another job has it the dead one stays dead; after that it comes back and holds it."""
    engine = await Engine.start(database)
    for until in ("final", "start"):
        dead = await bring_to(engine, "dead", until)
        other = await put(engine, keyed(until=until))
        assert await queue.redrive(database, engine.owner, dead) == "key_taken"
        assert (await engine.view(dead)).state is State.DEAD
        await queue.cancel(database, engine.owner, other.job_id)
        assert await queue.redrive(database, engine.owner, dead) == "redriven"
        assert (await put(engine, keyed())).other == dead
        assert await queue.redrive(database, engine.owner, other.job_id) == "key_taken"
        await queue.cancel(database, engine.owner, dead)
    await engine.sound()


async def test_redrive_of_a_job_with_a_key_for_a_time(database: Database) -> None:
    """Its time goes on from its creation: it holds the key again until then, unless another took it; once its time is
    over it runs without.
    """
    engine = await Engine.start(database)
    first = await bring_to(engine, "cancelled", HOUR)
    other = await put(engine, keyed(until=HOUR))
    assert await queue.redrive(database, engine.owner, first) == "key_taken"
    await queue.cancel(database, engine.owner, other.job_id)
    assert await queue.sweep_keys(database, (0, ""), 10) is None
    assert await queue.redrive(database, engine.owner, first) == "redriven"
    assert (await put(engine, keyed(until=HOUR))).other == first
    await queue.cancel(database, engine.owner, first)
    await database.execute("update duly.job set created_at = now() - interval '2 hours' where id = $1", first)
    assert await queue.redrive(database, engine.owner, first) == "redriven"
    assert (await put(engine, keyed(until=HOUR))).result == "created"


async def test_a_rollback_gives_the_key_back(database: Database, database_url: str) -> None:
    """Taken, replaced and refused in a transaction that never was: all as before."""
    engine = await Engine.start(database)
    old = await put(engine, keyed(delay=HOUR))
    async with holding(database_url) as (session, transaction):
        [new] = await queue.enqueue(session, [(engine.owner, keyed(on_conflict="replace"))])
        assert (new.result, new.other) == ("created", old.job_id)
        await transaction.rollback()
    assert (await put(engine, keyed())).other == old.job_id
    assert (await engine.sound()).scheduled == 1


async def test_an_older_snapshot_cannot_be_fooled(database: Database, database_url: str) -> None:
    """A caller's REPEATABLE READ transaction that does not see the holder: an error to run it again, never two."""
    engine = await Engine.start(database)
    async with holding(database_url, "repeatable_read") as (session, _):
        await session.fetchval("select 1")
        assert (await put(engine, keyed())).result == "created"
        with pytest.raises(asyncpg.SerializationError):
            await queue.enqueue(session, [(engine.owner, keyed())])
    assert (await engine.sound()).jobs == 1


async def test_sweep_forgets_what_nobody_holds(database: Database) -> None:
    """Step by step through all keys; those in use stay, and so does one whose row somebody has locked."""
    engine = await Engine.start(database)
    ended = [keyed(f"ended {n}") for n in range(5)]
    await engine.put(*ended, *(keyed(f"live {n}") for n in range(5)))
    for job in ended:
        await queue.cancel(database, engine.owner, job.id)
    place: tuple[int, str] | None = (0, "")
    steps = 0
    while place is not None:
        place = await queue.sweep_keys(database, place, 3)
        steps += 1
    assert steps == 4
    left = await database.fetch("select key from duly.unique_key order by key")
    assert [row["key"] for row in left] == [f"live {n}" for n in range(5)]
    assert {a.result for a in await engine.put(*(keyed(f"live {n}") for n in range(5)))} == {"taken"}


async def test_a_job_that_was_pruned_holds_no_key(database: Database) -> None:
    """Its facts are gone, the row of the key is still there: free."""
    engine = await Engine.start(database)
    job = await bring_to(engine, "succeeded", "final")
    for table, column in (("outcome", "job_id"), ("attempt", "job_id"), ("job", "id")):
        await database.execute(f"delete from duly.{table} where {column} = $1", job)
    assert (await put(engine, keyed())).result == "created"


async def test_a_job_shows_its_key(database: Database) -> None:
    """Key and scope come back as they were given; on_conflict is over with the enqueue."""
    engine = await Engine.start(database)
    for until in ("start", "final", timedelta(seconds=90.5)):
        answer = await put(engine, keyed(str(until), until, "keep"))
        assert (await engine.view(answer.job_id)).unique == Unique(str(until), until)
    [plain] = await engine.enqueue()
    assert (await engine.view(plain)).unique is None
