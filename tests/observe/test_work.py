"""What a worker tells of its work, and that the labels are bounded whatever tenants name their queues."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from prometheus_client import CollectorRegistry

from duly.model import Bury, ClaimedJob, DeadReason, Outcome, Report, Retry, State, Success
from duly.observe.labels import OTHER, Bounded
from duly.observe.work import QUEUES_AT_MOST, WorkMetrics
from duly.queue import Database, Rescued
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from observe.conftest import Value
from support.engine import Engine, settled, settled_attempt
from support.sessions import held_up, somebody_waits, until, until_true
from support.working import Holding, state_becomes, working

SECOND = timedelta(seconds=1)


async def test_attempts_are_told_as_the_ledger_has_them(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value
) -> None:
    """A success, a failure that is retried, a target that is refused, and an end as a dead letter."""
    seen = WorkMetrics(registry)
    engine = await Engine.start(database)
    answers: dict[str, Outcome] = {
        "good": Success(None, Report("success", status_code=200, duration=SECOND / 5)),
        "bad": Retry(Report("http_error", "503", 503)),
        "refused": Retry(Report("target_not_allowed", "no")),
        "gone": Bury(DeadReason.TARGET_GONE, Report("http_error", "410", 410)),
        "bare": Success(),
    }

    async def handler(job: ClaimedJob) -> Outcome:
        return answers[job.queue]

    async with working(database, database_url, {"k": handler}, observer=seen) as it:
        for name in answers:
            await engine.enqueue(2, queue=name)
        await until_true(lambda: it.worker._settler.settled_total == 10)
    assert value("duly_attempts_total", outcome="success") == 4
    assert value("duly_attempts_total", outcome="http_error") == 4
    assert value("duly_targets_refused_total") == value("duly_attempts_total", outcome="target_not_allowed") == 2
    assert value("duly_jobs_dead_total", reason="target_gone") == 2
    assert value("duly_jobs_dead_total", reason="worker_lost") == 0
    assert value("duly_jobs_settled_total", way="succeeded") == 4
    assert value("duly_jobs_settled_total", way="retry") == 4
    assert value("duly_jobs_claimed_total", queue="good") == 2
    assert value("duly_start_delay_seconds_count", queue="bad") == 2
    assert value("duly_settle_batch_size_sum") == 10
    assert value("duly_attempt_seconds_count") == 2
    assert value("duly_attempt_seconds_sum") == 0.4
    claims, settles = value("duly_claim_seconds_count"), value("duly_settle_seconds_count")
    assert claims is not None
    assert settles is not None
    assert claims >= 1
    assert settles >= 1


async def test_the_start_delay_is_that_of_the_first_claim_by_the_database(
    database: Database, registry: CollectorRegistry, value: Value
) -> None:
    """From the job's time on; a retry tells nothing of it."""
    seen = WorkMetrics(registry)
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(delay=timedelta(hours=1))
    await database.execute("update duly.job set run_at = now() - interval '40 seconds'")
    await engine.due_now(job_id)
    job = await engine.claim_one()
    seen.claimed([job], 0.001)
    seen.claimed([job._replace(attempt=2)], 0.001)
    assert value("duly_start_delay_seconds_count", queue="default") == 1
    delay = value("duly_start_delay_seconds_sum", queue="default")
    assert delay is not None
    assert 40 <= delay < 60


async def test_a_lost_lease_counts_as_refused_and_nothing_else(registry: CollectorRegistry, value: Value) -> None:
    """What the database did not take did not happen."""
    seen = WorkMetrics(registry)
    lost, kept = uuid4(), uuid4()
    seen.settled([settled_attempt(job_id, 1, "succeeded") for job_id in (lost, kept)], frozenset({lost}), 0.01)
    assert value("duly_settles_refused_total") == 1
    assert value("duly_jobs_settled_total", way="succeeded") == 1
    assert value("duly_settle_batch_size_sum") == 2


async def test_expired_leases_are_told(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value
) -> None:
    """By the upkeep that found them: what the worker lost, and what died of it."""
    seen = WorkMetrics(registry)
    engine = await Engine.start(database, lease=SECOND)
    await engine.running(max_attempts=1)
    await engine.expire_worker()
    upkeep = Upkeep(database, Wakeups(database_url), on_rescued=seen.rescued)

    async def told() -> bool:
        await upkeep.rescue_step()
        return value("duly_leases_expired_total", outcome="worker_lost") == 1

    await until(told)
    assert value("duly_attempts_total", outcome="worker_lost") == 1
    assert value("duly_jobs_dead_total", reason="worker_lost") == 1
    seen.rescued([Rescued(uuid4(), 1, 1, "timeout", "dead"), Rescued(uuid4(), 1, 1, "timeout", "scheduled")])
    assert value("duly_leases_expired_total", outcome="timeout") == 2
    assert value("duly_jobs_dead_total", reason="attempts_exhausted") == 1


async def test_slots_are_told_while_jobs_run(
    database: Database, database_url: str, registry: CollectorRegistry, value: Value
) -> None:
    """Utilisation is what is used over what there is; what a claim asks for is not used."""
    seen = WorkMetrics(registry)
    engine = await Engine.start(database)
    handler = Holding()
    async with working(database, database_url, {"k": handler}, concurrency=5, observer=seen) as it:
        seen.watch_slots(5, lambda: it.worker.held)
        assert value("duly_worker_slots") == 5
        async with held_up(database_url, "lease"):
            [one, two] = await engine.enqueue(2)
            await somebody_waits(database)
            assert value("duly_worker_slots_used") == 0
        await until_true(lambda: len(handler.started) == 2)
        await until_true(lambda: value("duly_worker_slots_used") == 2)
        handler.go.set()
        for job_id in (one, two):
            await state_becomes(engine, job_id, State.SUCCEEDED)
        await until_true(lambda: value("duly_worker_slots_used") == 0)


def test_the_first_values_have_labels_of_their_own() -> None:
    """The others share one, which no queue can have; known ones stay what they were."""
    bounded = Bounded(2)
    assert [bounded(name) for name in ("a", "b", "c", "a", "d", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]


async def test_a_thousand_queues_are_not_a_thousand_series(database: Database, registry: CollectorRegistry) -> None:
    """Tenants name queues; the number of series does not follow them."""
    seen = WorkMetrics(registry)
    engine = await Engine.start(database)
    job = await engine.running()
    seen.claimed([job._replace(queue=f"tenant-{n}") for n in range(1000)], 0.01)
    for n in range(1000):
        one = settled(job, "retry", report=Report(f"strange {n}"))
        seen.settled([one], frozenset(), 0.01)
    series = [s for family in registry.collect() for s in family.samples]
    named = {s.labels["queue"] for s in series if "queue" in s.labels}
    assert len(named) == QUEUES_AT_MOST + 1
    assert len(series) < 1200
