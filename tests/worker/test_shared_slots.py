"""One worker, many accounts: what hangs of one delays no other; a rate wakes the worker when it has tokens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

from duly import queue
from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database, QueueSettings, Rate
from support.engine import Engine, new_owner
from support.sessions import until, until_true
from support.working import working

SLOTS = 45
ENDED = "select exists (select from duly.outcome where job_id = $1)"


async def test_a_thousand_hanging_jobs_of_one_account_delay_no_other(database: Database, database_url: str) -> None:
    """They hold 36 of 45 slots and no more, though each free one is offered to them again and again; another account's
    jobs start at once, one after the other; what ends makes room for the next.
    """
    engine = await Engine.start(database)
    other = await new_owner(database)
    release = asyncio.Event()
    running: Counter[int] = Counter()
    most: Counter[int] = Counter()

    async def handler(job: ClaimedJob) -> Outcome:
        running[job.account_id] += 1
        most[job.account_id] = max(most[job.account_id], running[job.account_id])
        if job.account_id == engine.owner.account_id:
            await release.wait()
        running[job.account_id] -= 1
        return Success()

    await engine.enqueue(1000)
    async with working(database, database_url, {"k": handler}, concurrency=SLOTS, shared=True) as it:
        await until_true(lambda: running[engine.owner.account_id] == SLOTS * 4 // 5)
        for _ in range(20):
            [job_id] = await engine.enqueue(owner=other)
            await until(lambda job_id=job_id: database.fetchval(ENDED, job_id))  # type: ignore[misc]
        assert running[engine.owner.account_id] == most[engine.owner.account_id] == SLOTS * 4 // 5
        release.set()
        await until(lambda: database.fetchval("select count(*) = 1020 from duly.outcome"))
        assert it.worker.running == 0
    await engine.sound()


async def test_a_worker_sleeps_until_there_are_tokens(database: Database, database_url: str) -> None:
    """Polls that come an hour apart, and a queue with a rate: its jobs start as the tokens come."""
    engine = await Engine.start(database)
    rate = Rate(10, timedelta(seconds=2))
    await queue.set_queue(database, engine.owner.project_id, "default", QueueSettings(rate=rate))
    started: list[float] = []

    async def handler(job: ClaimedJob) -> Outcome:
        started.append(time.monotonic())
        return Success()

    hour = timedelta(hours=1)
    await engine.enqueue(6)
    async with working(database, database_url, {"k": handler}, poll_min=hour, poll_max=hour):
        await until_true(lambda: len(started) == 6)
    assert started[-1] - started[0] > 0.9  # five tokens of a fifth of a second
