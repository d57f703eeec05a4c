"""Installing, verifying, and the check that every job is in exactly one place."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model.errors import DatabaseUnavailableError, InvalidInputError, SchemaError
from duly.queue import Database
from duly.schema import checked_name, migrate, named, verify
from duly.schema.install import Migrated, migrations
from duly.upkeep import Pruner, SegmentKeeper
from support.engine import Engine, new_worker
from support.old_days import finished, make_day
from support.proxy import proxied
from support.sessions import autocommitting, until

LATEST = migrations()[-1][0]


async def connected(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url)


async def test_eight_processes_at_once_install_one_schema(empty_database_url: str) -> None:
    """None of them fails, one of them makes it."""
    connections = [await connected(empty_database_url) for _ in range(8)]
    try:
        done = await asyncio.gather(*(migrate(connection) for connection in connections))
        await verify(connections[0])
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
    assert sorted(m.before for m in done) == [0] + [LATEST] * 7
    assert sum(m.functions_changed for m in done) == 1


MIGRATE = """
import asyncio, sys, asyncpg
from duly.schema import migrate, verify
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    done = await migrate(connection)
    await verify(connection)
    await connection.close()
    print(done.before, flush=True)
asyncio.run(main())
"""


async def test_ten_processes_start_at_once_on_an_empty_database(empty_database_url: str) -> None:
    """FO-046: real processes, let go together: all come up, one of them has installed, one version row. Twice, the
    second time after the schema was dropped.
    """
    for _ in range(2):
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", MIGRATE, empty_database_url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(10)
        ]
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
        assert [process.returncode for process in processes] == [0] * 10
        assert sorted(int(out) for out, _ in answers) == [0] + [LATEST] * 9
        connection = await connected(empty_database_url)
        assert await connection.fetchval("select count(*) from duly.schema_version") == LATEST
        await connection.execute("drop schema duly cascade")
        await connection.close()


GRANTS = Path(__file__).parents[2] / "docs" / "how-to" / "grants.md"


async def test_a_role_that_owns_one_schema_can_install_and_another_can_run(empty_database_url: str) -> None:
    """FO-047: the SQL of docs/how-to/grants.md, in a database with another schema that neither role may use and with
    CREATE on public revoked: the owner migrates, again too; the run-time role does everything but that.
    """
    install, by_hand = re.findall(r"```sql\n(.*?)```", GRANTS.read_text(), re.DOTALL)
    admin = await connected(empty_database_url)
    try:
        await admin.execute("drop role if exists duly_run; drop role if exists duly_owner")
        await admin.execute(
            "create schema foreign_one; create table foreign_one.t (); revoke all on schema public from public"
        )
        await admin.execute(install)
        owner_url, run_url = (
            re.sub("//[^@]+@", f"//{role}@", empty_database_url) for role in ("duly_owner", "duly_run")
        )
        owner = await connected(owner_url)
        await migrate(owner)
        await owner.execute("update duly.schema_version set functions_digest = 'older'")
        assert (await migrate(owner)).functions_changed
        await owner.close()
        await admin.execute(by_hand)
        engine = await Engine.start(await Database.open(empty_database_url))
        async with await Database.open(run_url) as db, db.session() as session:
            await verify(session.connection)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute("create table duly.x ()")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.fetch("select from foreign_one.t")
            run = Engine(db, engine.owner, await new_worker(db))
            [job_id] = await run.enqueue()
            await run.finish(await run.claim_one(), "dead")
            assert await queue.redrive(db, run.owner, job_id) == "redriven"
            await run.finish(await run.claim_one())
            await queue.promote(db, 10)
            await run.rescue()
            await SegmentKeeper(db, "ready").step()
            assert await queue.add_days(db, 6) == 2 * 4
            await run.sound()
            async with await Database.open(owner_url) as owner_db:
                days = [await make_day(owner_db, age) for age in (40, 41)]
            for day in days:
                await finished(run, day, 3)
            await finished(run, days[0], 1, state="dead")
            pruner = Pruner(db)
            while await pruner.step() < timedelta(minutes=1):
                pass
            assert (pruner.dropped_total, pruner.pruned_total) == (1, 3)
        await engine.db.close()
    finally:
        await admin.execute(
            "drop schema if exists duly cascade; drop owned by duly_owner, duly_run; drop role duly_run, duly_owner"
        )
        await admin.close()


async def test_migrating_again_changes_nothing(database: Database, database_url: str) -> None:
    """Repeatable, with work in it."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    connection = await connected(database_url)
    assert await migrate(connection) == Migrated(LATEST, LATEST, False)
    await connection.close()
    assert len(await engine.claim()) == 3


