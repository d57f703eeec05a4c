"""SIGKILL of a worker around the settle of a job with callbacks: the end and the job that tells it exist together."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from duly import queue
from duly.queue import Database, Owner
from support.crash_fleet import Fleet
from support.crash_ledger import enqueue_orders
from support.sessions import until

LEASE_S = 1.0
BOTH: dict[str, Any] = {"on_success": {"url": "https://a.example/"}, "on_dead": {"url": "https://b.example/"}}


async def told(database: Database) -> list[tuple[str, int]]:
    """State and attempts as the callbacks tell them."""
    rows = await database.fetch("select body from duly.job where callback_of is not null order by id")
    return [(body["state"], body["attempts"]) for body in (json.loads(row["body"]) for row in rows)]


async def ended(database: Database) -> bool:
    return bool(await database.fetchval("select exists (select from duly.outcome)"))


@pytest.mark.parametrize(
    ("step", "at_death", "at_the_end"),
    [
        ("settle-sent", [], [("succeeded", 2)]),
        ("settle-commits", [], [("succeeded", 2)]),
        ("settle-committed", [("succeeded", 1)], [("succeeded", 1)]),
    ],
)
async def test_a_worker_may_die_at_any_step_of_a_settle_that_calls_back(
    step: str,
    at_death: list[tuple[str, int]],
    at_the_end: list[tuple[str, int]],
    database: Database,
    owner: Owner,
    fleet: Fleet,
) -> None:
    """Before the commit nothing is told, after it the end is; another worker's end is told as its own, once."""
    await enqueue_orders(database, owner, {"do": "finish"}, **BOTH)
    assert await fleet.launch(lease_s=LEASE_S, die_at=step).ended() == -signal.SIGKILL
    await until(
        lambda: database.fetchval(
            "select not exists (select from pg_stat_activity where application_name = 'crash-driver')"
        )
    )
    assert await told(database) == at_death
    assert await ended(database) is bool(at_death)
    assert (await queue.conservation(database)).faults == {}
    await fleet.worker(lease_s=LEASE_S)
    await until(lambda: ended(database))
    assert await told(database) == at_the_end
    assert (await queue.conservation(database)).faults == {}


async def test_a_job_that_kills_its_workers_is_told_once_by_the_rescue(
    database: Database, owner: Owner, fleet: Fleet
) -> None:
    """Nobody lives to settle it: whoever rescues the last attempt tells."""
    await enqueue_orders(database, owner, {"do": "kill"}, max_attempts=1, **BOTH)
    assert await fleet.launch(lease_s=LEASE_S).ended() == -signal.SIGKILL
    assert await told(database) == []
    await fleet.worker(lease_s=LEASE_S)
    await until(lambda: ended(database))
    assert await told(database) == [("dead", 1)]
    assert (await queue.conservation(database)).faults == {}
