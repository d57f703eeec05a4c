"""What is compared after every step: the database with the model, and what must hold whatever the model says."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from duly import queue
from duly.queue import Session
from machine.model import HOUR_S, Entry, Job, View, World

# One statement, one snapshot: a round trip a step is most of what a step costs.
_EVERYTHING = """
    with state as (
        select job_id, 'scheduled' as place, attempt, final_attempt, trigger, null as reason, null::bigint as worker_id,
               false as cancel_requested, false as abort_requested, null::bigint as segment, account_id, lane_id,
               priority, extract(epoch from run_at - clock_timestamp())::float8 as in_s
        from duly.scheduled
        union all
        select job_id, 'ready', attempt, final_attempt, trigger, null, null, false, false, segment,
               account_id, lane_id, priority, null
        from duly.ready
        union all
        select job_id, 'running', attempt, final_attempt, trigger, null, worker_id, cancel_requested, abort_requested,
               segment, account_id, lane_id, priority, extract(epoch from deadline_at - clock_timestamp())::float8
        from duly.lease
        union all
        select job_id, state, attempt, final_attempt, null, reason, null, false, false, null, null, null, null, null
        from duly.outcome
    ), ledger as (
        select job_id, number, trigger, outcome, worker_id from duly.attempt order by job_id, number
    ), fact as (
        select j.id, j.lane_id, (b.account_id, b.project_id, b.queue, b.kind, l.concurrency_key)
                   = (j.account_id, j.project_id, j.queue, j.kind, coalesce(j.concurrency_key, '')) as lane_fits,
               array(select d.after_attempt from duly.redrive d where d.job_id = j.id) as redrives
        from duly.job j join duly.lane l on l.id = j.lane_id join duly.lane_block b on b.id = l.block_id
    ), worker as (
        select id, extract(epoch from lease_expires_at - clock_timestamp())::float8 as in_s from duly.worker
    ), shown as (
        select id, status, reason, attempts, final_attempt, cancel_requested, last_outcome,
               finished_at is not null as finished, next_run_at is not null as waits, locked_by is not null as locked
        from duly.jobs
    )
    select (select json_agg(state) from state) as states, (select json_agg(ledger) from ledger) as ledger,
           (select json_agg(fact) from fact) as facts, (select json_agg(worker) from worker) as workers,
           (select json_agg(shown) from shown) as shown,
           row_to_json(duly.live_segments('ready')) as ready, row_to_json(duly.live_segments('lease')) as lease,
           row_to_json(duly.conservation()) as conservation
"""
_Row = dict[str, Any]


async def check(session: Session, world: World, name: str | None) -> None:
    """Everything, as the session sees it: one inside the open transaction `name`, or one without (None)."""
    found = await session.fetchrow(_EVERYTHING)
    assert found is not None
    seen: dict[str, Any] = {key: json.loads(text or "[]") for key, text in found.items()}
    _check_jobs(world.view(name), seen)
    for line, place in (("ready", "ready"), ("lease", "running")):
        _check_segments(seen[line], {row["segment"] for row in seen["states"] if row["place"] == place})
    faults = queue.Conservation(**seen["conservation"]).faults
    assert faults == {}, faults
    workers = {row["id"]: row["in_s"] for row in seen["workers"]}
    assert workers.keys() == world.workers.keys()
    assert all(_close(workers[worker], left_s) for worker, left_s in world.workers.items()), "lease of a worker"


def _check_jobs(view: View, seen: dict[str, Any]) -> None:
    places = {row["job_id"]: row for row in seen["states"]}
    assert len(places) == len(seen["states"]), "a job in several places"
    facts = {row["id"]: row for row in seen["facts"]}
    shown = {row["id"]: row for row in seen["shown"]}
    ledgers: dict[str, list[Entry]] = defaultdict(list)
    for row in seen["ledger"]:
        ledgers[row["job_id"]].append(Entry(row["number"], row["trigger"], row["outcome"], row["worker_id"]))
    jobs = {str(job.id): job for job in view.jobs()}
    assert places.keys() == facts.keys() == jobs.keys(), "jobs that are somewhere, that are stored, that should be"
    assert shown.keys() == jobs.keys()
    assert ledgers.keys() <= jobs.keys()
    for key, job in jobs.items():
        _check_state(job, places[key], facts[key])
        _check_ledger(job, places[key], tuple(ledgers[key]))
        _check_shown(view, job, shown[key])


def _check_state(job: Job, row: _Row, fact: _Row) -> None:
    assert (row["place"], row["attempt"], row["final_attempt"]) == (job.place, job.attempt, job.final_attempt)
    assert (row["worker_id"], row["reason"]) == (job.worker, job.reason)
    assert (row["cancel_requested"], row["abort_requested"]) == (job.cancel_requested, job.abort_requested)
    assert (frozenset(fact["redrives"]), fact["lane_fits"]) == (job.redrives, True)
    if job.final:
        return
    assert row["trigger"] == job.trigger
    assert (row["account_id"], row["lane_id"]) == (job.owner.account_id, fact["lane_id"])
    assert row["priority"] == job.spec.priority
    if job.place == "scheduled":
        assert _close(row["in_s"], job.due_in_s), "when it is due"
    if job.place == "running":
        assert _close(row["in_s"], job.deadline_in_s), "deadline"


def _check_ledger(job: Job, row: _Row, ledger: tuple[Entry, ...]) -> None:
    """As in the model; and without it: no gap, no repeat, no attempt without a trace or beyond the budget."""
    assert ledger == job.ledger
    assert [entry.number for entry in ledger] == list(range(1, len(ledger) + 1)), "a gap or a repeat in the ledger"
    assert len(ledger) == row["attempt"] - (0 if job.final else 1), "an attempt that ended without a trace"
    assert row["attempt"] <= row["final_attempt"], "beyond its budget"
    assert job.place != "running" or job.attempt in job.claims


def _check_segments(live: _Row, used: set[int]) -> None:
    """No row stands where nobody looks."""
    current = live["upwards_from"]
    assert all(segment in live["closed"] or segment == current for segment in used), "a row in a segment not live"


def _check_shown(view: View, job: Job, row: _Row) -> None:
    """What people see agrees with the states."""
    assert (row["status"], row["reason"], row["attempts"]) == (job.place, job.reason, job.started)
    assert (row["final_attempt"], row["cancel_requested"]) == (job.final_attempt, job.cancel_requested)
    assert row["last_outcome"] == (job.ledger[-1].outcome if job.ledger else None)
    assert (row["finished"], row["waits"]) == (job.final, job.place in ("scheduled", "ready"))
    assert row["locked"] == (job.worker in view.world.workers)


def _close(real_s: float, modelled_s: float) -> bool:
    """Times of the model are whole hours apart, but for what is due this minute; an example takes seconds."""
    return abs(real_s - modelled_s) < HOUR_S / 4
