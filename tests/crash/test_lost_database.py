"""The database killed under load, and stopped for longer than the leases."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

from duly.embedded import EmbeddedPostgres
from duly.queue import Database
from support.crash_fleet import Fleet
from support.crash_ledger import all_final, all_succeeded, ends, enqueue_orders, ledger
from support.engine import new_owner
from support.sessions import until_true

LEASE_S = 2.0
RECOVERY_LEASE_S = 3.0  # above upkeep's round: an outage that ends a lease is then never slept through
FENCED = "lease not renewed in time, stopping what runs"


async def test_everything_acknowledged_survives_a_killed_database(
    mortal_cluster: EmbeddedPostgres, mortal_database: Database, mortal_fleet: Fleet
) -> None:
    """SIGKILL of the server under load: every acknowledged job ends, and no attempt counts as worker_lost."""
    fleet = mortal_fleet
    owner = await new_owner(mortal_database)
    workers = [await fleet.worker(lease_s=RECOVERY_LEASE_S) for _ in range(2)]
    enqueuers = [fleet.enqueuer(owner) for _ in range(3)]
    await until_true(lambda: len(fleet.journal.entries("end")) >= 300)

    mortal_cluster.kill()
    before = fleet.journal.jobs("acknowledged")
    mortal_cluster.start()
    await until_true(lambda: len(fleet.journal.jobs("acknowledged") - before) >= 300)
    for process in enqueuers:
        process.send(signal.SIGTERM)
    assert [await process.ended() for process in enqueuers] == [0, 0, 0]
    await all_final(mortal_database)

    acknowledged = fleet.journal.jobs("acknowledged")
    ended = await ends(mortal_database)
    assert before < acknowledged == ended.keys()
    assert {end.state for end in ended.values()} == {"succeeded"}
    attempts = await ledger(mortal_database)
    assert {outcome for job in attempts.values() for _, outcome in job} <= {"success", "interrupted"}
    assert all(n == 1 for n in fleet.journal.starts().values())
    assert all(process.alive for process in workers)


async def test_workers_outlive_a_database_that_is_away_for_several_leases(
    mortal_cluster: EmbeddedPostgres, mortal_database: Database, mortal_fleet: Fleet
) -> None:
    """They stop what they run before its lease ends, come back by themselves, and burn no attempt."""
    fleet = mortal_fleet
    owner = await new_owner(mortal_database)
    workers = [await fleet.worker(lease_s=LEASE_S, concurrency=20) for _ in range(2)]
    waiting = await enqueue_orders(mortal_database, owner, *[{"do": "wait", "gate": str(fleet.gate())}] * 40)
    await until_true(lambda: fleet.journal.jobs("start") == set(waiting))
    short = await enqueue_orders(mortal_database, owner, *[{"do": "sleep", "seconds": 0.05}] * 100)
    later = await enqueue_orders(mortal_database, owner, {"do": "finish"}, delay=timedelta(seconds=LEASE_S))

    mortal_cluster.stop()
    away_since_s = time.monotonic()
    await until_true(lambda: all(worker.said(FENCED) for worker in workers))
    fleet.gate().touch()
    await until_true(lambda: time.monotonic() - away_since_s > 3 * LEASE_S)
    mortal_cluster.start()
    await all_succeeded(mortal_database, len(waiting) + len(short) + len(later))

    attempts = await ledger(mortal_database)
    assert {outcome for job in attempts.values() for _, outcome in job} == {"success", "interrupted"}
    assert all(attempts[job] == [(1, "interrupted"), (2, "success")] for job in waiting)
    assert all(attempts[job] == [(1, "success")] for job in [*short, *later])
    assert all(n == 1 for n in fleet.journal.starts().values())
    assert all(worker.alive for worker in workers)
