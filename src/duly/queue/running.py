"""running → out again: settle; and what a claim took unheard is given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from duly.model.outcomes import Report
from duly.model.recording import sound_report
from duly.model.results import RESULT_LIMIT_BYTES, JsonText
from duly.model.settlement import Settlement
from duly.model.storable import storable_json
from duly.queue.database import Executor
from duly.queue.segments import LiveSegments

_SETTLE = "select * from duly.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) refused"


async def settle(db: Executor, worker_id: int, settlements: Sequence[Settlement]) -> frozenset[UUID]:
    """Write how attempts ended. Returns the jobs that were refused: their lease was lost, nothing was written for them.

    Reports are made sound and values mended before they are sent (see model.recording and model.storable), so that
    recording an outcome never fails on its content.
    """
    if not settlements:
        return frozenset()
    if len({s.job_id for s in settlements}) < len(settlements):
        return await _settle_named_twice(db, worker_id, settlements)
    reports = [
        None if s.report is None else sound_report(s.report, "success" if s.edge == "succeeded" else "error")
        for s in settlements
    ]
    rows = await db.fetch(
        _SETTLE,
        worker_id,
        [s.job_id for s in settlements],
        [s.attempt for s in settlements],
        _column([None if s.edge == "succeeded" else s.edge for s in settlements]),
        _column([s.delay.total_seconds() or None for s in settlements]),
        _column([None if s.reason is None else s.reason.value for s in settlements]),
        _column([_outcome(s, r) for s, r in zip(settlements, reports, strict=True)]),
        _column([None if r is None else r.status_code for r in reports]),
        _column([None if r is None else r.error for r in reports]),
        _column([None if r is None else _detail(r) for r in reports]),
        _column([None if r is None else r.excerpt for r in reports]),
        _column([_result(s.result) for s in settlements]),
        _column([s.run_at for s in settlements]),
    )
    return frozenset(row["refused"] for row in rows)


async def _settle_named_twice(db: Executor, worker_id: int, settlements: Sequence[Settlement]) -> frozenset[UUID]:
    """Of several for one job only the latest attempt can have a lease, and of that the first word counts."""
    once: dict[UUID, Settlement] = {}
    for s in settlements:
        if s.job_id not in once or s.attempt > once[s.job_id].attempt:
            once[s.job_id] = s
    again = frozenset(job_id for job_id, times in Counter(s.job_id for s in settlements).items() if times > 1)
    return again | await settle(db, worker_id, list(once.values()))


async def give_back(db: Executor, worker_id: int, heard: Sequence[UUID], segments: LiveSegments) -> int:
    """Release what a claim took for the worker in an answer that never arrived; returns how many.

    `heard` are the jobs it knows of. No claim of the worker may be under way.
    """
    released: int = await db.fetchval(
        "select duly.give_back($1, $2, $3, $4)", worker_id, list(heard), segments.closed, segments.upwards_from
    )
    return released


def _column(values: list[Any]) -> list[Any]:
    """Nothing at all for a column of nulls: unnest fills it up again, and encoding 500 of them costs more than their
    job.
    """
    return values if any(value is not None for value in values) else []


_WITHOUT_REPORT = {"cancelled": "cancelled", "snooze": "snoozed", "interrupted": "interrupted"}


def _outcome(settlement: Settlement, report: Report | None) -> str | None:
    """The attempt's class for the ledger; None lets the edge decide: success for succeeded, otherwise no row."""
    if report is not None and settlement.edge not in ("snooze", "interrupted"):
        return report.result
    return _WITHOUT_REPORT.get(settlement.edge)


def _result(result: Any) -> str | None:
    if result is None:
        return None
    return result.text if type(result) is JsonText else storable_json(result, RESULT_LIMIT_BYTES)


def _detail(report: Report) -> str | None:
    detail: dict[str, Any] = dict(report.detail)
    if report.duration is not None:
        detail["duration_ms"] = round(report.duration.total_seconds() * 1000, 3)
    if report.excerpt_truncated:
        detail["excerpt_truncated"] = True
    return storable_json(detail) if detail else None
