"""running → out: every edge, and every way to be refused."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from duly import queue
from duly.model import DeadReason, Report, Settlement, State, Trigger
from duly.model.settlement import Edge
from duly.queue import Database
from support.engine import Engine, new_worker, settled

HOUR = timedelta(hours=1)


async def test_a_success_is_final_and_recorded(database: Database) -> None:
    """succeeded, with its result; one attempt row with what the handler reported."""
    engine = await Engine.start(database)
    job = await engine.running()
    report = Report("success", None, 204, timedelta(milliseconds=12), b"\x00\xffok", True, {"phases": {"dns": 1.5}})
    await engine.finish(job, result={"answer": 42}, report=report)
    view = await engine.view(job.id)
    assert (view.state, view.reason, view.attempts, view.result) == (State.SUCCEEDED, None, 1, {"answer": 42})
    assert view.finished_at is not None
    attempt = await engine.last_attempt(job.id)
    assert (attempt.number, attempt.trigger, attempt.outcome, attempt.status_code) == (1, "schedule", "success", 204)
    assert (attempt.excerpt, attempt.worker_id, attempt.next_run_at) == (b"\x00\xffok", engine.worker_id, None)
    assert attempt.detail == {"phases": {"dns": 1.5}, "duration_ms": 12.0, "excerpt_truncated": True}
    assert attempt.started_at <= attempt.finished_at
    await engine.sound()


async def test_a_success_without_a_report_is_recorded_as_success(database: Database) -> None:
    """The shortest way: no report, no result."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job)
    assert await engine.attempts(job.id) == [(1, "schedule", "success")]
    assert (await engine.view(job.id)).result is None


async def test_a_retry_is_scheduled_under_the_next_number(database: Database) -> None:
    """scheduled after the delay by the database's clock; the budget stays; the row says when it goes on."""
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=3)
    before = await queue.server_now(database)
    await engine.finish(job, "retry", delay=HOUR, report=Report("timeout", error="slow", status_code=504))
    view = await engine.view(job.id)
    assert (view.state, view.attempts, view.final_attempt) == (State.SCHEDULED, 1, 3)
    assert (view.last_outcome, view.last_error, view.last_status_code) == ("timeout", "slow", 504)
    assert view.next_run_at is not None
    assert before + HOUR <= view.next_run_at <= await queue.server_now(database) + HOUR
    attempt = await engine.last_attempt(job.id)
    assert attempt.next_run_at == view.next_run_at
    await engine.due_now(job.id)
    again = await engine.claim_one()
    assert (again.attempt, again.final_attempt, again.trigger) == (2, 3, Trigger.RETRY)


async def test_a_snooze_does_not_use_up_the_budget(database: Database) -> None:
    """scheduled, the next number, a budget larger by one, and a row that says snoozed."""
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=1)
    await engine.finish(job, "snooze", delay=HOUR)
    view = await engine.view(job.id)
    assert (view.state, view.attempts, view.final_attempt) == (State.SCHEDULED, 1, 2)
    assert await engine.attempts(job.id) == [(1, "schedule", "snoozed")]
    await engine.due_now(job.id)
    again = await engine.claim_one()
    assert (again.attempt, again.final_attempt) == (2, 2)


async def test_a_bury_is_dead_for_its_reason(database: Database) -> None:
    """dead with the reason that was given."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, "dead", reason=DeadReason.TARGET_GONE)
    view = await engine.view(job.id)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "target_gone", 1)


async def test_an_expired_job_is_dead_and_never_ran(database: Database) -> None:
    """No report: no attempt row, and no attempt counted."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, "dead", reason=DeadReason.EXPIRED, report=None)
    view = await engine.view(job.id)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "expired", 0)
    assert await engine.attempts(job.id) == []


