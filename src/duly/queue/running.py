"""ready → running → out again: claim and settle, the two hot statements."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import asyncpg

from duly.model.jobs import ClaimedJob, Trigger
from duly.model.outcomes import Report
from duly.model.recording import sound_report
from duly.model.results import RESULT_LIMIT_BYTES, JsonText
from duly.model.retry import RetryPolicy
from duly.model.settlement import Settlement
from duly.model.storable import read_json, storable_json
from duly.queue.database import Executor
from duly.queue.segments import LiveSegments

_CLAIM = """
    select job_id, attempt, final_attempt, trigger, run_at, priority, account_id, project_id, lane_id, queue, kind,
           max_attempts, timeout_seconds, retry, payload, body, age_seconds, expired
    from duly.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
"""
_SETTLE = "select * from duly.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) refused"

REMEMBERED_ACCOUNTS = 100_000
_TOLD_ACCOUNTS = 256  # a claim looks at fewer

Place = tuple[int, int]  # an account and a lane of its


@dataclass(frozen=True, slots=True)
class Shares:
    """How many jobs a claim may take of one account: `cap`, or what `capped` says. None: as many as it finds."""

    cap: int | None = None
    capped: Mapping[int, int] = field(default_factory=dict)


_NO_SHARES = Shares()


@dataclass(slots=True)
class ClaimCursor:
    """Where a worker's round stands: the account looked at last, and per account the lane looked at last.

    `wait`: after so long something that the last claim passed by may be claimed (a rate has tokens, a rival is done);
    None: nobody can tell. `swept`: where the last look at everything ended. `shares`: what the next claim may take of
    one account.
    """

    account: int = 0
    lanes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    wait: timedelta | None = None
    swept: Place = (0, 0)
    shares: Shares = _NO_SHARES
    _numbers: list[int] = field(default_factory=list)  # the accounts of `lanes`, in order

    def served(self, account: int, lane: int) -> None:
        self.account = account
        self.passed(account, lane)

    def passed(self, account: int, lane: int) -> None:
        """The account's next turn begins behind the lane."""
        if account not in self.lanes:
            insort(self._numbers, account)
        self.lanes[account] = lane
        self.lanes.move_to_end(account)
        if len(self.lanes) > REMEMBERED_ACCOUNTS:
            forgotten, _ = self.lanes.popitem(last=False)
            del self._numbers[bisect_left(self._numbers, forgotten)]

    def served_all(self, lanes: set[Place], after_account: int, seen: Mapping[int, int]) -> None:
        """Note what one claim served, given where its round began. Rows come back as they lie on disk, so the order of
        the round is made again: numbers after the start first, then from the lowest one.
        """
        for account, lane in sorted(
            lanes, key=lambda s: (s[0] <= after_account, s[0], s[1] <= seen.get(s[0], 0), s[1])
        ):
            self.served(account, lane)

    def ahead(self) -> dict[int, int]:
        """The lanes looked at last of the accounts whose turn comes next."""
        start = bisect_right(self._numbers, self.account)
        accounts = (self._numbers[start : start + _TOLD_ACCOUNTS] + self._numbers[:start])[:_TOLD_ACCOUNTS]
        return {account: self.lanes[account] for account in accounts}

    def waits(self, wait: timedelta | None) -> None:
        """Something else may be claimed then."""
        self.wait = wait if self.wait is None else self.wait if wait is None else min(wait, self.wait)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a claim told beside its jobs: whether it saw all that is due, when to look again, and where it stood."""

    through: bool = True
    wait: timedelta | None = None
    account: int | None = None
    lane: int | None = None
    passed: Mapping[str, str] = field(default_factory=dict)


_SEEN_ALL = _Seen()


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
    """Take up to `limit` due jobs and lease them to the worker; move the cursor on. Empty: nothing that is due may be
    claimed.

    With `rest` the worker says that it sleeps that long if nothing is due: whoever brings work until then notifies.
    Raises LeaseLostError if the worker's own time has passed.

    One statement looks at a bounded number of lanes. Where it found nothing and there is more to look at, all that is
    due is looked at once more in number order, statement by statement, until something is found: no round that was
    cut short ends in sleep.
    """

    async def ask(rest_s: float, place: Place | tuple[None, None]) -> tuple[list[ClaimedJob], _Seen]:
        rows = await db.fetch(
            _CLAIM,
            worker_id,
            limit,
            kinds,
            queues,
            after_account,
            list(seen.keys()),
            list(seen.values()),
            segments.closed,
            segments.upwards_from,
            rest_s,
            shares.cap,
            list(shares.capped.keys()),
            list(shares.capped.values()),
            *place,
        )
        told = _seen(rows.pop()) if rows and rows[-1][0] is None else _SEEN_ALL
        return [_claimed(row) for row in rows], told

    after_account, seen, shares = cursor.account, cursor.ahead(), cursor.shares
    jobs, told = await ask(rest.total_seconds(), (None, None))
    cursor.served_all({(job.account_id, job.lane_id) for job in jobs}, after_account, seen)
    for account, lane in told.passed.items():
        cursor.passed(int(account), int(lane))
    if told.account is not None:
        cursor.account = told.account
    cursor.wait = told.wait
    if jobs or told.through:
        return jobs

    start = at = cursor.swept
    wrapped = start == (0, 0)
    while not wrapped or at < start or start == (0, 0):
        jobs, told = await ask(0, at)
        cursor.waits(told.wait)
        at = (0, 0) if told.through else (told.account or 0, told.lane or 0)
        cursor.swept = at
        if jobs or (told.through and wrapped):
            break
        wrapped = wrapped or told.through
    return jobs


def _seen(row: asyncpg.Record) -> _Seen:
    wait = None if row["age_seconds"] is None else timedelta(seconds=row["age_seconds"])
    return _Seen(row["expired"], wait, row["account_id"], row["lane_id"], read_json(row["payload"]))


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


_TRIGGERS = {trigger.value: trigger for trigger in Trigger}


@lru_cache(maxsize=1024)
def _policy(retry: str | None, max_attempts: int) -> RetryPolicy:
    return RetryPolicy.from_json(read_json(retry) if retry else None, max_attempts)


@lru_cache(maxsize=1024)
def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _claimed(row: asyncpg.Record) -> ClaimedJob:
    # in the order of the columns: at 50,000 jobs a second a look-up by name costs as much as the rest
    (
        job_id, attempt, final_attempt, trigger, run_at, priority, account_id, project_id, lane_id, queue, kind,
        max_attempts, timeout_seconds, retry, payload, body, age_seconds, expired,
    ) = row  # fmt: skip
    limit, policy, age = _seconds(timeout_seconds), _policy(retry, max_attempts), timedelta(0, age_seconds)
    return ClaimedJob(
        job_id, attempt, final_attempt, max_attempts, account_id, project_id, lane_id, queue, kind, priority, payload,
        body, limit, policy, run_at, _TRIGGERS[trigger], age, expired,
    )  # fmt: skip
