"""running → scheduled | dead | cancelled for leases that ended without a settle; and the workers that hold them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly import queue
from duly.model import Settlement, State, Trigger
from duly.queue import Database
from support.engine import Engine, new_worker
from support.sessions import server_up_for

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
LONG_UP = timedelta(days=30)


async def test_a_job_of_a_worker_that_went_silent_is_rescued(database: Database) -> None:
    """Its attempt is recorded as worker_lost and counts; the job waits a little and goes on under the next number."""
    engine = await Engine.start(database, lease=SECOND / 20)
    job = await engine.running(max_attempts=3)
    await engine.expire_worker()
    [rescued] = await engine.rescue()
    assert (rescued.job_id, rescued.attempt, rescued.worker_id) == (job.id, 1, engine.worker_id)
    assert (rescued.outcome, rescued.way) == ("worker_lost", "scheduled")
    view = await engine.view(job.id)
    assert (view.state, view.attempts, view.final_attempt) == (State.SCHEDULED, 1, 3)
    assert view.next_run_at is not None
    wait = view.next_run_at - await queue.server_now(database)
    assert timedelta(0) < wait <= 2.5 * SECOND
    assert await engine.attempts(job.id) == [(1, "schedule", "worker_lost")]
    assert await engine.rescue() == []
    await queue.heartbeat(database, engine.worker_id)
    await engine.due_now(job.id)
    again = await engine.claim_one(worker=await new_worker(database))
    assert (again.attempt, again.trigger) == (2, Trigger.RECOVERY)
    await engine.sound()


async def test_the_late_settle_of_a_rescued_attempt_is_refused(database: Database) -> None:
    """FO-003: One owner: whoever lost the lease changes nothing, even if it renews meanwhile."""
    engine = await Engine.start(database, lease=SECOND / 20)
    job = await engine.running()
    await engine.expire_worker()
    await engine.rescue()
    assert await queue.heartbeat(database, engine.worker_id) is not None
    assert await engine.settle(Settlement(job.id, 1, "succeeded")) == {job.id}
    assert (await engine.view(job.id)).state == State.SCHEDULED


async def test_a_job_that_kills_its_workers_ends_in_the_dead_letters(database: Database) -> None:
    """A crash counts: the last attempt lost → dead, worker_lost."""
    engine = await Engine.start(database, lease=SECOND / 20)
    [job_id] = await engine.enqueue(max_attempts=2)
    for n in (1, 2):
        await queue.heartbeat(database, engine.worker_id)
        await database.execute("update duly.worker set lease_expires_at = now() + interval '1 minute'")
        assert (await engine.claim_one()).attempt == n
        await engine.expire_worker()
        [rescued] = await engine.rescue()
        await engine.due_now(job_id)
    assert rescued.way == "dead"
    view = await engine.view(job_id)
    assert (view.state, view.reason, view.attempts) == (State.DEAD, "worker_lost", 2)
    await engine.sound()


async def test_a_lease_whose_worker_has_no_row_is_rescued_at_once(database: Database) -> None:
    """A worker that left while it held something, or a claim that committed after it left."""
    engine = await Engine.start(database)
    job = await engine.running()
    await queue.deregister(database, engine.worker_id)
    [rescued] = await engine.rescue()
    assert (rescued.job_id, rescued.outcome, rescued.way) == (job.id, "worker_lost", "scheduled")


async def test_a_cancelled_job_of_a_lost_worker_ends_cancelled(database: Database) -> None:
    """No further attempt after an accepted cancel."""
    engine = await Engine.start(database, lease=SECOND / 20)
    job = await engine.running()
    await queue.cancel(database, engine.owner, job.id)
    await engine.expire_worker()
    [rescued] = await engine.rescue()
    assert rescued.way == "cancelled"
    assert (await engine.view(job.id)).state == State.CANCELLED


@pytest.mark.parametrize(
    ("max_attempts", "state", "reason"), [(2, "scheduled", None), (1, "dead", "attempts_exhausted")]
)
async def test_a_wedged_job_of_a_live_worker_ends_at_its_deadline(
    database: Database, max_attempts: int, state: str, reason: str | None
) -> None:
    """Past its own deadline: timeout, counted, although the worker renews."""
    engine = await Engine.start(database)
    job = await engine.running(max_attempts=max_attempts)
    await database.execute("update duly.lease set deadline_at = now() - interval '1 second'")
    async with server_up_for(database, LONG_UP) as session:
        [rescued] = await engine.rescue(db=session)
    assert (rescued.outcome, rescued.way) == ("timeout", state)
    view = await engine.view(job.id)
    assert (view.state.value, view.reason, view.last_outcome) == (state, reason, "timeout")
    await engine.sound()


async def test_good_leases_are_left_alone(database: Database) -> None:
    """A live worker, deadline to come."""
    engine = await Engine.start(database)
    await engine.running()
    async with server_up_for(database, LONG_UP) as session:
        assert await engine.rescue(db=session) == []
    assert (await engine.sound()).running == 1


async def test_nothing_is_rescued_for_one_lease_after_the_server_started(database: Database) -> None:
    """While the server was down nobody could renew: a lease of 20 s is safe 19 s after the start, not 21 s after it.
    A deadline is safe for 30 s.
    """
    engine = await Engine.start(database, lease=20 * SECOND)
    await engine.running()
    wedged = await new_worker(database, HOUR)
    await engine.enqueue()
    await engine.claim(worker=wedged)
    await engine.expire_worker()
    await database.execute(
        "update duly.lease set deadline_at = now() - interval '1 second' where worker_id = $1", wedged
    )
    async with server_up_for(database, 19 * SECOND) as session:
        assert await engine.rescue(db=session) == []
    async with server_up_for(database, 21 * SECOND) as session:
        assert [r.worker_id for r in await engine.rescue(db=session)] == [engine.worker_id]
    async with server_up_for(database, 31 * SECOND) as session:
        assert [r.worker_id for r in await engine.rescue(db=session)] == [wedged]
    await engine.sound()


async def test_rescue_takes_no_more_than_its_limit(database: Database) -> None:
    """Call again until it returns fewer."""
    engine = await Engine.start(database, lease=SECOND / 20)
    await database.execute("update duly.worker set lease_expires_at = now() + interval '1 minute'")
    await engine.enqueue(5)
    assert len(await engine.claim()) == 5
    await engine.expire_worker()
    assert [len(await engine.rescue(2)) for _ in range(4)] == [2, 2, 1, 0]
    assert (await engine.sound()).scheduled == 5


async def test_a_worker_long_gone_is_forgotten_once_it_holds_nothing(database: Database) -> None:
    """A day after its time, by a rescue; the row of one that still holds a job stays until then."""
    engine = await Engine.start(database)
    gone = await new_worker(database)
    await engine.running()
    await database.execute("update duly.worker set lease_expires_at = now() - interval '25 hours' where id = $1", gone)
    await engine.rescue()
    assert [worker.id for worker in await queue.list_workers(database)] == [engine.worker_id]


async def test_a_worker_is_seen_alive_until_its_lease_ends(database: Database) -> None:
    """list_workers: identity, what it serves, and whether its time has passed."""
    engine = await Engine.start(database)
    [worker] = await queue.list_workers(database)
    assert (worker.name, worker.kinds, worker.queues, worker.concurrency, worker.alive) == (
        "by hand",
        ("k",),
        None,
        100,
        True,
    )
    await engine.expire_worker()
    assert [w.alive for w in await queue.list_workers(database)] == [False]
    assert await queue.heartbeat(database, engine.worker_id) is not None
    assert [w.alive for w in await queue.list_workers(database)] == [True]
    await queue.deregister(database, engine.worker_id)
    assert await queue.heartbeat(database, engine.worker_id) is None