async def test_a_cancel_is_cancelled(database: Database) -> None:
    """The handler says that the job is not wanted any more."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, "cancelled")
    assert (await engine.view(job.id)).state == State.CANCELLED
    assert await engine.attempts(job.id) == [(1, "schedule", "cancelled")]


async def test_a_release_keeps_number_and_place(database: Database) -> None:
    """ready again as if it had never been claimed: same number, same time, no row."""
    engine = await Engine.start(database)
    first = await engine.running()
    await engine.enqueue()
    await engine.finish(first, "release")
    again = await engine.claim_one()
    assert (again.id, again.attempt, again.final_attempt, again.run_at, again.trigger) == (
        first.id,
        1,
        8,
        first.run_at,
        Trigger.SCHEDULE,
    )
    assert await engine.attempts(first.id) == []


async def test_interruptions_are_free_ten_times_and_count_after_that(database: Database) -> None:
    """Ten stops of a worker raise the budget each time; the eleventh uses it up: a job cannot be interrupted for
    ever.
    """
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=2)
    for n in range(1, 11):
        await engine.finish(job, "interrupted")
        job = await engine.claim_one()
        assert (job.attempt, job.final_attempt, job.trigger) == (n + 1, n + 2, Trigger.RECOVERY)
    await engine.finish(job, "interrupted")
    job = await engine.claim_one()
    assert (job.attempt, job.final_attempt) == (12, 12)
    await engine.finish(job, "interrupted")
    view = await engine.view(job.id)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "attempts_exhausted", 12)
    assert [outcome for _, _, outcome in await engine.attempts(job.id)] == ["interrupted"] * 12


async def test_a_wrong_attempt_is_refused(database: Database) -> None:
    """The fencing token: an attempt before or after the one under the lease changes nothing."""
    engine = await Engine.start(database)
    job = await engine.running()
    for attempt in (0, 2):
        assert await engine.settle(Settlement(job.id, attempt, "succeeded")) == {job.id}
    assert (await engine.view(job.id)).state == State.RUNNING
    assert await engine.attempts(job.id) == []


async def test_a_wrong_worker_is_refused(database: Database) -> None:
    """Another worker's name on the right token."""
    engine = await Engine.start(database)
    job = await engine.running()
    assert await engine.settle(settled(job, "succeeded"), worker=await new_worker(database)) == {job.id}
    assert (await engine.view(job.id)).state == State.RUNNING


@pytest.mark.parametrize(
    "edge", ["succeeded", "dead", "cancelled", "retry", "snooze", "interrupted", "release", "hold"]
)
async def test_a_second_settle_is_refused(database: Database, edge: Edge) -> None:
    """Whatever the first one wrote, the second one writes nothing."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, edge)
    before, attempts = await engine.view(job.id), await engine.attempts(job.id)
    for again in ("succeeded", "retry"):
        assert await engine.settle(settled(job, again)) == {job.id}
    assert await engine.view(job.id) == before
    assert await engine.attempts(job.id) == attempts
    await engine.sound()


async def test_an_unknown_job_is_refused(database: Database) -> None:
    """An id that never was."""
    engine = await Engine.start(database)
    unknown = uuid4()
    assert await engine.settle(Settlement(unknown, 1, "succeeded")) == {unknown}


async def test_nothing_to_settle_is_no_question(database: Database) -> None:
    """An empty batch refuses nothing."""
    engine = await Engine.start(database)
    assert await engine.settle() == frozenset()


async def test_a_late_worker_settles_what_nobody_took(database: Database) -> None:
    """Its lease time has passed but nothing was rescued yet: what it did counts."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.expire_worker()
    await engine.finish(job)
    assert (await engine.view(job.id)).state == State.SUCCEEDED


async def test_a_mixed_batch_takes_each_job_its_own_way(database: Database) -> None:
    """All seven edges and two refusals in one statement, each exactly as alone."""
    engine = await Engine.start(database)
    await engine.enqueue(8)
    jobs = await engine.claim()
    edges: tuple[Edge, ...] = ("succeeded", "dead", "cancelled", "retry", "snooze", "interrupted", "release")
    batch = [settled(job, edge, delay=HOUR) for job, edge in zip(jobs, edges, strict=False)]
    stranger = uuid4()
    batch += [Settlement(jobs[7].id, 9, "succeeded"), Settlement(stranger, 1, "dead", reason=DeadReason.PERMANENT)]
    assert await engine.settle(*batch) == {jobs[7].id, stranger}
    states = [(await engine.view(job.id)).state.value for job in jobs]
    assert states == ["succeeded", "dead", "cancelled", "scheduled", "scheduled", "ready", "ready", "running"]
    await engine.sound()