async def test_changed_functions_are_made_anew(database: Database, database_url: str) -> None:
    """Functions of another text: verify refuses, migrate replaces them, leftover overloads and views included."""
    connection = await connected(database_url)
    await connection.execute("update duly.schema_version set functions_digest = 'old'")
    await connection.execute("create function duly.claim(integer) returns integer language sql return 1")
    await connection.execute("create or replace function duly.advance() returns bigint language sql return 42")
    with pytest.raises(SchemaError, match="another program's: run `duly migrate`"):
        await verify(connection)
    assert await migrate(connection) == Migrated(LATEST, LATEST, True)
    await verify(connection)
    assert await connection.fetchval("select duly.advance()") == 2
    assert await connection.fetchval("select count(*) from pg_proc where proname = 'claim'") == 1
    await connection.close()
    engine = await Engine.start(database)
    await engine.running()
    await engine.sound()


async def test_another_schema_name_works_the_same(empty_database_url: str) -> None:
    """The schema's name is a setting: two cells side by side in one database, neither sees the other."""
    async with autocommitting(empty_database_url) as session:
        for name in ("cell_a", "cell_b"):
            await migrate(session.connection, name)
            await verify(session.connection, name)
        assert await session.fetchval("select to_regnamespace('duly') is null")
    async with (
        await Database.open(empty_database_url, schema="cell_a") as a,
        await Database.open(empty_database_url, schema="cell_b") as b,
    ):
        one, two = await Engine.start(a), await Engine.start(b)
        [job_id] = await one.enqueue(delay=None)
        job = await one.claim_one()
        await one.finish(job, "retry")
        await queue.promote(a, 10)
        assert (await two.sound()).jobs == 0
        assert await two.claim() == []
        await queue.advance(a)
        await one.rescue()
        assert (await queue.live_segments(b, "ready")).closed == ()
        assert job.id == job_id
        await one.sound()


async def test_a_newer_schema_is_refused(database_url: str) -> None:
    """An old program on a new schema: verify and migrate say so and change nothing."""
    connection = await connected(database_url)
    await connection.execute("insert into duly.schema_version values ($1, 'x')", LATEST + 1)
    with pytest.raises(SchemaError, match="upgrade Duly"):
        await verify(connection)
    with pytest.raises(SchemaError, match=f"at version {LATEST + 1}.*upgrade Duly"):
        await migrate(connection)
    await connection.close()


async def test_an_older_schema_asks_for_a_migration(database_url: str) -> None:
    """verify names both versions and the command."""
    connection = await connected(database_url)
    await connection.execute("update duly.schema_version set version = $1", LATEST - 1)
    with pytest.raises(SchemaError, match=rf"at version {LATEST - 1}, this program needs {LATEST}: run `duly migrate`"):
        await verify(connection)
    await connection.close()


async def test_a_missing_schema_asks_for_a_migration(empty_database_url: str) -> None:
    """verify on an empty database."""
    connection = await connected(empty_database_url)
    with pytest.raises(SchemaError, match="not installed in this database: run `duly migrate`"):
        await verify(connection)
    await connection.close()


async def test_a_role_without_rights_is_told_so(database_url: str) -> None:
    """verify says what to grant."""
    connection = await connected(database_url)
    await connection.execute("drop role if exists nobody_here; create role nobody_here; set role nobody_here")
    with pytest.raises(SchemaError, match="grant it usage"):
        await verify(connection)
    await connection.execute("reset role; drop role nobody_here")
    await connection.close()


