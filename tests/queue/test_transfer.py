"""Jobs in bulk by their ids: bodies, which are known, when they were made; by key, whatever else is there."""

from __future__ import annotations

import asyncpg
import pytest

from duly.model import uuid7
from duly.queue import Database, Session
from duly.queue.transfer import known_jobs, lock_imports, moments_with_jobs, oldest_job_at, read_bodies
from support.engine import Engine, new_job, new_owner
from support.plans import PlanLog, faults


async def test_nothing_is_known_of_nothing(database: Database) -> None:
    """No job, no id, no moment."""
    engine = await Engine.start(database)
    assert await oldest_job_at(database) is None
    assert await known_jobs(database, []) == {}
    assert await known_jobs(database, [uuid7()]) == {}
    assert await moments_with_jobs(database, [0, 1]) == []
    assert await read_bodies(database, engine.owner, [uuid7()]) == {}


async def test_what_is_there_is_found(database: Database) -> None:
    """Ids with their owners; bodies of the owner's own jobs only; moments, to the millisecond."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    now_ms = uuid7().int >> 80
    mine, bare = new_job(body=b"\0\xff", id=uuid7(now_ms - 5_000)), new_job(id=uuid7(now_ms))
    foreign = new_job(body=b"theirs", id=uuid7(now_ms + 5_000))
    await engine.put(mine)
    await engine.put(bare)
    await engine.put(foreign, owner=other)
    ids = [mine.id, bare.id, foreign.id, uuid7(now_ms)]
    assert await known_jobs(database, ids) == {mine.id: engine.owner, bare.id: engine.owner, foreign.id: other}
    assert await read_bodies(database, engine.owner, ids) == {mine.id: b"\0\xff"}
    assert await read_bodies(database, other, ids) == {foreign.id: b"theirs"}
    moments = [now_ms - 5_001, now_ms - 5_000, now_ms - 4_999, now_ms + 5_000]
    assert await moments_with_jobs(database, moments) == [now_ms - 5_000, now_ms + 5_000]
    oldest = await oldest_job_at(database)
    assert oldest is not None
    assert int(oldest.timestamp() * 1000) == now_ms - 5_000


async def test_one_imports_into_a_project_at_a_time(database: Database, database_url: str) -> None:
    """Who has the lock has it until the transaction ends; other projects are free."""
    other = await asyncpg.connect(database_url)
    try:
        async with database.transaction() as session:
            await lock_imports(session, [2, 1, 2])
            tried = "select pg_try_advisory_lock(hashtext('duly.import'), $1)"
            assert [await other.fetchval(tried, project) for project in (1, 2, 3)] == [False, False, True]
        assert await other.fetchval(tried, 1)
    finally:
        other.terminate()


@pytest.mark.parametrize("analyzed", [False, True])
async def test_all_by_key(database: Database, database_url: str, analyzed: bool) -> None:
    """Beside 2,000 other jobs, with statistics and without: no scan that no key bounds."""
    engine = await Engine.start(database)
    await engine.enqueue(2_000)
    if analyzed:
        await database.execute("analyze")
    jobs = [new_job(body=b"x") for _ in range(20)]
    for job in jobs:
        await engine.put(job)
    ids = [job.id for job in jobs]
    connection = await asyncpg.connect(database_url)
    session, log = Session(connection, "duly"), await PlanLog.on(connection)
    try:
        for _ in range(7):
            assert len(await known_jobs(session, ids)) == 20
            assert len(await read_bodies(session, engine.owner, ids)) == 20
            assert await moments_with_jobs(session, [ids[0].int >> 80]) != []
        heard = [plan for plan in await log.take() if "duly." in plan.statement]
        assert heard
        found = {fault for plan in heard for fault in faults(plan)}
        assert not {fault for fault in found if "id >=" not in fault or "id <" not in fault}  # a millisecond is few
    finally:
        connection.terminate()
