"""Jobs that are due later than a lease lasts."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

from duly.queue import Database, Owner
from support.crash_fleet import Fleet
from support.crash_ledger import all_succeeded, enqueue_orders, ledger
from support.sessions import until_true

LEASE_S = 2.0


async def test_jobs_due_in_three_lease_periods_run_once_and_at_their_time(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """FO-083: four idle workers, one of them restarted meanwhile: nobody takes a job before it is due and keeps it."""
    workers = [await fleet.worker(LEASE_S) for _ in range(4)]
    before_s, delay = time.monotonic(), timedelta(seconds=3 * LEASE_S)
    jobs = await enqueue_orders(database, owner, *[{"do": "finish"}] * 50, delay=delay)
    after_s = time.monotonic()

    workers[0].send(signal.SIGTERM)
    assert await workers[0].ended() == 0
    workers[0] = await fleet.worker(LEASE_S)
    await until_true(lambda: fleet.journal.jobs("end") == set(jobs))
    await all_succeeded(database, len(jobs))

    assert fleet.journal.starts() == dict.fromkeys(((job, 1) for job in jobs), 1)
    assert await ledger(database) == {job: [(1, "success")] for job in jobs}
    started_s = [entry.at_s for entry in fleet.journal.entries("start")]
    assert min(started_s) >= before_s + delay.total_seconds()
    assert max(started_s) <= after_s + delay.total_seconds() + LEASE_S
    assert all(worker.alive for worker in workers)
