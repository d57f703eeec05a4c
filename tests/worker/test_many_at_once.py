"""Many jobs at one moment: due in the same second, failing at once, and held by one worker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from duly import queue
from duly.model import Backoff, ClaimedJob, NewJob, Outcome, Report, Retry, RetryPolicy, Success
from duly.queue import Database, Session
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.engine import new_owner
from support.sessions import until, until_true
from support.working import Holding, working

SECOND = timedelta(seconds=1)


async def test_two_thousand_jobs_due_in_the_same_second_run_without_an_error(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-059: capacity 50; each runs once, none before it is due, and nobody has anything to warn of."""
    owner = await new_owner(database)
    runs: Counter[Any] = Counter()

    async def handler(job: ClaimedJob) -> Outcome:
        runs[job.id] += 1
        return Success()

    now = await queue.server_now(database)
    due = now.replace(microsecond=0) + 3 * SECOND
    jobs = [NewJob("k", {}, run_at=due) for _ in range(2000)]
    await queue.enqueue(database, [(owner, job) for job in jobs])
    ended, wakeups = asyncio.Event(), Wakeups(database_url)
    upkeep = asyncio.create_task(Upkeep(database, wakeups).run(ended))
    try:
        with caplog.at_level(logging.WARNING, "duly"):
            async with working(database, database_url, {"k": handler}, concurrency=50) as it:
                await until_true(lambda: len(runs) == len(jobs))
                assert (await it.drained()).clean
    finally:
        ended.set()
        await upkeep
    assert set(runs.values()) == {1}
    assert caplog.records == []
    first, rows = await database.fetchrow("select min(started_at) as first, count(*) from duly.attempt")  # type: ignore[misc]
    assert rows == len(jobs)
    assert first >= due - SECOND / 2  # a claim notes when it began: a moment before the promotion that it saw
    assert (await queue.conservation(database)).faults == {}


async def test_retries_of_jobs_that_failed_at_once_are_stored_spread(database: Database, database_url: str) -> None:
    """FO-060: what is stored as the time of the next attempt spreads over the policy's interval, so that no second
    carries more than 5 % of 500.
    """
    owner = await new_owner(database)

    async def handler(job: ClaimedJob) -> Outcome:
        return Retry(Report("error"))

    spread = RetryPolicy(backoff=Backoff(base=60 * SECOND, jitter=0.5))
    async with working(database, database_url, {"k": handler}, concurrency=500):
        await queue.enqueue(database, [(owner, NewJob("k", {}, retry=spread)) for _ in range(500)])
        await until(lambda: database.fetchval("select count(*) = 500 from duly.scheduled"))
    rows = await database.fetch(
        """select floor(extract(epoch from s.run_at)) as second, s.run_at - a.finished_at as delay,
                  s.run_at = a.next_run_at as told
           from duly.scheduled s join duly.attempt a using (job_id)"""
    )
    assert len(rows) == 500
    assert all(row["told"] and 30 * SECOND <= row["delay"] <= 90 * SECOND for row in rows)
    assert max(Counter(row["second"] for row in rows).values()) <= 25


async def test_one_statement_a_quarter_of_the_lease_renews_all_that_a_worker_holds(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-049: 20 jobs held: one statement an interval, a quarter of the lease or up to a fifth less; one row updated by
    it, in place (HOT); no lease is touched.
    """
    owner, handler = await new_owner(database), Holding()
    sent: list[tuple[str, float]] = []

    def counted(name: str) -> None:
        original = getattr(Session, name)

        async def call(self: Session, statement: str, *args: Any) -> Any:
            if threading.current_thread().name == "duly-heartbeat":
                sent.append((statement, time.monotonic()))
            return await original(self, statement, *args)

        monkeypatch.setattr(Session, name, call)

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        counted(name)
    await queue.enqueue(database, [(owner, NewJob("k", {})) for _ in range(20)])
    async with working(database, database_url, {"k": handler}, lease=SECOND) as it:
        await until_true(lambda: len(handler.started) == 20)
        already = len(sent)
        await until_true(lambda: len(sent) >= already + 6)
        handler.go.set()
        assert (await it.drained()).clean
    assert {statement for statement, _ in sent} == {"select abort_ids, abort_attempts from duly.heartbeat($1)"}
    assert all(later - earlier >= 0.19 for (_, earlier), (_, later) in pairwise(sent))

    async def written() -> bool:  # a connection's counts come in when it ends
        [worker, lease] = await database.fetch(
            """select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables
               where schemaname = 'duly' and relname in ('worker', 'lease') order by relname desc"""
        )
        return (*worker, *lease) == (len(sent), len(sent), 0, 0)

    await until(written)
