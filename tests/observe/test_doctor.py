"""The doctor finds each sickness that a database can be given, says what to do, and finds nothing where nothing is."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from duly import queue
from duly.embedded import EmbeddedPostgres
from duly.observe.examining import Table, examine
from duly.observe.finding import Finding, worst
from duly.observe.findings import findings
from duly.observe.probing import is_pooled, listen_works
from duly.queue import Database, QueueSettings, breaker
from duly.schema import migrate
from support.engine import Engine, new_worker
from support.pooler import pooled
from support.roles import alter_database
from support.schedules import scheduled
from support.sessions import holding

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)
OF_THE_TESTS = {"settings.fsync", "settings.full_page_writes"}
"""The tests' own server is not made to survive a crash of the machine."""


async def found(db: Database, url: str, keys: set[str] | None = None) -> dict[str, Finding]:
    """Code → finding, the last of each code, but for those of the tests' own server."""
    seen = await examine(db, url)
    return {f.code: f for f in findings(seen, keys) if f.code not in OF_THE_TESTS}


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.start(database, HOUR)


async def test_a_sound_system_has_no_findings(database: Database, database_url: str, engine: Engine) -> None:
    """With jobs in every state and a living worker."""
    await engine.enqueue(3)
    await engine.enqueue(3, delay=HOUR)
    jobs = await engine.claim(2)
    await engine.finish(jobs[0], "dead")
    seen = await examine(database, database_url)
    assert [f for f in findings(seen, set()) if f.code not in OF_THE_TESTS] == []
    assert seen.unread == {}
    assert (seen.is_pooled, seen.listen_works) == (False, True)
    assert seen.server is not None
    assert seen.server.connections >= 1


async def test_a_server_that_may_lose_jobs_is_critical(database: Database, database_url: str, engine: Engine) -> None:
    """fsync and full_page_writes are off in the tests' server; synchronous_commit by the database's setting."""
    await alter_database(database_url, "set synchronous_commit = off")
    async with await Database.open(database_url, max_size=2) as db:
        told = findings(await examine(db, database_url), None)
    by_code = {f.code: f for f in told}
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert by_code[f"settings.{name}"].severity == "critical"
    assert "acknowledged" in by_code["settings.synchronous_commit"].means
    assert told[0].severity == "critical"


async def test_a_job_that_is_nowhere(database: Database, database_url: str, engine: Engine) -> None:
    """The ledger does not add up."""
    await engine.enqueue()
    await database.execute("delete from duly.ready")
    it = (await found(database, database_url))["ledger"]
    assert (it.severity, it.what) == ("critical", "jobs nowhere: 1")
    quick = await examine(database, database_url, with_ledger=False)
    assert quick.conservation is None
    assert "ledger" not in {f.code for f in findings(quick, None)}


async def test_a_read_only_database(database: Database, database_url: str, engine: Engine) -> None:
    """As a standby is, or by a setting: what is to be found out by reading still is."""
    await alter_database(database_url, "set default_transaction_read_only = on")
    async with await Database.open(database_url, max_size=2) as db:
        told = await found(db, database_url)
    assert told["server.read_only"].severity == "critical"


async def test_short_time_outs(database: Database, database_url: str, engine: Engine) -> None:
    """Which the role or the database brings along."""
    await alter_database(database_url, "set statement_timeout = '2s'")
    async with await Database.open(database_url, max_size=2) as db:
        told = await found(db, database_url)
    assert told["settings.timeouts"].what == "statement_timeout is 2 s for this role"


async def test_autovacuum_that_is_off_for_a_table(database: Database, database_url: str, engine: Engine) -> None:
    """The table is named."""
    await database.execute("alter table duly.ready set (autovacuum_enabled = off)")
    it = (await found(database, database_url))["settings.autovacuum"]
    assert (it.severity, it.what) == ("warning", "autovacuum is off for duly.ready")


async def test_rights_that_are_missing(database: Database, database_url: str, engine: Engine) -> None:
    """Each by its name: a table's, a function's, a sequence's; and that other sessions are not seen."""
    connection = await asyncpg.connect(database_url)
    name = f"doctor_{connection.get_server_pid()}"
    try:
        await connection.execute(f"create role {name} login")
        await connection.execute(f"grant usage on schema duly to {name}")
        await connection.execute(f"grant select, insert, update, delete on all tables in schema duly to {name}")
        await connection.execute(f"grant usage, select, update on all sequences in schema duly to {name}")
        url = urlunsplit(urlsplit(database_url)._replace(netloc=f"{name}@"))
        async with await Database.open(url, max_size=2) as db:
            sound = await found(db, url)
            await connection.execute(f"revoke insert on duly.outcome from {name}")
            await connection.execute(f"revoke update on sequence duly.idle_until from {name}")
            await connection.execute("revoke execute on function duly.advance() from public")
            lacking = [f.what for f in findings(await examine(db, url), None) if f.code == "grants"]
            await connection.execute(f"revoke select on duly.worker from {name}")
            blind = await examine(db, url)
        assert set(sound) == {"grants.monitor"}
        assert lacking == [
            "this role may not execute duly.advance",
            "this role may not insert duly.outcome",
            "this role may not update the sequence duly.idle_until",
        ]
        assert "permission denied" in blind.unread["workers"]
        assert "unread" in {f.code for f in findings(blind, None)}
        assert blind.conservation is not None
    finally:
        await connection.execute(f"drop owned by {name}")
        await connection.execute(f"drop role {name}")
        await connection.close()


