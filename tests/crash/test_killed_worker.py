"""SIGKILL: of a worker while it runs jobs, at each step of a job, and by the job itself."""

from __future__ import annotations

import signal

import pytest

from duly.queue import Database, Owner
from support.crash_fleet import Fleet
from support.crash_ledger import all_final, all_succeeded, ends, enqueue_orders, ledger
from support.sessions import until_true

LEASE_S = 1.0
ROUND_S = 2.5  # upkeep looks for lost leases every 2 s, and up to a quarter more
DELAY_S = 2.5  # the delay before a second attempt is 2 s, and up to a quarter more
MARGIN_S = 3.0
LOST_THEN_DONE = [(1, "worker_lost"), (2, "success")]


@pytest.mark.parametrize("n", [1, 50])
async def test_what_a_killed_worker_held_is_run_once_more_by_another(
    n: int, database: Database, owner: Owner, fleet: Fleet
) -> None:
    """FO-006: another worker starts the jobs within two leases and a retry's delay; the lost attempts are recorded."""
    first = await fleet.worker(lease_s=LEASE_S)
    jobs = set(await enqueue_orders(database, owner, *[{"do": "wait", "gate": str(fleet.gate())}] * n))
    await until_true(lambda: fleet.journal.jobs("start") == jobs)
    second = await fleet.worker(lease_s=LEASE_S)
    first.kill()
    killed_at_s = max(entry.at_s for entry in fleet.journal.entries("start"))  # not later than the kill
    await until_true(lambda: fleet.journal.jobs("start", second.pid) == jobs)
    last_start_s = max(entry.at_s for entry in fleet.journal.entries("start"))
    fleet.gate().touch()
    await all_succeeded(database, n)

    assert last_start_s - killed_at_s < 2 * LEASE_S + ROUND_S + DELAY_S + MARGIN_S
    assert await ledger(database) == dict.fromkeys(jobs, LOST_THEN_DONE)
    assert fleet.journal.starts() == {(job, attempt): 1 for job in jobs for attempt in (1, 2)}
    assert fleet.journal.starts(first.pid) == {(job, 1): 1 for job in jobs}


@pytest.mark.parametrize(
    ("step", "starts", "attempts"),
    [
        ("claim-commits", [1], [(1, "success")]),
        ("claim-committed", [2], LOST_THEN_DONE),
        ("settle-sent", [1, 2], LOST_THEN_DONE),
        ("settle-commits", [1, 2], LOST_THEN_DONE),
        ("settle-committed", [1], [(1, "success")]),
    ],
)
async def test_a_worker_may_die_at_any_step_of_a_job(
    step: str, starts: list[int], attempts: list[tuple[int, str]], database: Database, owner: Owner, fleet: Fleet
) -> None:
    """Before a claim's commit or after a settle's nothing is repeated; in between the attempt counts as lost."""
    [job] = await enqueue_orders(database, owner, {"do": "finish"})
    assert await fleet.launch(lease_s=LEASE_S, die_at=step).ended() == -signal.SIGKILL
    await fleet.worker(lease_s=LEASE_S)
    await all_succeeded(database, 1)

    assert await ledger(database) == {job: attempts}
    assert [entry.attempt for entry in fleet.journal.entries("start")] == starts


async def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """FO-004: the attempt is counted at the claim, so after max_attempts starts it is dead with reason worker_lost.

    A supervisor restarts the worker meanwhile, and everybody else's jobs are run.
    """
    [killer] = await enqueue_orders(database, owner, {"do": "kill"}, max_attempts=3)
    others = await enqueue_orders(database, owner, *[{"do": "sleep", "seconds": 0.1}] * 20)
    workers = [fleet.launch(lease_s=LEASE_S)]

    def killer_dies_thrice() -> bool:
        if not workers[-1].alive:
            workers.append(fleet.launch(lease_s=LEASE_S))
        return len(workers) == 4

    await until_true(killer_dies_thrice, 45)
    await all_final(database)

    ended = await ends(database)
    assert (ended[killer].state, ended[killer].reason, ended[killer].attempt) == ("dead", "worker_lost", 3)
    assert (await ledger(database))[killer] == [(1, "worker_lost"), (2, "worker_lost"), (3, "worker_lost")]
    assert {at: n for at, n in fleet.journal.starts().items() if at[0] == killer} == dict.fromkeys(
        [(killer, 1), (killer, 2), (killer, 3)], 1
    )
    assert {ended[job].state for job in others} == {"succeeded"}
    assert [worker.alive for worker in workers] == [False, False, False, True]
