"""The database's figures behind a scrape: read rarely, within a limit, and never at the cost of the others."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from duly import queue
from duly.model import Hold, Outcome, Success
from duly.observe.breakers import BreakerMetrics
from duly.observe.database import DatabaseMetrics
from duly.queue import Database, breaker
from duly.service import create_account, put_plan
from duly.service.breaking import Breaker
from observe.conftest import Value
from support.engine import Engine
from support.proxy import proxied
from support.schedules import scheduled
from support.sessions import holding

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Clock:
    """Goes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_what_is_read_is_told(database: Database, registry: CollectorRegistry, value: Value) -> None:
    """Depth by state, ages, segments, workers, breakers."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    await engine.enqueue(2, delay=HOUR)
    await database.execute("update duly.ready set run_at = now() - interval '100 seconds'")
    await breaker.open_breaker(database, engine.owner.account_id, "h", 20, None, HOUR, HOUR)
    metrics = DatabaseMetrics(registry)
    metrics.watch(database)
    assert value("duly_database_up") == 0
    assert value("duly_jobs", state="ready") is None
    await metrics.refresh()
    assert value("duly_database_up") == 1
    assert [value("duly_jobs", state=state) for state in ("ready", "scheduled", "running", "dead")] == [3, 2, 0, 0]
    assert value("duly_jobs_are_estimated", state="ready") == 0
    assert value("duly_jobs_are_estimated", state="finished") == 1
    assert value("duly_jobs_finished_estimate") == 0
    oldest = value("duly_oldest_due_seconds")
    assert oldest is not None
    assert 100 <= oldest < 150
    assert (value("duly_workers"), value("duly_slots"), value("duly_breakers_open")) == (1, 100, 1)
    assert value("duly_live_segments", line="ready") == 1
    assert value("duly_dead_rows", table="lease") is not None
    assert value("duly_oldest_snapshot_seconds", kind="", name="", role="") == 0
    assert value("duly_oldest_snapshot_pid") == 0


async def test_the_session_that_holds_the_oldest_snapshot_is_named(
    database: Database, database_url: str, registry: CollectorRegistry
) -> None:
    """FO-044: how old, and whose; one series, whoever it is."""
    metrics = DatabaseMetrics(registry)
    metrics.watch(database)
    async with holding(database_url, "repeatable_read") as (reader, _):
        await reader.execute("set application_name = 'a report'")
        await reader.fetchval("select count(*) from duly.job")
        await database.execute("select pg_current_xact_id()")
        pid = reader.connection.get_server_pid()
        await metrics.refresh()
    samples = {s.name: s for family in registry.collect() for s in family.samples if "snapshot" in s.name}
    assert samples["duly_oldest_snapshot_seconds"].labels["name"] == "a report"
    assert samples["duly_oldest_snapshot_seconds"].labels["kind"] == "session"
    assert samples["duly_oldest_snapshot_transactions"].value >= 1
    assert samples["duly_oldest_snapshot_pid"].value == pid


async def test_asking_often_reads_rarely(
    database: Database, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty scrapes at once and fifty in a row are one look; after a while it is another."""
    looked = 0
    really = queue.figures

    async def counting(db: Database) -> queue.Figures:
        nonlocal looked
        looked += 1
        return await really(db)

    monkeypatch.setattr(queue, "figures", counting)
    clock = Clock()
    metrics = DatabaseMetrics(registry, every=5 * SECOND, clock=clock)
    metrics.watch(database)
    await asyncio.gather(*(metrics.refresh() for _ in range(50)))
    for _ in range(50):
        await metrics.refresh()
    clock.now += 4.9
    await metrics.refresh()
    assert looked == 1
    clock.now += 0.2
    await metrics.refresh()
    assert looked == 2


@pytest.mark.parametrize("mode", ["black_hole", "refuse"])
async def test_without_the_database_the_answer_comes_all_the_same(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value, mode: str
) -> None:
    """Within the limit, with what the process knows; no old figures; and all is well again when the database is."""
    clock = Clock()
    metrics = DatabaseMetrics(registry, limit=SECOND / 2, clock=clock)
    async with proxied(database_url) as proxy, await Database.open(proxy.url, max_size=1) as db:
        metrics.watch(db)
        await metrics.refresh()
        assert value("duly_database_up") == 1
        proxy.mode = mode  # type: ignore[assignment]
        proxy.cut()
        clock.now += 10
        before = time.monotonic()
        await metrics.refresh()
        assert time.monotonic() - before < 5
        assert value("duly_database_up") == 0
        assert value("duly_jobs", state="ready") is None
        assert value("duly_parts_in_trouble") == 1
        proxy.mode = "pass"
        clock.now += 10
        await metrics.refresh()
        assert (value("duly_database_up"), value("duly_parts_in_trouble")) == (1, 0)