async def test_a_clock_that_is_wrong(
    database: Database, database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor's machine against the database: by the database's clock, as a skewed answer of it."""
    really = queue.server_now

    async def an_hour_ago(db: queue.Executor) -> object:
        return await really(db) - HOUR

    monkeypatch.setattr(queue, "server_now", an_hour_ago)
    it = (await found(database, database_url))["clock"]
    assert it.severity == "warning"
    assert "ahead of the database's" in it.what


@pytest.mark.parametrize("index", ["ready_line", "lease_line", "scheduled_by_time", "lease_to_abort"])
async def test_an_index_that_is_gone_or_invalid(
    index: str, database: Database, database_url: str, engine: Engine
) -> None:
    """The plan that every claim rests on is not chosen any more."""
    await database.execute(f"update pg_index set indisvalid = false where indexrelid = 'duly.{index}'::regclass")
    it = (await found(database, database_url))["plans"]
    assert it.severity == "critical"
    assert f"not {index}" in it.what
    await database.execute(f"update pg_index set indisvalid = true where indexrelid = 'duly.{index}'::regclass")
    await database.execute(f"drop index duly.{index}")
    assert "plans" in await found(database, database_url)


@pytest.mark.parametrize("rows", [1, 60, 300, 3000])
async def test_the_plans_of_small_tables(rows: int, database: Database, database_url: str, engine: Engine) -> None:
    """On a table of a page or two any index is as cheap: that is nobody's trouble, analyzed or not."""
    await engine.enqueue(rows, delay=timedelta(hours=2))
    await engine.enqueue(rows)
    assert "plans" not in await found(database, database_url)
    await database.execute("analyze")
    assert "plans" not in await found(database, database_url)


async def test_a_snapshot_that_is_held(database: Database, database_url: str, engine: Engine) -> None:
    """FO-044: whoever holds it is named, with how to end it. A young one is nobody's trouble."""
    async with holding(database_url, "repeatable_read") as (reader, _):
        await reader.execute("set application_name = 'a report'")
        await reader.fetchval("select count(*) from duly.job")
        pid = reader.connection.get_server_pid()
        seen = await examine(database, database_url)
    [holder] = [h for h in seen.holders if h.name == "a report"]
    assert "snapshot" not in {f.code for f in findings(seen, None)}
    seen.holders = [replace(holder, seconds=1000.0)]
    [it] = [f for f in findings(seen, None) if f.code == "snapshot"]
    assert it.what.startswith(f"session 'a report' of {holder.role}, pid {pid}, idle in transaction holds vacuum back")
    assert it.do == f"If nobody needs it: select pg_terminate_backend({pid})"


async def test_partitions_that_are_missing(database: Database, database_url: str, engine: Engine) -> None:
    """Tomorrow's is a warning, today's is critical."""
    day = await database.fetchval("select to_char((clock_timestamp() at time zone 'utc')::date + 1, 'YYYYMMDD')")
    await database.execute(f"drop table duly.attempt_{day}")
    tomorrow = (await found(database, database_url))["partitions"]
    assert tomorrow.severity == "warning"
    today = await database.fetchval("select to_char((clock_timestamp() at time zone 'utc')::date, 'YYYYMMDD')")
    await database.execute(f"drop table duly.outcome_{today}")
    seen = await examine(database, database_url)
    assert [f.severity for f in findings(seen, None) if f.code == "partitions"] == ["critical", "warning"]


async def test_no_worker_and_workers_that_are_late_or_lost(
    database: Database, database_url: str, engine: Engine
) -> None:
    """None at all is critical; one that renews late is a warning; one that is gone without a word a note."""
    late, lost = await new_worker(database, HOUR, "late"), await new_worker(database, HOUR, "lost")
    await database.execute("update duly.worker set heartbeat_at = now() - interval '40 minutes' where id = $1", late)
    await database.execute(
        """update duly.worker set heartbeat_at = now() - interval '90 seconds',
                                  lease_expires_at = now() - interval '30 seconds' where id = $1""",
        lost,
    )
    await database.execute(
        "update duly.worker set lease_expires_at = heartbeat_at + interval '1 hour' where id = $1", late
    )
    told = await found(database, database_url)
    assert "worker late" in told["workers.late"].what
    assert "worker lost" in told["workers.lost"].what
    assert "workers" not in told
    await database.execute("delete from duly.worker")
    assert (await found(database, database_url))["workers"].severity == "critical"


async def test_due_jobs_that_nobody_serves(database: Database, database_url: str, engine: Engine) -> None:
    """By kind, and by queue; not those of a paused queue, and not while there is no worker at all."""
    await engine.enqueue(2, kind="mail")
    await engine.enqueue(3, queue="reports")
    await engine.enqueue(1, queue="paused", kind="mail")
    await queue.set_queue(database, engine.owner.project_id, "paused", QueueSettings(None, None, True))
    await database.execute("update duly.worker set queues = '{default}'")
    seen = await examine(database, database_url)
    assert {(u.kind, u.queue, u.jobs) for u in seen.unserved} == {("mail", "default", 2), ("k", "reports", 3)}
    assert {f.severity for f in findings(seen, None) if f.code == "unserved"} == {"critical"}
    await new_worker(database, HOUR)
    await database.execute("update duly.worker set kinds = '{k,mail}' where queues is null")
    assert (await examine(database, database_url)).unserved == []
    await database.execute("delete from duly.worker")
    assert set(await found(database, database_url)) == {"workers"}


async def test_jobs_that_are_late_although_somebody_serves_them(
    database: Database, database_url: str, engine: Engine
) -> None:
    """And a promoter that nobody runs."""
    await engine.enqueue()
    await engine.enqueue(delay=HOUR)
    await database.execute("update duly.ready set run_at = now() - interval '20 minutes'")
    await database.execute("select setval('duly.promote_at', (extract(epoch from now()) * 1000)::bigint - 600000)")
    told = await found(database, database_url)
    assert told["late"].severity == "warning"
    assert told["promoter"].severity == "critical"


async def test_open_breakers_and_missing_keys(database: Database, database_url: str, engine: Engine) -> None:
    """A note with the hosts; and each key that jobs wait for, where it is known which keys there are."""
    await breaker.open_breaker(database, 1, "down.example", 20, None, HOUR, HOUR)
    await engine.enqueue(payload={"url": "http://h/", "sealed": {"key": "old"}})
    told = await found(database, database_url, {"new"})
    assert "down.example" in told["breakers"].what
    assert told["breakers"].severity == "note"
    assert told["keys"].what == "encryption key old is missing: 1 unfinished jobs need it"
    assert set(await found(database, database_url, {"new", "old"})) == {"breakers"}
    assert set(await found(database, database_url)) == {"breakers"}


async def test_connections_that_run_out(database: Database, database_url: str, engine: Engine) -> None:
    """Before the next worker cannot start."""
    seen = await examine(database, database_url)
    assert seen.server is not None
    seen.server = replace(seen.server, connections=seen.server.max_connections - 5)
    [it] = [f for f in findings(seen, None) if f.code == "connections"]
    assert it.severity == "warning"


@pytest.fixture(scope="module")
def two_phase() -> Iterator[EmbeddedPostgres]:
    """A server that knows prepared transactions and replication slots."""
    home = Path(tempfile.mkdtemp(prefix="duly-test-", dir="/tmp"))
    home.chmod(0o755)
    settings = {
        "max_connections": "40",
        "shared_buffers": "32MB",
        "max_prepared_transactions": "4",
        "wal_level": "replica",
        "autovacuum": "off",
    }
    server = EmbeddedPostgres(home, settings=settings)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def two_phase_db(two_phase: EmbeddedPostgres) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(two_phase.dsn())
    await migrate(connection)
    await connection.close()
    async with await Database.open(two_phase.dsn(), max_size=2) as db:
        yield db


async def test_prepared_transactions_and_a_server_without_autovacuum(
    two_phase: EmbeddedPostgres, two_phase_db: Database
) -> None:
    """A prepared transaction that nobody ends holds vacuum back for ever, though no session is there to be seen."""
    connection = await asyncpg.connect(two_phase.dsn())
    await connection.execute("begin; create table forgotten (); prepare transaction 'of a batch'")
    await connection.execute("select pg_current_xact_id()")
    try:
        seen = await examine(two_phase_db, two_phase.dsn())
        [holder] = [h for h in seen.holders if h.kind == "prepared transaction"]
        assert (holder.name, holder.pid) == ("of a batch", None)
        seen.holders = [replace(holder, seconds=3600.0)]
        told = {f.code: f for f in findings(seen, None)}
        assert "rollback prepared 'of a batch'" in told["snapshot"].do
        assert told["settings.autovacuum"].severity == "critical"
        assert "settings.fsync" not in told
    finally:
        await connection.execute("rollback prepared 'of a batch'")
        await connection.close()


async def test_a_pooler_in_transaction_mode(database: Database, database_url: str, engine: Engine) -> None:
    """It lends the backend of one connection to another, and keeps notifications from who waits for them."""
    async with pooled(database_url) as pooler:
        assert await is_pooled(pooler.url)
        assert not await listen_works(pooler.url, "duly")
        told = {f.code: f for f in findings(await examine(database, pooler.url), None)}
    assert told["pooler"].severity == "warning"
    assert "listen" not in told


async def test_notifications_that_do_not_arrive(database: Database, database_url: str, engine: Engine) -> None:
    """Through whatever keeps them; and a queue of them that fills."""
    seen = await examine(database, database_url)
    assert seen.figures is not None
    seen.listen_works = False
    for usage, severity in ((0.2, "warning"), (0.7, "critical")):
        seen.figures = replace(seen.figures, notification_queue_usage=usage)
        told = {f.code: f for f in findings(seen, None)}
        assert told["listen"].severity == "warning"
        assert told["notifications"].severity == severity


async def test_schedules_that_do_not_fire(database: Database, database_url: str, engine: Engine) -> None:
    """FO-054: overdue is a warning at first, critical when it lasts; parked a warning."""
    await scheduled(database, late=timedelta(seconds=30))
    await scheduled(database, state="paused")
    assert await found(database, database_url) == {}
    await scheduled(database, late=timedelta(minutes=3))
    await scheduled(database, state="parked")
    told = await found(database, database_url)
    assert {code: it.severity for code, it in told.items()} == {
        "schedules.overdue": "warning",
        "schedules.parked": "warning",
    }
    await scheduled(database, late=HOUR)
    it = (await found(database, database_url))["schedules.overdue"]
    assert (it.severity, it.what[:43]) == ("critical", "2 schedules should have fired and did not, ")
    assert "one of them for 36" in it.what


async def test_what_cannot_be_made_here(database: Database, database_url: str, engine: Engine) -> None:
    """A lagging standby, its slot, a bloated table, old rows that nobody froze, a version at its end."""
    seen = await examine(database, database_url)
    assert seen.server is not None
    seen.holders = [
        queue.SnapshotHolder("replication slot", "gone", None, None, "inactive", None, 20_000_000),
        queue.SnapshotHolder("standby", "reports", "replica", 7, "streaming", None, 20_000_000),
    ]
    seen.tables = [Table("ready", 5 << 30, 1000, 90_000_000)]
    seen.server = replace(seen.server, frozen_age=1_500_000_000, major=15, now=datetime(2027, 11, 12, tzinfo=UTC))
    told = findings(seen, None)
    by_code = {f.code: f for f in told}
    ends = [f.do for f in told if f.code == "snapshot"]
    assert "pg_drop_replication_slot('gone')" in ends[0]
    assert "hot_standby_feedback" in ends[1]
    assert "replication slot 'gone', inactive holds it back" in by_code["bloat"].what
    assert by_code["server.wraparound"].severity == "critical"
    assert by_code["server.version"].severity == "warning"
    seen.server = replace(seen.server, now=datetime(2027, 8, 1, tzinfo=UTC))
    assert {f.code: f for f in findings(seen, None)}["server.version"].severity == "note"


async def test_a_database_that_goes_away_meanwhile(database_url: str) -> None:
    """Every part says that it was not read; nothing is raised."""
    db = await Database.open(database_url, max_size=1)
    await db.close()
    seen = await examine(db, "postgresql://nobody@127.0.0.1:1/x")
    assert len(seen.unread) >= 15
    told = findings(seen, set())
    assert {f.code for f in told} == {"unread", "workers"}


def test_every_code_is_in_the_reference() -> None:
    """With its severity and what it means."""
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text()
    told = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    source = "".join(
        (ROOT / "src" / "duly" / "observe" / f"{name}_rules.py").read_text() for name in ("server", "work")
    )
    codes = set(re.findall(r"Finding\(\s*f?\"([\w.{}]+)\"", source))
    codes = codes - {"settings.{name}"} | {"settings.fsync", "settings.full_page_writes", "settings.synchronous_commit"}
    assert told == codes


def test_the_worst_that_nobody_accepted_counts() -> None:
    """For the exit code."""
    told = [Finding("a", "critical", "", "", ""), Finding("b", "note", "", "", "")]
    assert worst(told, []) == "critical"
    assert worst(told, ["a"]) == "note"
    assert worst(told, ["a", "b"]) is None
    assert worst([], []) is None
