"""The database restarted at bad moments, and what the processes say about it."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import asyncpg

from duly import queue
from duly.embedded import EmbeddedPostgres
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.queue.trouble import REMIND_EVERY_S
from support.crash_fleet import Fleet
from support.crash_ledger import all_succeeded, enqueue_orders, ledger
from support.engine import new_owner
from support.sessions import until, until_true

TROUBLE = "the database is in trouble, trying again"
OVER = "the database answers again"


async def test_a_restart_in_the_middle_of_a_recovery_pass_loses_no_job(
    mortal_cluster: EmbeddedPostgres, mortal_database: Database, mortal_fleet: Fleet
) -> None:
    """FO-007: a killed worker held 100 jobs, and the rescue is cut off before its commit: it is made again until it is
    complete, and all of them run. The log has one line for all of them.
    """
    fleet = mortal_fleet
    owner = await new_owner(mortal_database)
    dying = await fleet.worker(lease_s=1.0)
    jobs = await enqueue_orders(mortal_database, owner, *[{"do": "wait", "gate": str(fleet.gate())}] * 100)
    await until_true(lambda: fleet.journal.jobs("start") == set(jobs))
    rescuing = """select exists (select from pg_stat_activity where query like '%duly.rescue(%'
                  and cardinality(pg_blocking_pids(pid)) > 0)"""
    lock = await asyncpg.connect(mortal_cluster.dsn())
    await lock.execute("begin")
    await lock.execute("lock table duly.attempt in exclusive mode")
    dying.kill()
    rescuer = await fleet.worker(lease_s=1.0)
    await until(lambda: mortal_database.fetchval(rescuing))
    mortal_cluster.kill()
    lock.terminate()
    mortal_cluster.start()
    await until(lambda: _answers(mortal_database))
    fleet.gate().touch()
    await all_succeeded(mortal_database, 100)
    assert all(
        attempts == [(1, "worker_lost"), (2, "success")] for attempts in (await ledger(mortal_database)).values()
    )
    assert rescuer.log.read_text().count("leases lost") == 1


async def test_a_long_job_is_taken_up_again_after_a_restart(
    mortal_cluster: EmbeddedPostgres, mortal_database: Database, mortal_fleet: Fleet
) -> None:
    """FO-037: ownership is a row with an expiry: the first worker renews it, finishes and settles, and the idle one
    starts nothing.
    """
    fleet = mortal_fleet
    owner = await new_owner(mortal_database)
    first = await fleet.worker(lease_s=12.0)
    [job] = await enqueue_orders(mortal_database, owner, {"do": "wait", "gate": str(fleet.gate())})
    await until_true(lambda: fleet.journal.starts()[job, 1])
    idle = await fleet.worker(lease_s=12.0)

    mortal_cluster.stop()
    mortal_cluster.start()
    await until(lambda: _answers(mortal_database))

    async def both_renewed() -> bool:
        started = await mortal_database.fetchval("select pg_postmaster_start_time()")
        workers = await queue.list_workers(mortal_database)
        return len(workers) == 2 and all(worker.heartbeat_at > started for worker in workers)

    await until(both_renewed)
    fleet.gate().touch()
    await all_succeeded(mortal_database, 1)
    assert await ledger(mortal_database) == {job: [(1, "success")]}
    assert fleet.journal.starts() == {(job, 1): 1}
    for worker in (first, idle):
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0


async def test_an_outage_is_told_in_three_lines(
    mortal_cluster: EmbeddedPostgres, mortal_database: Database, mortal_fleet: Fleet
) -> None:
    """One when it begins, one when it is over, and one for what was interrupted; no stack, whatever was under way."""
    fleet = mortal_fleet
    owner = await new_owner(mortal_database)
    worker = await fleet.worker(lease_s=2.0)
    running = await enqueue_orders(mortal_database, owner, *[{"do": "wait", "gate": str(fleet.gate())}] * 20)
    await until_true(lambda: fleet.journal.jobs("start") == set(running))
    mortal_cluster.kill()
    away_since_s = time.monotonic()
    await until_true(lambda: worker.said("lease not renewed in time") and time.monotonic() - away_since_s > 2)
    mortal_cluster.start()
    assert time.monotonic() - away_since_s < REMIND_EVERY_S
    await until(lambda: _answers(mortal_database))
    fleet.gate().touch()
    await all_succeeded(mortal_database, 20)
    await until_true(lambda: worker.said(OVER))
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert _warnings(worker.log) == [TROUBLE, "lease not renewed in time, stopping what runs", OVER]


async def _answers(db: Database) -> bool:
    """The pool's connections from before the restart are found dead one by one."""
    try:
        return bool(await db.fetchval("select true"))
    except DatabaseUnavailableError:
        return False


def _warnings(log: Path) -> list[str]:
    """What stands in the log above INFO, without its fields, and whatever is no line of ours."""
    told = []
    for line in log.read_text().splitlines():
        ours = re.fullmatch(r"[\d:.]+ (\w+) +duly\.\w+: (.*?)(?: \w+=.*)?", line)
        if ours is None or ours[1] != "info":
            told.append(line if ours is None else ours[2])
    return told