async def test_a_failed_migration_leaves_nothing(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing: not even the schema stays."""
    from duly.schema import install

    connection = await connected(empty_database_url)
    with monkeypatch.context() as patched:
        patched.setattr(install, "function_sources", lambda: ["select 1/0"])
        with pytest.raises(asyncpg.DivisionByZeroError):
            await migrate(connection)
    assert await connection.fetchval("select to_regnamespace('duly') is null")
    assert (await migrate(connection)).after == LATEST
    await connection.close()


@pytest.mark.parametrize("name", ["", "1a", "Ab", "a-b", "pg_x", "a" * 41, "a.b", 'a"b', "a;b", "ä"])
def test_an_unusable_schema_name_is_refused(name: str) -> None:
    """Nothing that would need quoting ever reaches SQL."""
    with pytest.raises(InvalidInputError):
        checked_name(name)


def test_only_qualifiers_are_renamed() -> None:
    """`duly.` at the start of a word."""
    assert named("select duly.claim(1), '_duly.x', 'duly'", "cell") == "select cell.claim(1), '_duly.x', 'duly'"


async def test_an_unreachable_database_is_named_so(database_url: str) -> None:
    """A wrong port or database: DatabaseUnavailableError."""
    for url in ("postgresql://nobody@127.0.0.1:1/x", database_url.replace("/test_", "/missing_")):
        with pytest.raises(DatabaseUnavailableError):
            await Database.open(url)


async def test_a_connection_cut_off_in_the_middle_of_a_statement_is_an_unavailable_database(
    database: Database, database_url: str
) -> None:
    """In our words, whether the server ends it or the network does; the next statement asks a fresh connection."""
    async with proxied(database_url) as proxy, await Database.open(proxy.url, max_size=1, name="cut-off") as db:
        for how in ("terminated", "cut"):
            sleeping = asyncio.create_task(db.fetchval("select pg_sleep(60)"))
            pid = "select pid from pg_stat_activity where application_name = 'cut-off' and wait_event = 'PgSleep'"
            found = await until(lambda pid=pid: database.fetchval(pid))  # type: ignore[misc]
            if how == "cut":
                proxy.cut()
            else:
                await database.fetchval("select pg_terminate_backend($1)", found)
            with pytest.raises(DatabaseUnavailableError):
                await sleeping
            assert await db.fetchval("select 1") == 1


async def test_every_connection_reads_committed(cluster: Any, database_url: str) -> None:
    """Whatever the database's default: forced at connect."""
    connection = await connected(database_url)
    name = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    await connection.close()
    async with await Database.open(database_url) as db:
        assert await db.fetchval("show transaction_isolation") == "read committed"
        async with db.transaction() as session:
            assert await session.fetchval("show transaction_isolation") == "read committed"


FAULTS = {
    "jobs_nowhere": "delete from duly.ready",
    "jobs_in_several_places": """insert into duly.outcome (job_id, account_id, state, attempt, final_attempt)
                                 select job_id, account_id, 'dead', 1, 1 from duly.ready""",
    "places_without_job": """insert into duly.scheduled
                             (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, trigger)
                             values (duly.uuid7(), 1, 5, 1, 1, now(), 1, 'schedule')""",
    "ready_in_retired_segments": "select setval('duly.ready_floor', 99)",
    "unique_keys_held_twice": "update duly.job set unique_key = 'k', unique_for = 'until_final'",
    "leases_in_retired_segments": "insert into duly.retired (line, segment) select 'lease', segment from duly.lease",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_conservation_notices_each_kind_of_fault(database: Database, fault: str) -> None:
    """Made by hand, one at a time, and only that one is reported."""
    engine = await Engine.start(database)
    await engine.running()
    await engine.enqueue()
    assert (await engine.sound()).holds
    await database.execute(FAULTS[fault])
    count = await queue.conservation(database)
    assert count.faults == {fault: 1}
    assert not count.holds


async def test_conservation_notices_a_retired_number_that_is_listed(database: Database) -> None:
    """Above the floor, by the list, for ready too; and a job under two states of motion."""
    engine = await Engine.start(database)
    await engine.enqueue()
    await database.execute("insert into duly.retired (line, segment) values ('ready', 1)")
    assert (await queue.conservation(database)).faults == {"ready_in_retired_segments": 1}


async def test_conservation_counts_each_place(database: Database) -> None:
    """All six states at once."""
    engine = await Engine.start(database)
    for edge in ("succeeded", "dead", "cancelled"):
        await engine.finish(await engine.running(), edge)
    await engine.running()
    await engine.enqueue(2)
    await engine.enqueue(delay=timedelta(hours=1))
    count = await engine.sound()
    assert (count.jobs, count.scheduled, count.ready, count.running) == (7, 1, 2, 1)
    assert (count.succeeded, count.dead, count.cancelled) == (1, 1, 1)
