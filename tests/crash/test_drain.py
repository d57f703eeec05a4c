"""SIGTERM: a worker ends what it runs; a second one: it gives it back."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from datetime import timedelta

import pytest

from duly import queue
from duly.cli.stopping import SAME_SIGNAL_S
from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database, Owner
from duly.queue.leases import Renewal
from duly.worker import Wakeups, Worker, WorkerConfig
from support.crash_fleet import Fleet
from support.crash_ledger import all_succeeded, ends, enqueue_orders, ledger
from support.sessions import until_true

LEASE_S = 1.0


async def test_a_drain_outlasts_the_lease(database: Database, owner: Owner, fleet: Fleet) -> None:
    """FO-009: the drain renews until the last outcome is written: an idle worker starts none of the jobs."""
    first = await fleet.worker(lease_s=LEASE_S)
    jobs = await enqueue_orders(database, owner, *[{"do": "sleep", "seconds": 5 * LEASE_S}] * 10)
    await until_true(lambda: fleet.journal.jobs("start") == set(jobs))
    second = await fleet.worker(lease_s=LEASE_S)
    first.send(signal.SIGTERM)
    await until_true(lambda: first.said("draining"))
    assert await first.ended() == 0

    await all_succeeded(database, len(jobs), patience_s=0.5)
    assert fleet.journal.starts() == {(job, 1): 1 for job in jobs}
    assert await ledger(database) == {job: [(1, "success")] for job in jobs}
    assert [worker.alive for worker in await queue.list_workers(database)] == [True]
    assert second.alive


async def test_a_draining_worker_claims_nothing(database: Database, owner: Owner, fleet: Fleet) -> None:
    """Jobs enqueued after SIGTERM are left to others, although the worker still runs one and has free slots."""
    worker = await fleet.worker(lease_s=LEASE_S)
    [last] = await enqueue_orders(database, owner, {"do": "wait", "gate": str(fleet.gate())})
    await until_true(lambda: fleet.journal.starts()[last, 1])
    worker.send(signal.SIGTERM)
    await until_true(lambda: worker.said("draining"))
    [late] = await enqueue_orders(database, owner, {"do": "finish"})
    other = await fleet.worker(lease_s=LEASE_S)
    await until_true(lambda: fleet.journal.jobs("end", other.pid) == {late})
    assert worker.alive
    fleet.gate().touch()
    assert await worker.ended() == 0
    await all_succeeded(database, 2)
    assert fleet.journal.starts(worker.pid) == {(last, 1): 1}


async def test_a_second_signal_gives_the_jobs_back_unspent(database: Database, owner: Owner, fleet: Fleet) -> None:
    """The process ends soon; the attempts are recorded as interrupted, and the budget has grown by each."""
    first = await fleet.worker(lease_s=LEASE_S)
    order = {"do": "wait", "gate": str(fleet.gate())}
    jobs = set(await enqueue_orders(database, owner, *[order] * 10, max_attempts=2))
    await until_true(lambda: fleet.journal.jobs("start") == jobs)
    first.send(signal.SIGTERM)
    await until_true(lambda: first.said("draining"))
    await asyncio.sleep(1.5 * SAME_SIGNAL_S)  # after it was handled: the next one is not taken for its echo
    asked_at_s = time.monotonic()
    first.send(signal.SIGTERM)
    assert await first.ended() == 0
    assert time.monotonic() - asked_at_s < 3.0

    assert await ledger(database) == {job: [(1, "interrupted")] for job in jobs}
    count = await queue.conservation(database)
    assert count.faults == {}
    assert count.ready == len(jobs)
    fleet.gate().touch()
    await fleet.worker(lease_s=LEASE_S)
    await all_succeeded(database, len(jobs))
    assert await ledger(database) == {job: [(1, "interrupted"), (2, "success")] for job in jobs}
    assert {(end.attempt, end.final_attempt) for end in (await ends(database)).values()} == {(2, 3)}


async def test_a_worker_that_went_is_not_registered_again_by_its_last_heartbeat(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal between deregistering and the end of the heartbeat finds no row: no reason to make a new one."""
    deregister, heartbeat, unknown = queue.deregister, queue.heartbeat, threading.Event()

    async def slow_deregister(db: Database, worker_id: int) -> None:
        await deregister(db, worker_id)
        await until_true(unknown.is_set)

    async def told_heartbeat(db: Database, worker_id: int) -> Renewal | None:
        renewal = await heartbeat(db, worker_id)
        if renewal is None:
            unknown.set()
        return renewal

    async def handle(job: ClaimedJob) -> Outcome:
        return Success()

    monkeypatch.setattr(queue, "deregister", slow_deregister)
    monkeypatch.setattr(queue, "heartbeat", told_heartbeat)
    stopping, config = asyncio.Event(), WorkerConfig({"k": handle}, lease=timedelta(seconds=LEASE_S))
    worker = Worker(config, database, database_url, Wakeups(database_url))
    stopping.set()
    assert (await worker.run(stopping)).clean
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await task
    assert await queue.list_workers(database) == []
