"""() → scheduled | ready: what is made, what is a repeat, what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly import queue
from duly.model import NewJob, State, uuid7
from duly.queue import Database
from support.engine import Engine, new_job, new_owner
from support.sessions import autocommitting, holding

HOUR = timedelta(hours=1)


async def milliseconds(db: Database) -> int:
    return int((await queue.server_now(db)).timestamp() * 1000)


async def test_a_job_due_now_is_ready(database: Database) -> None:
    """created; ready, no attempt yet, run_at is the database's now."""
    engine = await Engine.start(database)
    before = await queue.server_now(database)
    [job_id] = await engine.enqueue(payload={"a": [1, None, "é"]}, tags=("x", "y"), metadata={"m": 1}, body=b"\x00\xff")
    job = await engine.view(job_id)
    assert (job.state, job.attempts, job.final_attempt, job.max_attempts) == (State.READY, 0, 8, 8)
    assert (job.payload, job.tags, job.metadata, job.has_body) == ({"a": [1, None, "é"]}, ("x", "y"), {"m": 1}, True)
    assert before <= job.run_at <= await queue.server_now(database)
    assert job.next_run_at == job.run_at


async def test_a_job_for_later_is_scheduled(database: Database) -> None:
    """A run_at or a delay in the future: scheduled until then."""
    engine = await Engine.start(database)
    at = await queue.server_now(database) + HOUR
    [by_time] = await engine.enqueue(run_at=at)
    [by_delay] = await engine.enqueue(delay=HOUR)
    first, second = await engine.view(by_time), await engine.view(by_delay)
    assert (first.state, first.run_at, first.next_run_at) == (State.SCHEDULED, at, at)
    assert second.state == State.SCHEDULED
    assert timedelta(0) <= second.run_at - at < timedelta(seconds=20)


async def test_a_job_for_the_past_is_ready_under_its_own_time(database: Database) -> None:
    """run_at an hour ago: due, and its place in the line is that time."""
    engine = await Engine.start(database)
    at = await queue.server_now(database) - HOUR
    [job_id] = await engine.enqueue(run_at=at)
    assert (await engine.view(job_id)).next_run_at == at


async def test_no_jobs_are_no_question(database: Database) -> None:
    """An empty batch returns an empty answer."""
    assert await queue.enqueue(database, []) == []


async def test_the_same_job_again_is_repeated(database: Database) -> None:
    """A repeat after a lost reply changes nothing, in whatever state the job is by then."""
    engine = await Engine.start(database)
    job = new_job(body=b"b", concurrency_key="c")
    assert [a.result for a in await engine.put(job)] == ["created"]
    assert [a.result for a in await engine.put(job)] == ["repeated"]
    await engine.finish(await engine.claim_one())
    assert [a.result for a in await engine.put(job)] == ["repeated"]
    assert (await engine.sound()).succeeded == 1


@pytest.mark.parametrize(
    "change", [{"payload": {"a": 2}}, {"kind": "other"}, {"queue": "other"}, {"concurrency_key": "c"}, {"body": b"x"}]
)
async def test_another_job_under_the_same_id_is_a_conflict(database: Database, change: dict[str, Any]) -> None:
    """conflict: another payload, kind, queue, key or body. The first job stays as it was."""
    engine = await Engine.start(database)
    job = new_job(payload={"a": 1})
    await engine.put(job)
    assert [a.result for a in await engine.put(replace(job, **change))] == ["conflict"]
    assert (await engine.view(job.id)).payload == {"a": 1}
    assert (await engine.sound()).jobs == 1


async def test_somebody_elses_id_is_a_conflict(database: Database) -> None:
    """The same content from another account or project is another job."""
    engine = await Engine.start(database)
    job = new_job()
    await engine.put(job)
    stranger, sibling = await new_owner(database), await new_owner(database, engine.owner.account_id)
    assert [a.result for a in await engine.put(job, owner=stranger)] == ["conflict"]
    assert [a.result for a in await engine.put(job, owner=sibling)] == ["conflict"]


