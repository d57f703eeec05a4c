"""A worker that lives and does not answer: stopped past its lease, or with its loop blocked by job code."""

from __future__ import annotations

import signal

from duly.queue import Database, Owner
from support.crash_fleet import Fleet
from support.crash_ledger import all_succeeded, ends, enqueue_orders, ledger
from support.sessions import until, until_true

REFUSED = "outcomes refused: the lease was lost"


async def test_a_worker_stopped_past_its_lease_changes_nothing_afterwards_and_goes_on(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """Its job is another worker's meanwhile: the late outcome is refused, and new jobs are claimed again."""
    first = await fleet.worker()
    [job] = await enqueue_orders(database, owner, {"do": "wait", "gate": str(fleet.gate())})
    await until_true(lambda: fleet.journal.starts()[job, 1])
    second = await fleet.worker()
    first.send(signal.SIGSTOP)
    await until_true(lambda: fleet.journal.starts(second.pid)[job, 2])
    fleet.gate().touch()
    await all_succeeded(database, 1)
    before = await database.fetch("select * from duly.attempt order by number"), await ends(database)

    first.send(signal.SIGCONT)
    await until_true(lambda: first.said(REFUSED))
    assert (await database.fetch("select * from duly.attempt order by number"), await ends(database)) == before
    assert await ledger(database) == {job: [(1, "worker_lost"), (2, "success")]}

    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    [new] = await enqueue_orders(database, owner, {"do": "finish"})
    await all_succeeded(database, 2)
    assert fleet.journal.starts(first.pid) == {(job, 1): 1, (new, 1): 1}
    assert not second.said(REFUSED)


async def test_a_worker_stopped_past_its_lease_gives_up_what_nobody_took(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """Alone, it runs the job again, whichever of rescue and fence came first; the first attempt is not its success."""
    worker = await fleet.worker()
    [job] = await enqueue_orders(database, owner, {"do": "wait", "gate": str(fleet.gate())})
    await until_true(lambda: fleet.journal.starts()[job, 1])
    worker.send(signal.SIGSTOP)
    await until(lambda: database.fetchval("select every(lease_expires_at < now()) from duly.worker"))
    worker.send(signal.SIGCONT)
    await until_true(
        lambda: fleet.journal.jobs("start") and (fleet.journal.starts()[job, 2] or worker.said("draining"))
    )
    fleet.gate().touch()
    await all_succeeded(database, 1)
    assert [number for number, _ in (await ledger(database))[job]] == [1, 2]


async def test_a_heartbeat_that_the_database_refuses_for_a_while_is_taken_up_again(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """An error that is no outage (a function missing during a migration) does not end the renewals for good."""
    worker = await fleet.worker()
    await database.execute("alter function duly.heartbeat(bigint) rename to heartbeat_elsewhere")
    await until_true(lambda: worker.said("lease not renewed in time"))
    await database.execute("alter function duly.heartbeat_elsewhere(bigint) rename to heartbeat")
    [job] = await enqueue_orders(database, owner, {"do": "sleep", "seconds": 2.5})
    await all_succeeded(database, 1)
    assert await ledger(database) == {job: [(1, "success")]}


async def test_job_code_that_blocks_the_loop_keeps_its_lease_and_is_reported(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """FO-005: renewal does not depend on the loop that runs job code, so no other worker starts the job again."""
    first = await fleet.worker()
    [job] = await enqueue_orders(database, owner, {"do": "block", "seconds": 5.0})
    await until_true(lambda: fleet.journal.starts()[job, 1])
    second = await fleet.worker()
    await all_succeeded(database, 1)

    assert first.said("job code blocks the event loop")
    assert fleet.journal.starts() == {(job, 1): 1}
    assert not fleet.journal.jobs("start", second.pid)
    assert await ledger(database) == {job: [(1, "success")]}
