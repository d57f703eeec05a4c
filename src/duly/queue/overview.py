"""What an on-call person asks first: what waits, what runs, what came of the last minutes, what is dead and why.

Every answer is bounded, whatever the size of the tables: by live segments, by a number of rows, or by pages at the end
of a fact's table. Where more was there than was looked at, it says so.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.queue.database import Database, Executor, Session
from duly.queue.enqueue import Owner

MOST_LINES = 200
MOST_WAITING = 5_000
MOST_RUNNING = 20_000
PAGES = 400
"""How many pages of the ledger, and of the jobs, are read for the figures of the last minutes."""

_BACKLOG = """
    select b.account_id, b.project_id, b.queue, sum(b.waiting)::bigint as waiting, min(b.oldest_at) as oldest_at
    from duly.backlog($1, $2, $3, $4) b group by 1, 2, 3 order by 4 desc, 1, 2, 3
"""
_IN_USE = """
    select u.worker_id, u.account_id, u.project_id, u.queue, u.running from duly.in_use($2) u
    where $1::integer is null or u.project_id = $1 order by 1, 2, 3, 4
"""
_RUNNING = """
    select r.job_id, r.worker_id, r.attempt, r.claimed_at, r.queue, r.target from duly.running_jobs($1, $2) r
"""
_DEAD = """
    select d.job_id, d.account_id, d.project_id, d.queue, d.target, d.reason, d.attempts, d.finished_at, d.outcome,
           d.status_code, d.error, d.looked_to
    from duly.dead_letters($1, $2, $3) d
"""
_SIZES = """
    select pg_stat_get_live_tuples('duly.ready'::regclass) as ready,
           pg_stat_get_live_tuples('duly.scheduled'::regclass) as scheduled
"""
_NAMES = """
    select p.id, p.public_id, p.account_id, a.name as account, p.name as project
    from duly.project p join duly.account a on a.id = p.account_id where p.id = any ($1::integer[])
"""
# target: scheme, user and path taken off, so that those of one host are one line
_RECENT = r"""
    with since as (select now() as now, now() - make_interval(secs => $2) as since),
    recent as materialized (
        select floor(extract(epoch from s.now - a.finished_at) / $3)::integer as ago,
               a.outcome = 'success' as succeeded, a.outcome, a.status_code, a.seconds, a.waited_seconds, a.weight,
               substring(a.target from '^[^:/]*://(?:[^/?#]*@)?([^/?#]*)') as host
        from since s cross join duly.recent_attempts($1, s.since, $4) a),
    arrivals as materialized (
        select floor(extract(epoch from s.now - j.created_at) / $3)::integer as ago, j.weight
        from since s cross join duly.recent_arrivals($1, s.since, $4) j),
    spans as (
        select r.ago, grouping(r.ago) = 1 as whole, sum(r.weight) filter (where r.succeeded) as succeeded,
               sum(r.weight) filter (where not r.succeeded) as failed,
               percentile_cont(array[0.5, 0.95]) within group (order by r.seconds) as took,
               percentile_cont(array[0.5, 0.95]) within group (order by r.waited_seconds) as waited
        from recent r group by grouping sets ((r.ago), ())),
    failures as (
        select r.host, r.outcome, r.status_code, sum(r.weight) as failed, min(r.ago) as last_ago
        from recent r where not r.succeeded group by 1, 2, 3 order by 4 desc limit 12)
    select s.now as at,
           (select max(r.weight) from duly.recent_runs('attempt', 'finished_at', s.since, $4) r) as weight,
           (select sum(r.weight) from recent r where r.outcome = 'worker_lost') as lost,
           (select json_agg(row_to_json(x)) from spans x) as spans,
           (select json_agg(row_to_json(x))
            from (select a.ago, sum(a.weight) as arrived from arrivals a group by 1) x) as arrivals,
           (select json_agg(row_to_json(x)) from failures x) as failures
    from since s
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Due jobs of one queue that wait. `waiting` above MOST_WAITING means that there are at least so many.
    `oldest_at`: since when the oldest of those counted is due.
    """

    account_id: int
    project_id: int
    queue: str
    waiting: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class InUse:
    """Slots of one worker that jobs of one queue take."""

    worker_id: int
    account_id: int
    project_id: int
    queue: str
    running: int


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job under a lease. `target`: its URL, None if it has none."""

    job_id: UUID
    worker_id: int
    attempt: int
    claimed_at: datetime
    queue: str
    target: str | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead job and its last attempt, whose parts are None if none ran."""

    job_id: UUID
    account_id: int
    project_id: int
    queue: str
    target: str | None
    reason: str | None
    attempts: int
    finished_at: datetime
    outcome: str | None
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Those that were found, newest id first. `looked_to`: where to go on, None where there are no more."""

    letters: tuple[DeadLetter, ...]
    looked_to: UUID | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """About how many rows wait, by the server's own statistics."""

    ready: int
    scheduled: int


@dataclass(frozen=True, slots=True)
class ProjectName:
    """A project and its account, for people. `public_id`: the project's."""

    id: int
    public_id: UUID
    account_id: int
    account: str
    project: str


