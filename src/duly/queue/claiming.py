"""ready → running: claim, the round that claims make, and how it goes on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

import asyncpg

from duly.model.jobs import ClaimedJob, Trigger
from duly.model.retry import RetryPolicy
from duly.model.storable import read_json
from duly.queue.database import Executor
from duly.queue.segments import LiveSegments

_CLAIM = """
    select job_id, attempt, final_attempt, trigger, run_at, priority, account_id, project_id, lane_id, queue, kind,
           max_attempts, timeout_seconds, retry, payload, body, age_seconds, expired
    from duly.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
"""

REMEMBERED_ACCOUNTS = 100_000
_TOLD_ACCOUNTS = 256  # a claim looks at fewer
_MOST_TURNS = 10_000

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

    One statement looks at a bounded number of lanes. Where it found nothing and there is more to look at, the round
    goes on from where it stopped until each account has had its turn, and then all that is due is looked at in number
    order, in as many statements as that takes, until something is found: no round that was cut short ends in sleep.
    """

    args = [limit, kinds, queues], [segments.closed, segments.upwards_from]
    start = cursor.account
    rest_s = rest.total_seconds()
    for _ in range(_MOST_TURNS):  # pragma: no branch (a rival of the same cursor may move it on and on)
        before = cursor.account
        jobs, told = await _next_of_round(db, worker_id, args, cursor, rest_s)
        if jobs or told.through:
            return jobs
        if told.account is None or _went_past(start, before, told.account):
            break
        rest_s = 0
    return await _sweep(db, worker_id, args, cursor)


_Args = tuple[list[Any], list[Any]]


async def _next_of_round(
    db: Executor, worker_id: int, args: _Args, cursor: ClaimCursor, rest_s: float
) -> tuple[list[ClaimedJob], _Seen]:
    after_account, seen = cursor.account, cursor.ahead()
    jobs, told = await _ask(db, worker_id, args, cursor, seen, rest_s, (None, None))
    cursor.served_all({(job.account_id, job.lane_id) for job in jobs}, after_account, seen)
    for account, lane in told.passed.items():
        cursor.passed(int(account), int(lane))
    if told.account is not None:
        cursor.account = told.account
    cursor.wait = told.wait
    return jobs, told


async def _sweep(db: Executor, worker_id: int, args: _Args, cursor: ClaimCursor) -> list[ClaimedJob]:
    """Look at everything once, from where the last sweep stood."""
    start = at = cursor.swept
    wrapped = start == (0, 0)
    jobs: list[ClaimedJob] = []
    while not wrapped or at < start or start == (0, 0):
        jobs, told = await _ask(db, worker_id, args, cursor, {}, 0, at)
        cursor.waits(told.wait)
        at = (0, 0) if told.through else (told.account or 0, told.lane or 0)
        cursor.swept = at
        if jobs or (told.through and wrapped):
            break
        wrapped = wrapped or told.through
    return jobs


async def _ask(
    db: Executor,
    worker_id: int,
    args: _Args,
    cursor: ClaimCursor,
    seen: Mapping[int, int],
    rest_s: float,
    place: Place | tuple[None, None],
) -> tuple[list[ClaimedJob], _Seen]:
    what, where = args
    shares = cursor.shares
    rows = await db.fetch(
        _CLAIM,
        worker_id,
        *what,
        cursor.account,
        list(seen.keys()),
        list(seen.values()),
        *where,
        rest_s,
        shares.cap,
        list(shares.capped.keys()),
        list(shares.capped.values()),
        *place,
    )
    told = _seen(rows.pop()) if rows and rows[-1][0] is None else _SEEN_ALL
    return [_claimed(row) for row in rows], told


def _went_past(start: int, before: int, now: int) -> bool:
    """Whether a round over numbers that went up from `before` to `now`, or through the end when that is not higher,
    came by `start`.
    """
    return before < start <= now if before < now else start > before or start <= now


def _seen(row: asyncpg.Record) -> _Seen:
    wait = None if row["age_seconds"] is None else timedelta(seconds=row["age_seconds"])
    return _Seen(row["expired"], wait, row["account_id"], row["lane_id"], read_json(row["payload"]))


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
