"""ready → running → out again: claim and settle, the two hot statements."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly.model.jobs import ClaimedJob, Trigger
from duly.model.outcomes import Report
from duly.model.retry import RetryPolicy
from duly.model.settlement import Settlement
from duly.model.storable import storable_json, storable_text
from duly.queue.database import Executor
from duly.queue.segments import LiveSegments

_CLAIM = "select * from duly.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_SETTLE = "select * from duly.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) refused"

_REMEMBERED_ACCOUNTS = 256


@dataclass(slots=True)
class ClaimCursor:
    """Where a worker's round stands: the account served last, and for recent accounts the lane served last."""

    account: int = 0
    lanes: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def served(self, account: int, lane: int) -> None:
        self.account = account
        self.lanes[account] = lane
        self.lanes.move_to_end(account)
        if len(self.lanes) > _REMEMBERED_ACCOUNTS:
            self.lanes.popitem(last=False)


async def claim(
    db: Executor,
    worker_id: int,
    limit: int,
    kinds: Sequence[str],
    queues: Sequence[str] | None,
    cursor: ClaimCursor,
    segments: LiveSegments,
    rest: timedelta = timedelta(0),
) -> list[ClaimedJob]:
    """Take up to `limit` due jobs and lease them to the worker; move the cursor on. Empty: nothing is due.

    With `rest` the worker says that it sleeps that long if nothing is due: whoever brings work until then notifies. Raises LeaseLostError if the worker's own time has passed.
    """
    rows = await db.fetch(
        _CLAIM,
        worker_id,
        limit,
        kinds,
        queues,
        cursor.account,
        list(cursor.lanes.keys()),
        list(cursor.lanes.values()),
        segments.closed,
        segments.upwards_from,
        rest.total_seconds(),
    )
    jobs = [_claimed(row) for row in rows]
    last_account = last_lane = 0
    for job in jobs:
        if job.lane_id != last_lane or job.account_id != last_account:
            last_account, last_lane = job.account_id, job.lane_id
            cursor.served(last_account, last_lane)
    return jobs


async def settle(db: Executor, worker_id: int, settlements: Sequence[Settlement]) -> frozenset[UUID]:
    """Write how attempts ended. Returns the jobs that were refused: their lease was lost, nothing was written for them.

    Values are mended before they are sent (see model.storable), so that recording an outcome never fails on its content.
    """
    if not settlements:
        return frozenset()
    reports = [s.report for s in settlements]
    rows = await db.fetch(
        _SETTLE,
        worker_id,
        [s.job_id for s in settlements],
        [s.attempt for s in settlements],
        [s.edge for s in settlements],
        [s.delay.total_seconds() for s in settlements],
        [None if s.reason is None else s.reason.value for s in settlements],
        [_outcome(s) for s in settlements],
        [None if r is None else r.status_code for r in reports],
        [None if r is None or r.error is None else storable_text(r.error) for r in reports],
        [None if r is None else _detail(r) for r in reports],
        [None if r is None else r.excerpt for r in reports],
        [None if s.result is None else storable_json(s.result) for s in settlements],
    )
    return frozenset(row["refused"] for row in rows)


async def give_back(db: Executor, worker_id: int, heard: Sequence[UUID], segments: LiveSegments) -> int:
    """Release what a claim took for the worker in an answer that never arrived; returns how many.

    `heard` are the jobs it knows of. No claim of the worker may be under way.
    """
    released: int = await db.fetchval(
        "select duly.give_back($1, $2, $3, $4)", worker_id, list(heard), segments.closed, segments.upwards_from
    )
    return released


_WITHOUT_REPORT = {"succeeded": "success", "cancelled": "cancelled", "snooze": "snoozed", "interrupted": "interrupted"}


def _outcome(settlement: Settlement) -> str | None:
    if settlement.report is not None and settlement.edge not in ("snooze", "interrupted"):
        return settlement.report.result
    return _WITHOUT_REPORT.get(settlement.edge)


def _detail(report: Report) -> str | None:
    detail: dict[str, Any] = dict(report.detail)
    if report.duration is not None:
        detail["duration_ms"] = round(report.duration.total_seconds() * 1000, 3)
    if report.excerpt_truncated:
        detail["excerpt_truncated"] = True
    return storable_json(detail) if detail else None


def _claimed(row: asyncpg.Record) -> ClaimedJob:
    retry = row["retry"]
    max_attempts = row["max_attempts"]
    return ClaimedJob(
        id=row["job_id"],
        attempt=row["attempt"],
        final_attempt=row["final_attempt"],
        max_attempts=max_attempts,
        account_id=row["account_id"],
        project_id=row["project_id"],
        lane_id=row["lane_id"],
        queue=row["queue"],
        kind=row["kind"],
        priority=row["priority"],
        payload_json=row["payload"],
        body=row["body"],
        timeout=timedelta(seconds=row["timeout_seconds"]),
        retry=RetryPolicy.from_json(json.loads(retry) if retry else None, max_attempts),
        run_at=row["run_at"],
        trigger=Trigger(row["trigger"]),
        age=timedelta(seconds=row["age_seconds"]),
        expired=row["expired"],
    )
