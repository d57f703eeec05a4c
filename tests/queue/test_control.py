"""What people do to a job: cancel, run now, redrive; and what they see of it."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from duly import queue
from duly.model import DeadReason, State, Trigger
from duly.queue import Database
from support.engine import Engine, new_owner, new_worker

HOUR = timedelta(hours=1)


async def test_cancel_takes_a_waiting_job_out(database: Database) -> None:
    """scheduled or ready → cancelled, with no attempt; again: still cancelled. Nobody claims it."""
    engine = await Engine.start(database)
    [ready] = await engine.enqueue()
    [later] = await engine.enqueue(delay=HOUR)
    for job_id in (ready, later):
        for _ in range(2):
            assert await queue.cancel(database, engine.owner, job_id) == "cancelled"
        view = await engine.view(job_id)
        assert (view.state, view.attempts, view.next_run_at) == (State.CANCELLED, 0, None)
    assert await engine.claim() == []
    await engine.sound()


async def test_cancel_of_a_retry_keeps_its_attempts(database: Database) -> None:
    """A job that failed twice and waits: cancelled after two."""
    engine = await Engine.start(database)
    job = await engine.running()
    await engine.finish(job, "retry", delay=HOUR)
    assert await queue.cancel(database, engine.owner, job.id) == "cancelled"
    assert (await engine.view(job.id)).attempts == 1


async def test_cancel_of_a_running_job_is_a_request(database: Database) -> None:
    """requested, any number of times; an abort once asked for stays asked for and reaches the worker with its
    heartbeat.
    """
    engine = await Engine.start(database)
    job = await engine.running()
    assert await queue.cancel(database, engine.owner, job.id) == "requested"
    renewal = await queue.heartbeat(database, engine.worker_id)
    assert renewal is not None
    assert renewal.abort == frozenset()
    assert await queue.cancel(database, engine.owner, job.id, abort=True) == "requested"
    assert await queue.cancel(database, engine.owner, job.id) == "requested"
    renewal = await queue.heartbeat(database, engine.worker_id)
    assert renewal is not None
    assert renewal.abort == {(job.id, 1)}
    other = await queue.heartbeat(database, await new_worker(database))
    assert other is not None
    assert other.abort == frozenset()


async def test_cancel_of_a_final_job_changes_nothing(database: Database) -> None:
    """succeeded and dead stay what they are."""
    engine = await Engine.start(database)
    for edge in ("succeeded", "dead"):
        job = await engine.running()
        await engine.finish(job, edge)
        assert await queue.cancel(database, engine.owner, job.id) == "final"
        assert (await engine.view(job.id)).state.value == edge


async def test_a_foreign_job_is_a_missing_one(database: Database) -> None:
    """Another account, another project, an id that never was: missing, and untouched."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(delay=HOUR)
    strangers = [await new_owner(database), await new_owner(database, engine.owner.account_id)]
    for owner in strangers:
        assert await queue.cancel(database, owner, job_id) == "missing"
        assert await queue.run_now(database, owner, job_id) == "missing"
        assert await queue.redrive(database, owner, job_id) == "missing"
        assert await queue.get_job(database, owner, job_id) is None
        assert await queue.list_attempts(database, owner, job_id) is None
        assert await queue.list_jobs(database, owner, limit=10) == []
    assert await queue.cancel(database, engine.owner, uuid4()) == "missing"
    assert (await engine.view(job_id)).state == State.SCHEDULED


