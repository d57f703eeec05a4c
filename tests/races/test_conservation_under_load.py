"""Promises 1 to 3 under load: eight processes do everything at once while segments turn twenty times a second.

DULY_TEST_LOAD_SECONDS makes each round longer than its ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from duly import queue
from duly.queue import Database
from duly.upkeep import SegmentKeeper
from support.engine import Engine, settled
from support.sessions import holding

SECONDS = float(os.environ.get("DULY_TEST_LOAD_SECONDS", "10"))
TRAFFIC = 7
TESTS = Path(__file__).resolve().parents[1]


async def process(role: str, **orders: Any) -> dict[str, Any]:
    """Run one process to its end; returns its report."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    it = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.load", role,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS * 2 + 60):
            out, err = await it.communicate(json.dumps(orders).encode())
    finally:
        if it.returncode is None:
            it.kill()
            await it.wait()
    assert it.returncode == 0, err.decode()
    report: dict[str, Any] = json.loads(out)
    assert "error" not in report, report
    return report


async def one_round(url: str, engine: Engine, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    orders = {"url": url, "seconds": SECONDS, "owner": [engine.owner.account_id, engine.owner.project_id]}
    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(process("keeper", url=url, seconds=SECONDS + 2))
        traffic = [group.create_task(process("traffic", seed=seed + n, **orders)) for n in range(TRAFFIC)]
    return [task.result() for task in traffic], keeper.result()


async def check(engine: Engine, reports: list[dict[str, Any]], keeper: dict[str, Any]) -> None:
    """What must hold after a round."""
    count = await engine.sound()
    enqueued = [job_id for report in reports for job_id in report["enqueued"]]
    assert len(enqueued) == len(set(enqueued))
    known = {str(row["id"]) for row in await engine.db.fetch("select id from duly.job")}
    assert set(enqueued) <= known
    assert count.running == 0, "all traffic settles what it holds, so nothing may be left under a lease"
    assert keeper["rescued"] == 0, "no lease ended, so nothing may be rescued"
    refused = [job_id for report in reports for job_id in report["refused"]]
    assert refused == [], "every settle came from the owner of the lease"
    claims = Counter((job_id, n) for report in reports for job_id, n in report["claimed"])
    for report in reports:
        for job_id, n, times in report["released"]:
            claims[job_id, n] -= times  # a release gives the number back
    assert {token: n for token, n in claims.items() if n > 1} == {}
    done = sum((Counter(report["done"]) for report in reports), Counter())
    for edge in (
        "succeeded",
        "dead",
        "cancelled",
        "retry",
        "snooze",
        "interrupted",
        "release",
        "cancel cancelled",
        "redrive redriven",
    ):
        assert done[edge] > 0, f"the round never saw {edge}"
    assert keeper["turns"] > SECONDS
    assert keeper["retired"] > SECONDS


async def drain(engine: Engine) -> None:
    """With normal upkeep everything left can be claimed and ended, and all closed segments go."""
    keepers = [SegmentKeeper(engine.db, "ready", crowded=0), SegmentKeeper(engine.db, "lease", crowded=0)]
    await engine.db.execute("update duly.scheduled set run_at = now() where run_at > now()")
    while (await queue.promote(engine.db, 1000, sweep=True)).count:
        pass
    while jobs := await engine.claim():
        assert await engine.settle(*(settled(job, "succeeded") for job in jobs)) == frozenset()
    count = await engine.sound()
    assert (count.scheduled, count.ready, count.running) == (0, 0, 0)
    assert count.jobs == count.succeeded + count.dead + count.cancelled
    await queue.advance(engine.db)
    for keeper in keepers:
        await keeper.step()
    for line in ("ready", "lease"):
        assert (await queue.live_segments(engine.db, line)).closed == ()
    twice = await engine.db.fetchval(
        "select count(*) from (select from duly.attempt group by job_id, number having count(*) > 1) x"
    )
    assert twice == 0


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS * 3 + 150))
@pytest.mark.parametrize("held", [False, True], ids=["free", "snapshot held"])
async def test_no_job_is_lost_or_doubled(database: Database, database_url: str, held: bool) -> None:
    """Enqueue, claim, settle by every edge, cancel, redrive, early enqueues with late commits, moves all the time;
    once free,
    once beside a REPEATABLE READ snapshot with ACCESS SHARE on every table, as pg_dump has. Then: conservation holds,
    each
    (job, attempt) was claimed once, no settle was refused, no row is in a retired segment, and everything drains.
    """
    engine = await Engine.start(database)
    async with AsyncExitStack() as stack:
        if held:
            session, _ = await stack.enter_async_context(holding(database_url, "repeatable_read"))
            await session.execute("set idle_in_transaction_session_timeout = 0")
            tables = await session.fetch(
                """select oid::regclass::text as name from pg_class
                   where relkind in ('r', 'p') and relnamespace = 'duly'::regnamespace"""
            )
            await session.execute(f"lock table {', '.join(row['name'] for row in tables)} in access share mode")
            await session.fetchval("select count(*) from duly.ready")
        reports, keeper = await one_round(database_url, engine, seed=100 * held)
        await check(engine, reports, keeper)
    await queue.heartbeat(database, engine.worker_id)
    await drain(engine)
