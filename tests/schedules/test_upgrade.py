"""What was stored under an older release goes on under this one (FO-079)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from duly.embedded.binaries import find_binaries
from duly.queue import Database, JobView
from duly.schema import migrate
from duly.service import ensure_default
from duly.service.schedule_watch import ScheduleWatch
from schedules.stage import HOUR, KEYRING, MINUTE, Stage
from support.engine import Engine, new_worker
from support.sessions import server_up_for


async def _run(program: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        str(find_binaries().program(program)), *arguments, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


async def _older_release(engine: Engine) -> dict[str, JobView]:
    """A job in every state, of the default account."""
    jobs = {
        "succeeded": await engine.running(),
        "dead": await engine.running(max_attempts=1),
        "running": await engine.running(),
    }
    await engine.finish(jobs["succeeded"])
    await engine.finish(jobs["dead"], "dead")
    ids = {state: job.id for state, job in jobs.items()}
    [ids["cancelled"]] = await engine.enqueue(delay=HOUR)
    await engine.db.execute("select duly.withdraw($1, null)", ids["cancelled"])
    [ids["scheduled"]] = await engine.enqueue(delay=HOUR)
    [ids["ready"]] = await engine.enqueue()
    seen = {state: await engine.view(job_id) for state, job_id in ids.items()}
    assert {state: job.state for state, job in seen.items()} == {state: state for state in ids}
    return seen


@pytest.mark.parametrize("left_behind", ["functions of another text", "an overload that nobody knows any more"])
async def test_a_dump_of_an_older_release_goes_on(
    database: Database, database_url: str, empty_database_url: str, tmp_path: Path, left_behind: str
) -> None:
    """FO-079: schedules fire on, jobs are where they were, and what runs is rescued. If nothing fired, health would
    say so.
    """
    owner = (await ensure_default(database, keyring=KEYRING)).owner
    old = Stage(database, owner)
    schedule = await old.schedule(ago=MINUTE)
    await old.fire()
    lost = await new_worker(database)
    jobs = await _older_release(Engine(database, owner, lost))
    if left_behind.startswith("an overload"):
        await database.execute("create function duly.wake(p_old integer) returns void language sql return null::void")
    await database.execute("update duly.schema_version set functions_digest = 'older'")
    fired = len(await old.fires(schedule))
    dump = tmp_path / "dump"
    await _run("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={database_url}")
    await _run("pg_restore", "--exit-on-error", f"--dbname={empty_database_url}", str(dump))

    connection = await asyncpg.connect(empty_database_url)
    try:
        assert (await migrate(connection)).functions_changed
    finally:
        await connection.close()
    async with await Database.open(empty_database_url, name="duly-test") as db:
        new, engine = Stage(db, owner), Engine(db, owner, await new_worker(db))
        await new.move_back(schedule, 2 * MINUTE)
        assert await ScheduleWatch(db).findings() == ["schedules should have fired and did not"]
        for _ in range(2):
            await new.fire()
            await new.move_back(schedule, MINUTE)
        await new.fire()
        assert await ScheduleWatch(db).findings() == []
        fires = await new.fires(schedule)
        assert {fire.outcome for fire in fires[fired:]} <= {"made", "missed"}
        assert sum(fire.outcome == "made" for fire in fires[fired:]) == 3
        assert [await engine.view(job.id) for job in jobs.values()] == list(jobs.values())
        await db.execute("update duly.worker set lease_expires_at = now() - interval '1 second' where id = $1", lost)
        async with server_up_for(db, HOUR) as session:
            assert [job.job_id for job in await engine.rescue(db=session)] == [jobs["running"].id]
        assert await db.fetchval("select count(*) from pg_proc where proname = 'wake'") == 1
        await engine.sound()