async def test_the_same_job_twice_in_a_batch_is_settled_once(database: Database) -> None:
    """One lease, one ending; it is not reported as refused."""
    engine = await Engine.start(database)
    job = await engine.running()
    assert await engine.settle(settled(job, "succeeded"), settled(job, "succeeded")) <= {job.id}
    assert len(await engine.attempts(job.id)) == 1
    await engine.sound()


async def test_an_old_attempt_in_the_same_batch_does_not_stand_before_the_one_that_runs(database: Database) -> None:
    """A worker that lost a job and claimed it again brings both outcomes at once: the one under the lease counts, in
    whatever order they stand.
    """
    engine = await Engine.start(database)
    for order in (1, -1):
        old = await engine.running()
        await engine.finish(old, "retry")
        await engine.due_now(old.id)
        now = await engine.claim_one()
        both = [settled(old, "dead"), settled(now, "succeeded")][::order]
        assert await engine.settle(*both) == {now.id}
        assert (await engine.view(now.id)).state == State.SUCCEEDED
    await engine.sound()


async def test_an_edge_that_does_not_exist_is_refused(database: Database) -> None:
    """A caller in another language makes a slip: the statement fails and the lease stands; the job is not lost."""
    engine = await Engine.start(database)
    job = await engine.running()
    with pytest.raises(asyncpg.CheckViolationError):
        await database.fetch(
            "select duly.settle($1, $2, $3, $4, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
            engine.worker_id,
            [job.id],
            [job.attempt],
            ["finished"],
        )
    assert (await engine.view(job.id)).state == State.RUNNING
    await engine.sound()


@pytest.mark.parametrize(
    ("edge", "state", "attempts"),
    [
        ("succeeded", "succeeded", 1),
        ("retry", "cancelled", 1),
        ("snooze", "cancelled", 1),
        ("interrupted", "cancelled", 1),
        ("release", "cancelled", 0),
        ("hold", "cancelled", 0),
        ("dead", "cancelled", 1),
        ("cancelled", "cancelled", 1),
    ],
)
async def test_after_a_requested_cancel_nothing_goes_on(
    database: Database, edge: Edge, state: str, attempts: int
) -> None:
    """FO-024, the fixed rule: a success stands, everything else ends cancelled; the attempt that ran is in the
    ledger.
    """
    engine = await Engine.start(database)
    job = await engine.running()
    assert await queue.cancel(database, engine.owner, job.id) == "requested"
    assert (await engine.view(job.id)).cancel_requested
    await engine.finish(job, edge)
    view = await engine.view(job.id)
    assert (view.state.value, view.reason, view.attempts) == (state, None, attempts)
    assert len(await engine.attempts(job.id)) == attempts
    await engine.sound()


async def test_hostile_content_is_mended_and_recorded_first_time(database: Database) -> None:
    """FO-018: NUL, lone surrogates, NaN, 50 MB, anywhere a handler may put them."""
    engine = await Engine.start(database)
    job = await engine.running()
    bad = "a\x00\ud800b"
    report = Report(bad, bad, 500, detail={bad: [bad, float("nan"), {1, 2}]})
    await engine.finish(job, "retry", report=report, delay=HOUR)
    attempt = await engine.last_attempt(job.id)
    assert (attempt.outcome, attempt.error) == ("a␀\ufffdb", "a␀\ufffdb")
    await engine.due_now(job.id)
    await engine.finish(
        await engine.claim_one(), "dead", result=[bad, float("inf")], report=Report("error", "x" * 50_000_000)
    )
    view = await engine.view(job.id)
    assert view.state == State.DEAD
    assert view.last_error is not None
    assert len(view.last_error) == 2000


async def test_a_thousand_at_once(database: Database) -> None:
    """The settler's batch size, in mixed order."""
    engine = await Engine.start(database)
    await engine.enqueue(1000)
    jobs = [job for _ in range(3) for job in await engine.claim()]
    assert len(jobs) == 1000
    assert await engine.settle(*(settled(job, "succeeded") for job in reversed(jobs))) == frozenset()
    assert (await engine.sound()).succeeded == 1000