async def test_a_batch_answers_in_the_order_given(database: Database) -> None:
    """One batch: created, its double repeated, its twin with other content in conflict, and an old one repeated."""
    engine = await Engine.start(database)
    old, new = new_job(), new_job()
    await engine.put(old)
    batch = [new, old, new, replace(new, payload={"x": 1}), replace(old, payload={"x": 1}), new_job()]
    answers = await engine.put(*batch)
    assert [a.result for a in answers] == ["created", "repeated", "repeated", "conflict", "conflict", "created"]
    assert [a.job_id for a in answers] == [job.id for job in batch]
    assert (await engine.sound()).jobs == 3


async def test_ids_are_version_7_and_of_today(database: Database) -> None:
    """Refused: another version, more than 24 hours old, more than 10 minutes ahead. Nothing of the batch is stored."""
    engine = await Engine.start(database)
    now = await milliseconds(database)
    minute = 60_000
    bad: list[UUID] = [uuid4(), uuid7(now - 24 * 60 * minute - minute), uuid7(now + 11 * minute), UUID(int=0)]
    for job_id in bad:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="UUIDv7"):
            await engine.put(new_job(), new_job(id=job_id))
    assert (await engine.sound()).jobs == 0
    good = [uuid7(now - 23 * 60 * minute), uuid7(now + 9 * minute)]
    assert [a.result for a in await engine.put(*(new_job(id=i) for i in good))] == ["created", "created"]


async def test_the_database_makes_the_same_kind_of_id(database: Database) -> None:
    """duly.uuid7() is a version 7 of now, with the right variant, and is accepted."""
    engine = await Engine.start(database)
    ids = [row["id"] for row in await database.fetch("select duly.uuid7() as id from generate_series(1, 1000)")]
    assert len(set(ids)) == 1000
    assert {(i.version, i.variant) for i in ids} == {(7, uuid7().variant)}
    assert abs((ids[0].int >> 80) - await milliseconds(database)) < 20_000
    assert [a.result for a in await engine.put(new_job(id=ids[0]))] == ["created"]


async def test_a_database_without_todays_partitions_makes_them(database: Database) -> None:
    """Upkeep did not run for days: the enqueue helps itself."""
    engine = await Engine.start(database)
    for row in await database.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhrelid::regclass::text like 'duly.%'"
    ):
        await database.execute(f"drop table {row['name']}")
    [job_id] = await engine.enqueue()
    assert (await engine.view(job_id)).state == State.READY


async def test_values_that_the_table_refuses_store_nothing(database: Database) -> None:
    """A priority of 10, an infinite run_at or no time-out: an error, and nothing of the batch is there."""
    engine = await Engine.start(database)
    for bad in ({"priority": 10}, {"timeout": timedelta(0)}, {"max_attempts": 0}):
        with pytest.raises(asyncpg.CheckViolationError):
            await engine.put(new_job(), new_job(**bad))
    assert (await engine.sound()).jobs == 0


async def test_a_rolled_back_transaction_leaves_no_job(database: Database) -> None:
    """In the caller's transaction: gone with it."""
    engine = await Engine.start(database)
    job = new_job()
    with pytest.raises(RuntimeError):
        async with database.transaction() as session:
            await queue.enqueue(session, [(engine.owner, job)])
            raise RuntimeError
    assert await queue.get_job(database, engine.owner, job.id) is None
    assert await engine.claim() == []
    assert (await engine.sound()).jobs == 0


async def test_a_job_is_invisible_until_its_transaction_commits(database: Database, database_url: str) -> None:
    """No claim sees it before the commit; the next one after it does."""
    engine = await Engine.start(database)
    async with holding(database_url) as (session, transaction):
        [answer] = await queue.enqueue(session, [(engine.owner, new_job())])
        assert await engine.claim() == []
        await transaction.commit()
    assert [job.id for job in await engine.claim()] == [answer.job_id]