@dataclass(frozen=True, slots=True)
class Span:
    """What ended in one span of time. `took`, `waited`: (p50, p95) in seconds, None where nothing was measured:
    how long attempts took, and how late the first attempt of a job began.
    """

    succeeded: int = 0
    failed: int = 0
    arrived: int = 0
    took: tuple[float, float] | None = None
    waited: tuple[float, float] | None = None

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed


@dataclass(frozen=True, slots=True)
class Failing:
    """Attempts that failed in the same way. `last_ago`: how many spans ago the last one did."""

    host: str | None
    outcome: str
    status_code: int | None
    failed: int
    last_ago: int


@dataclass(frozen=True, slots=True)
class Recent:
    """The last `len(spans)` spans, the oldest first, and all of them together. `weight`: 1 if every attempt was
    counted, n if every n-th page was.
    """

    at: datetime
    every: timedelta
    spans: tuple[Span, ...]
    whole: Span
    weight: int
    lost: int
    failing: tuple[Failing, ...]


async def backlog(db: Executor, owner: Owner | None) -> list[Backlog]:
    """Due jobs that wait, by queue, the longest line first; None: of everybody. MOST_LINES queues at most."""
    account, project = (None, None) if owner is None else (owner.account_id, owner.project_id)
    return [Backlog(**dict(row)) for row in await db.fetch(_BACKLOG, account, project, MOST_LINES, MOST_WAITING)]


async def in_use(db: Executor, owner: Owner | None) -> list[InUse]:
    """Slots in use, by worker and queue; MOST_RUNNING are counted at most."""
    return [InUse(**dict(row)) for row in await db.fetch(_IN_USE, _project(owner), MOST_RUNNING)]


async def running_jobs(db: Executor, owner: Owner | None, limit: int = 200) -> list[RunningJob]:
    """What runs just now, the longest first."""
    return [RunningJob(**dict(row)) for row in await db.fetch(_RUNNING, _project(owner), limit)]


async def dead_letters(
    db: Executor, owner: Owner | None, *, before: UUID | None = None, look: int = 2_000
) -> DeadLetters:
    """The dead letters among the next `look` of everybody's, newest id first, after those down to `before`."""
    *rows, reach = await db.fetch(_DEAD, _project(owner), before, look)
    letters = tuple(DeadLetter(**{name: row[name] for name in DeadLetter.__slots__}) for row in rows)
    return DeadLetters(letters, reach["looked_to"])


async def sizes(db: Executor) -> Sizes:
    """About how many jobs wait in all, whatever their number."""
    row = await db.fetchrow(_SIZES)
    assert row is not None  # it has no table
    return Sizes(row["ready"], row["scheduled"])


async def project_names(db: Executor, project_ids: Iterable[int]) -> dict[int, ProjectName]:
    """Projects by their number; those that do not exist are left out."""
    rows = await db.fetch(_NAMES, sorted(set(project_ids)))
    return {row["id"]: ProjectName(**dict(row)) for row in rows}


async def recent(
    db: Executor,
    owner: Owner | None,
    *,
    every: timedelta = timedelta(seconds=30),
    count: int = 40,
    pages: int = PAGES,
) -> Recent:
    """What came and what ended in the last `count` spans of `every`. Reads `pages` pages at most, twice."""
    every_s = every.total_seconds()
    row = await db.fetchrow(_RECENT, _project(owner), every_s * count, every_s, pages)
    assert row is not None  # `since` is one row
    arrived = {part["ago"]: int(part["arrived"]) for part in _decoded(row["arrivals"])}
    known = {part["ago"]: part for part in _decoded(row["spans"]) if not part["whole"]}
    [whole] = [part for part in _decoded(row["spans"]) if part["whole"]]
    return Recent(
        at=row["at"],
        every=every,
        spans=tuple(_span(known.get(ago, {}), arrived.get(ago, 0)) for ago in reversed(range(count))),
        whole=_span(whole, sum(arrived.values())),
        weight=row["weight"] or 1,
        lost=int(row["lost"] or 0),
        failing=tuple(Failing(**part) for part in _decoded(row["failures"])),
    )


def _span(part: dict[str, Any], arrived: int) -> Span:
    return Span(
        int(part.get("succeeded") or 0),
        int(part.get("failed") or 0),
        arrived,
        _pair(part.get("took")),
        _pair(part.get("waited")),
    )


def _pair(shares: list[float] | None) -> tuple[float, float] | None:
    return None if shares is None else (shares[0], shares[1])


def _project(owner: Owner | None) -> int | None:
    return None if owner is None else owner.project_id


def _decoded(text: str | None) -> list[dict[str, Any]]:
    return json.loads(text) if text else []


@asynccontextmanager
async def quick(db: Database, limit: timedelta) -> AsyncIterator[Session]:
    """A session in which each statement only reads and ends within `limit`, or raises DatabaseBusyError."""
    async with db.transaction() as session:
        await session.execute(
            "select set_config('statement_timeout', $1, true), set_config('transaction_read_only', 'on', true)",
            str(int(limit.total_seconds() * 1000)),
        )
        yield session
