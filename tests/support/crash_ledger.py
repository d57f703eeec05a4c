"""Reading how jobs ended, for tests that look at many of them at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from duly import queue
from duly.queue import Database, Owner
from support.crash_driver import KIND
from support.engine import new_job
from support.sessions import until


@dataclass(frozen=True, slots=True)
class End:
    """A job's final state; `final_attempt` is the budget that it had at the end."""

    state: str
    reason: str | None
    attempt: int
    final_attempt: int


async def enqueue_orders(db: Database, owner: Owner, *orders: dict[str, Any], **settings: Any) -> list[UUID]:
    """Enqueue a job for each order to the driver's handler, in one statement."""
    jobs = [new_job(kind=KIND, **{**settings, "payload": order}) for order in orders]
    answers = await queue.enqueue(db, [(owner, job) for job in jobs])
    assert {answer.result for answer in answers} == {"created"}
    return [answer.job_id for answer in answers]


async def ledger(db: Database) -> dict[UUID, list[tuple[int, str]]]:
    """Every job's attempts that ended: number and outcome, in order."""
    rows = await db.fetch("select job_id, number, outcome from duly.attempt order by job_id, number")
    attempts: dict[UUID, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        attempts[row["job_id"]].append((row["number"], row["outcome"]))
    return attempts


async def ends(db: Database) -> dict[UUID, End]:
    rows = await db.fetch("select job_id, state, reason, attempt, final_attempt from duly.outcome")
    return {row["job_id"]: End(row["state"], row["reason"], row["attempt"], row["final_attempt"]) for row in rows}


async def all_final(db: Database, patience_s: float = 30.0) -> None:
    """Wait until every job is final; then nothing is left elsewhere, and conservation holds."""
    await _settled(db, "select count(*) = (select count(*) from duly.outcome) from duly.job", patience_s)
    count = await queue.conservation(db)
    assert count.faults == {}
    assert (count.scheduled, count.ready, count.running) == (0, 0, 0)


async def all_succeeded(db: Database, n: int, patience_s: float = 30.0) -> None:
    """Wait until n jobs succeeded; there is no other job, and conservation holds."""
    await _settled(db, f"select count(*) = {n} from duly.outcome where state = 'succeeded'", patience_s)
    count = await queue.conservation(db)
    assert count.faults == {}
    assert (count.jobs, count.succeeded) == (n, n)


async def _settled(db: Database, question: str, patience_s: float) -> None:
    try:
        await until(lambda: db.fetchval(question), patience_s)
    except TimeoutError:
        left = await db.fetch(
            """select j.status, j.attempts, j.locked_by, j.lease_expires_at, j.next_run_at, clock_timestamp() as now,
                      coalesce(l.segment, r.segment) as segment, j.id
               from duly.jobs j left join duly.lease l on l.job_id = j.id left join duly.ready r on r.job_id = j.id
               where j.status not in ('succeeded', 'dead', 'cancelled') limit 20"""
        )
        lines = "\n".join(str(dict(row)) for row in left)
        raise AssertionError(f"not settled in time: {await queue.conservation(db)}\n{lines}") from None