async def test_a_repeatable_read_caller_may_enqueue(database: Database, database_url: str) -> None:
    """A caller's own isolation level is no hindrance; its job lands in the segment that is current then, not at its
    snapshot.
    """
    engine = await Engine.start(database)
    async with holding(database_url, "repeatable_read") as (session, transaction):
        await session.fetchval("select count(*) from duly.job")  # the snapshot is taken here
        later = await queue.advance(database)
        [answer] = await queue.enqueue(session, [(engine.owner, new_job())])
        assert await session.fetchval("select segment from duly.ready where job_id = $1", answer.job_id) >= later
        await transaction.commit()
    assert [job.id for job in await engine.claim()] == [answer.job_id]


async def test_a_repeatable_read_caller_that_cannot_see_the_lane_is_told_to_try_again(
    database: Database, database_url: str
) -> None:
    """A lane made after its snapshot: a serialization failure, never a job without a lane."""
    engine = await Engine.start(database)
    async with holding(database_url, "repeatable_read") as (session, _):
        await session.fetchval("select count(*) from duly.lane")
        await engine.enqueue()
        with pytest.raises(asyncpg.SerializationError):
            await queue.enqueue(session, [(engine.owner, new_job())])
    assert (await engine.sound()).jobs == 1


async def test_one_lane_per_owner_queue_kind_and_key(database: Database) -> None:
    """No key and the empty key are one lane; everything else makes a difference; a second batch makes no new lanes."""
    engine = await Engine.start(database)
    sibling = await new_owner(database, engine.owner.account_id)
    jobs: list[dict[str, Any]] = [
        {},
        {"concurrency_key": ""},
        {"concurrency_key": "a"},
        {"concurrency_key": "b"},
        {"queue": "q"},
        {"kind": "z"},
    ]
    for _ in range(2):
        await engine.put(*(new_job(**settings) for settings in jobs))
        await engine.put(new_job(), owner=sibling)
    assert await database.fetchval("select count(*) from duly.lane") == 6


async def test_lanes_are_made_in_one_order_whatever_order_they_are_given_in(database: Database) -> None:
    """Two batches with the same new lanes in opposite order must not lock each other out: lanes are made in key
    order.
    """
    engine = await Engine.start(database)
    keys = [f"{n:03}" for n in range(300)]
    await engine.put(*(new_job(concurrency_key=key) for key in reversed(keys)))
    made = await database.fetch("select concurrency_key as key from duly.lane order by id")
    assert [row["key"] for row in made] == keys


async def test_many_lanes_in_one_batch(database: Database) -> None:
    """A thousand jobs over five hundred keys: all there, each in its own lane."""
    engine = await Engine.start(database)
    answers = await engine.put(*(new_job(concurrency_key=str(n % 500)) for n in range(1000)))
    assert {a.result for a in answers} == {"created"}
    counts = await database.fetch("select count(*) as n from duly.ready group by lane_id")
    assert [row["n"] for row in counts] == [2] * 500
    await engine.sound()


async def test_a_large_payload_and_body_come_back_exactly(database: Database) -> None:
    """Megabytes of text and bytes, through the claim."""
    engine = await Engine.start(database)
    payload, body = {"text": "é" * 500_000}, bytes(range(256)) * 4096
    await engine.enqueue(payload=payload, body=body)
    job = await engine.claim_one()
    assert len(job.payload_json) > 500_000
    assert job.body == body


async def test_a_big_batch_opens_a_new_segment_now_and_then(database: Database, database_url: str) -> None:
    """Segments are bounded in rows: the chance to open one is rows / 20,000, so that a batch that big always does."""
    engine = await Engine.start(database)
    async with autocommitting(database_url) as session:
        before = (await queue.live_segments(session, "ready")).upwards_from
        await session.fetchval("select count(duly.advance_after(20000, 20000, 4))")
        assert (await queue.live_segments(session, "ready")).upwards_from == before + 1
        await session.fetchval("select count(duly.advance_after(0, 20000, 4))")
        assert (await queue.live_segments(session, "ready")).upwards_from == before + 1
    assert await engine.claim() == []


def test_a_new_job_is_of_kind_k() -> None:
    """The short form used by these tests makes a plain job."""
    assert isinstance(new_job(), NewJob)