async def test_run_now_makes_a_scheduled_job_ready(database: Database) -> None:
    """Before its time, by hand: the trigger says so; the number stays."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(delay=HOUR)
    assert await queue.run_now(database, engine.owner, job_id) == "run"
    job = await engine.claim_one()
    assert (job.id, job.attempt, job.trigger) == (job_id, 1, Trigger.MANUAL)
    await engine.finish(job, "retry", delay=HOUR)
    assert await queue.run_now(database, engine.owner, job_id) == "run"
    assert (await engine.claim_one()).attempt == 2
    await engine.sound()


async def test_run_now_works_on_scheduled_jobs_only(database: Database) -> None:
    """ready, running and final: wrong_state."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    assert await queue.run_now(database, engine.owner, job_id) == "wrong_state"
    job = await engine.claim_one()
    assert await queue.run_now(database, engine.owner, job_id) == "wrong_state"
    await engine.finish(job, "dead")
    assert await queue.run_now(database, engine.owner, job_id) == "wrong_state"


async def test_redrive_gives_a_dead_job_a_fresh_budget(database: Database) -> None:
    """ready at once; numbers go on; as many attempts as at first; the old ones stay in the ledger."""
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=2)
    await engine.finish(job, "retry", delay=HOUR)
    await engine.due_now(job.id)
    await engine.finish(await engine.claim_one(), "dead", reason=DeadReason.ATTEMPTS_EXHAUSTED)
    assert await queue.redrive(database, engine.owner, job.id, by="ada") == "redriven"
    again = await engine.claim_one()
    assert (again.attempt, again.final_attempt, again.max_attempts, again.trigger) == (3, 4, 2, Trigger.REDRIVE)
    await engine.finish(again, "dead")
    assert await queue.redrive(database, engine.owner, job.id, by="bob") == "redriven"
    assert (await engine.claim_one()).attempt == 4
    assert [number for number, _, _ in await engine.attempts(job.id)] == [1, 2, 3]
    rows = await database.fetch("select after_attempt, redriven_by from duly.redrive order by 1")
    assert [tuple(row) for row in rows] == [(2, "ada"), (3, "bob")]
    await engine.sound()


async def test_redrive_of_a_cancelled_job(database: Database) -> None:
    """A job cancelled before it ever ran starts at attempt 1, also the second time."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(max_attempts=3)
    for _ in range(2):
        assert await queue.cancel(database, engine.owner, job_id) == "cancelled"
        assert await queue.redrive(database, engine.owner, job_id) == "redriven"
    job = await engine.claim_one()
    assert (job.attempt, job.final_attempt) == (1, 3)


async def test_redrive_works_on_dead_and_cancelled_jobs_only(database: Database) -> None:
    """ready, running, succeeded: wrong_state, and the result stays."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    assert await queue.redrive(database, engine.owner, job_id) == "wrong_state"
    job = await engine.claim_one()
    assert await queue.redrive(database, engine.owner, job_id) == "wrong_state"
    await engine.finish(job, result=1)
    assert await queue.redrive(database, engine.owner, job_id) == "wrong_state"
    assert (await engine.view(job_id)).result == 1


async def test_redrive_of_an_expired_job_says_so(database: Database) -> None:
    """It could not start any more: it stays dead, rather than die again unseen."""
    engine = await Engine.start(database)
    job = await engine.running(expires_at=await queue.server_now(database) + HOUR)
    await engine.finish(job, "dead")
    await database.execute("update duly.job set expires_at = now()")
    assert await queue.redrive(database, engine.owner, job.id) == "expired"
    assert (await engine.view(job.id)).state is State.DEAD


async def test_age_counts_from_the_redrive(database: Database) -> None:
    """A job of long ago, redriven now, is young again, so that max_age does not kill it at once; retries of it too."""
    engine = await Engine.start(database)
    long_ago = await queue.server_now(database) - 48 * HOUR
    job = await engine.running(run_at=long_ago)
    assert job.age > 47 * HOUR
    await engine.finish(job, "dead")
    await queue.redrive(database, engine.owner, job.id)
    again = await engine.claim_one()
    assert again.age < HOUR
    await engine.finish(again, "retry", delay=HOUR)
    await engine.due_now(job.id)
    assert (await engine.claim_one()).age < HOUR