async def test_a_lock_on_everything_holds_a_scrape_up_no_longer_than_its_limit(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value
) -> None:
    """A migration that holds the table, say."""
    metrics = DatabaseMetrics(registry, limit=SECOND / 2)
    metrics.watch(database)
    async with holding(database_url) as (session, _):
        await session.execute("lock table duly.ready in access exclusive mode")
        before = time.monotonic()
        await metrics.refresh()
        assert time.monotonic() - before < 5
    assert value("duly_database_up") == 0


async def test_schedules_are_told(database: Database, registry: CollectorRegistry, value: Value) -> None:
    """FO-054: by state, and those that should have fired; read anew after a while of their own."""
    clock = Clock()
    metrics = DatabaseMetrics(registry, every=5 * SECOND, schedules_every=15 * SECOND, clock=clock)
    metrics.watch(database)
    assert value("duly_schedules", state="active") is None
    await scheduled(database)
    await scheduled(database, state="parked")
    await metrics.refresh()
    assert [value("duly_schedules", state=state) for state in ("active", "paused", "parked")] == [1, 0, 1]
    assert (value("duly_schedules_overdue"), value("duly_schedule_late_seconds")) == (0, 0)
    await scheduled(database, late=HOUR)
    clock.now += 10
    await metrics.refresh()
    assert value("duly_schedules_overdue") == 0
    clock.now += 10
    await metrics.refresh()
    assert value("duly_schedules_overdue") == 1
    late = value("duly_schedule_late_seconds")
    assert late is not None
    assert 3600 <= late < 3700


async def test_schedules_that_cannot_be_read_keep_nothing_else_back(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value
) -> None:
    """The other figures are told, and that a part is in trouble."""
    clock = Clock()
    metrics = DatabaseMetrics(registry, limit=SECOND / 2, clock=clock)
    metrics.watch(database)
    async with holding(database_url) as (session, _):
        await session.execute("lock table duly.schedule_turn in access exclusive mode")
        await metrics.refresh()
        assert value("duly_database_up") == 1
        assert value("duly_jobs", state="ready") == 0
        assert value("duly_schedules_overdue") is None
        assert value("duly_parts_in_trouble") == 1
    clock.now += 20
    await metrics.refresh()
    assert (value("duly_schedules_overdue"), value("duly_parts_in_trouble")) == (0, 0)


async def test_the_breaker_of_the_process_is_told(
    database: Database, registry: CollectorRegistry, value: Value
) -> None:
    """Zeros before there is one; then its own counters."""
    metrics = BreakerMetrics(registry)
    assert value("duly_breakers_opened_total") == 0
    engine = await Engine.start(database)
    job = await engine.running(payload={"url": "http://h.example/"})
    await breaker.open_breaker(database, job.account_id, "h.example", 20, None, HOUR, HOUR)
    it = Breaker(database)
    metrics.watch(it)
    await it.look()

    async def send() -> Outcome:
        return Success()

    assert isinstance(await it.deliver(job, send), Hold)
    assert value("duly_breakers_known_open") == 1
    assert value("duly_deliveries_held_total") == 1
    assert value("duly_breaker_probes_total") == 0


async def test_quotas_are_told_by_numbers_of_accounts(
    database: Database, registry: CollectorRegistry, value: Value
) -> None:
    """By what applies, a plan's quota or an account's own; an account without one, or with one of 0, does not count."""
    metrics = DatabaseMetrics(registry)
    metrics.watch(database)
    await put_plan(database, "small", {"monthly_quota": 10})
    for name, plan, limits, taken in (
        ("met", "small", {}, 10),
        ("near", "small", {"monthly_quota": 100}, 85),
        ("far", "small", {}, 1),
        ("none", "small", {"monthly_quota": None}, 0),
        ("closed", None, {"monthly_quota": 0}, 0),
    ):
        account = await create_account(database, name, plan=plan, limits=limits)
        number = await database.fetchval("select id from duly.account where public_id = $1", account.id)
        if taken:
            await queue.take_quota(database, number, 100, taken, 0)
    await metrics.refresh()
    assert [value("duly_quota_accounts", use=use) for use in ("any", "near", "met")] == [3, 2, 1]
    assert value("duly_quota_highest_ratio") == 1
