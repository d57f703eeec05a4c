"""Idle workers sleep long and are woken; a lost hint costs a poll, never a job."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from duly import queue
from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database
from duly.worker import Wakeups, WorkerConfig, claimer, listener
from support.engine import Engine
from support.proxy import proxied
from support.sessions import autocommitting, until, until_true
from support.working import working

SECOND = timedelta(seconds=1)
IDLE_FOR = "select last_value / 1000.0 - extract(epoch from clock_timestamp()) from duly.idle_until"


class Handler:
    def __init__(self) -> None:
        self.started_at: dict[Any, float] = {}

    async def __call__(self, job: ClaimedJob) -> Outcome:
        self.started_at[job.id] = time.monotonic()
        return Success()


async def asleep(database: Database) -> None:
    """Return when a worker has said that it sleeps for several seconds."""

    async def look() -> bool:
        return bool(await database.fetchval(IDLE_FOR) > 3.5)

    await until(look)


@pytest.mark.parametrize("how", ["enqueue", "run_now", "redrive", "release"])
async def test_an_idle_worker_is_woken_by_new_work(database: Database, database_url: str, how: str) -> None:
    """poll_max is 30 s; whatever makes a job ready wakes it: started within a second or so."""
    engine = await Engine.start(database)
    handler = Handler()
    [later, dead] = [(await engine.enqueue(delay=timedelta(hours=1)))[0], (await engine.running()).id]
    await engine.db.execute(
        "select duly.settle($1, array[$2::uuid], '{1}', '{dead}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
        engine.worker_id,
        dead,
    )
    held = await engine.running()
    async with working(database, database_url, {"k": handler}, poll_min=SECOND / 5, poll_max=30 * SECOND):
        await asleep(database)
        before = time.monotonic()
        if how == "enqueue":
            [woken] = await engine.enqueue()
        elif how == "run_now":
            woken = later
            await queue.run_now(database, engine.owner, woken)
        elif how == "redrive":
            woken = dead
            await queue.redrive(database, engine.owner, woken)
        else:
            woken = held.id
            await engine.finish(held, "release")
        await until_true(lambda: woken in handler.started_at)
        assert handler.started_at[woken] - before < 2.0


async def test_one_hint_for_many_jobs_and_none_when_nobody_sleeps(database: Database, database_url: str) -> None:
    """A notify per time that a worker said it is idle, not per row and not per enqueue."""
    engine = await Engine.start(database)
    heard: list[object] = []
    async with autocommitting(database_url) as listener:
        await listener.connection.add_listener("duly.wake", lambda *a: heard.append(a))
        await engine.enqueue(10)
        await listener.fetchval("select 1")
        assert heard == []
        await database.execute("select duly.rest(30)")
        for _ in range(3):
            await engine.enqueue(10)
        await listener.fetchval("select 1")
        assert len(heard) == 1


async def test_a_listener_that_was_terminated_comes_back(database: Database, database_url: str) -> None:
    """Its backend is killed: it connects again, and wake-ups work as before."""
    engine = await Engine.start(database)
    handler = Handler()
    mine = "select pid from pg_stat_activity where application_name = 'duly-listener' and datname = current_database()"
    async with working(database, database_url, {"k": handler}, poll_min=SECOND / 5, poll_max=30 * SECOND):
        first = await until(lambda: database.fetchval(mine))
        await database.execute("select pg_terminate_backend($1)", first)

        async def another() -> bool:
            return await database.fetchval(mine) not in (None, first)

        await until(another)
        await asleep(database)
        before = time.monotonic()
        [job_id] = await engine.enqueue()
        await until_true(lambda: job_id in handler.started_at)
        assert handler.started_at[job_id] - before < 2.0


async def test_a_listener_whose_server_says_farewell_while_it_asks_comes_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that crashes sends a last error before it closes; what asyncpg makes of a question in between (an
    InternalClientError) ends the connection, not the process.
    """
    monkeypatch.setattr(listener, "_PROBE_EVERY", SECOND / 10)
    fatal = b"SFATAL\0C57P02\0Mterminating connection because of crash of another server process\0\0"
    async with proxied(database_url) as proxy:
        wakeups, stopping = Wakeups(proxy.url), asyncio.Event()
        woken = wakeups.subscribe()
        listening = asyncio.create_task(wakeups.run(stopping))
        try:
            await until_true(woken.is_set)
            woken.clear()
            proxy.say(b"E" + (len(fatal) + 4).to_bytes(4, "big") + fatal)
            await until_true(lambda: woken.is_set() or listening.done())  # each new connection is followed by a wake-up
        finally:
            stopping.set()
            await listening
    assert woken.is_set()


async def test_polling_alone_finds_everything(database: Database, database_url: str) -> None:
    """No hint ever comes (the channel is another): jobs are found by the next poll."""
    engine = await Engine.start(database)
    handler = Handler()
    async with working(database, database_url, {"k": handler}, poll_max=SECOND / 5) as it:
        it.worker._claimer._woken = asyncio.Event()
        for _ in range(3):
            [job_id] = await engine.enqueue()
            await until_true(lambda job_id=job_id: job_id in handler.started_at)  # type: ignore[misc]


async def test_a_worker_never_sleeps_longer_than_it_said(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jitter included: until it looks again, whoever brings work must know that it sleeps."""
    rests: list[timedelta] = []
    waits: list[float] = []
    stopping = asyncio.Event()

    async def claim(*args: Any) -> list[ClaimedJob]:
        rests.append(args[-1])
        return []

    async def wait(*events: asyncio.Event, limit_s: float | None = None) -> None:
        await asyncio.sleep(0)
        if limit_s is None:
            await stopping.wait()
            return
        waits.append(limit_s)
        if len(waits) == 40:
            stopping.set()

    monkeypatch.setattr("duly.queue.claim", claim)
    monkeypatch.setattr(claimer, "first_of", wait)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    one = claimer.Claimer(
        database,
        WorkerConfig({"k": Handler()}, poll_max=30 * SECOND),
        claimer.Slots(10),
        lambda: 1,
        lambda: False,
        list,
        lambda job, worker: None,
        asyncio.Event(),
    )
    await one.run(stopping)
    slept = [(rest.total_seconds(), wait_s) for rest, wait_s in zip(rests, waits, strict=True)]
    assert max(wait_s for _, wait_s in slept) > 30
    assert [(said, wait_s) for said, wait_s in slept if wait_s > 1 and wait_s > said + 1] == []


async def test_the_next_job_of_a_full_queue_starts_when_one_ends(database: Database, database_url: str) -> None:
    """One at a time in a queue with limit 1, and a poll that comes too late for all of them: the worker looks again
    when it has settled one.
    """
    engine = await Engine.start(database)
    await queue.set_queue(database, engine.owner.project_id, "default", queue.QueueSettings(concurrency=1))

    async def handler(job: ClaimedJob) -> Outcome:
        await asyncio.sleep(0.01)
        return Success()

    slow = timedelta(hours=1)
    await engine.enqueue(10)  # first: who has just looked in vain is told of nothing for one poll
    async with working(database, database_url, {"k": handler}, poll_min=slow, poll_max=slow):
        await until(lambda: database.fetchval("select count(*) = 10 from duly.outcome"))