async def test_age_counts_from_the_redrive_of_a_job_that_never_ran(database: Database) -> None:
    """Cancelled before its first attempt, redriven two days later: as young as any other redriven job."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(run_at=await queue.server_now(database) - 48 * HOUR)
    await queue.cancel(database, engine.owner, job_id)
    await queue.redrive(database, engine.owner, job_id)
    job = await engine.claim_one()
    assert job.age < HOUR
    await engine.finish(job, "retry", delay=HOUR)
    await engine.due_now(job_id)
    assert (await engine.claim_one()).age < HOUR


async def test_age_of_a_snoozed_or_retried_job_counts_from_its_first_time(database: Database) -> None:
    """No redrive: since it was due for the first time, whatever happened since."""
    engine = await Engine.start(database)
    job = await engine.running(run_at=await queue.server_now(database) - 5 * HOUR)
    await engine.finish(job, "snooze", delay=HOUR)
    await engine.due_now(job.id)
    job = await engine.claim_one()
    assert job.age > 4 * HOUR
    await engine.finish(job, "retry", delay=HOUR)
    await engine.due_now(job.id)
    assert (await engine.claim_one()).age > 4 * HOUR


async def test_give_back_releases_what_was_never_heard_of(database: Database) -> None:
    """Of three claimed, one is known: the two others are ready again, their number unused; other workers' are not
    touched.
    """
    engine = await Engine.start(database)
    await engine.enqueue(4)
    jobs = await engine.claim(3)
    [foreign] = await engine.claim(worker=await new_worker(database))
    segments = await queue.live_segments(database, "lease")
    assert await queue.give_back(database, engine.worker_id, [jobs[0].id], segments) == 2
    assert await queue.give_back(database, engine.worker_id, [jobs[0].id], segments) == 0
    states = {job.id: (await engine.view(job.id)).state for job in (*jobs, foreign)}
    assert [s.value for s in states.values()] == ["running", "ready", "ready", "running"]
    assert {(job.id, job.attempt) for job in await engine.claim()} == {(job.id, 1) for job in jobs[1:]}
    assert await engine.attempts(jobs[1].id) == []
    await engine.sound()


async def test_the_jobs_view_says_what_people_expect(database: Database) -> None:
    """select * from duly.jobs: status, attempts, who holds it until when, the last error."""
    engine = await Engine.start(database)
    job = await engine.running()

    async def row() -> dict[str, object]:
        found = await database.fetchrow("select * from duly.jobs where id = $1", job.id)
        assert found is not None
        return dict(found)

    running = await row()
    assert (running["status"], running["attempts"], running["locked_by"]) == ("running", 1, "by hand")
    assert running["lease_expires_at"] is not None
    await engine.finish(job, "retry", delay=HOUR)
    waiting = await row()
    assert (waiting["status"], waiting["attempts"], waiting["last_error"]) == ("scheduled", 1, "it failed")
    assert (waiting["locked_by"], waiting["lease_expires_at"]) == (None, None)
    await queue.cancel(database, engine.owner, job.id)
    ended = await row()
    assert (ended["status"], ended["finished_at"] is not None, ended["attempts"]) == ("cancelled", True, 1)


async def test_a_list_filters_and_pages(database: Database) -> None:
    """Newest first, after an id, by state, queue and tag."""
    engine = await Engine.start(database)
    ids = sorted([*await engine.enqueue(3), *await engine.enqueue(2, queue="q", tags=("t",), delay=HOUR)], reverse=True)

    async def listed(**filters: object) -> list[object]:
        return [job.id for job in await queue.list_jobs(database, engine.owner, **{"limit": 10, **filters})]  # type: ignore[arg-type]

    assert await listed() == ids
    assert await listed(limit=2) == ids[:2]
    assert await listed(before=ids[1]) == ids[2:]
    in_queue = await listed(queue="q")
    assert len(in_queue) == 2
    assert await listed(state=State.SCHEDULED) == await listed(tag="t") == in_queue
