"""Reading: jobs, attempts, workers, and whether the ledger adds up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly.model.jobs import Unique, unique_until
from duly.model.retry import RetryPolicy
from duly.model.states import State
from duly.model.storable import read_json
from duly.queue.database import Executor
from duly.queue.enqueue import Owner

_COLUMNS = """
    v.id, v.account_id, v.project_id, v.queue, v.concurrency_key, v.kind, v.priority, v.status, v.reason, v.attempts,
    v.final_attempt, v.max_attempts, v.run_at, v.next_run_at, v.started_at, v.finished_at,
    v.last_outcome, v.last_status_code, v.last_error, v.cancel_requested, v.held, v.result, v.created_at,
    j.payload, j.timeout_seconds, j.retry, j.tags, j.metadata, j.expires_at, j.unique_key, j.unique_for,
    j.on_success, j.on_dead, j.callback_of, j.replay_of, j.revision
"""
_JOB = f"""
    select {_COLUMNS}, case when $4 then j.body end as body, j.body is not null as has_body
    from duly.jobs v join duly.job j on j.id = v.id
    where v.id = $3 and ($1::integer is null or (v.account_id = $1 and v.project_id = $2))
"""
_LIST = f"""
    select {_COLUMNS}, null::bytea as body, j.body is not null as has_body
    from duly.jobs v join duly.job j on j.id = v.id
    where {{owner}} ($3::uuid is null or v.id < $3) and ($4::text is null or v.status = $4)
      and ($5::text is null or v.queue = $5) and ($6::text is null or $6 = any (j.tags))
    order by v.id desc limit $7
"""
_LIST_OF_OWNER = _LIST.format(owner="j.account_id = $1 and j.project_id = $2 and")
_LIST_OF_ALL = _LIST.format(owner="$1::integer is null and $2::integer is null and")
_ATTEMPTS = """
    select a.job_id, a.number, a.trigger, a.worker_id, a.started_at, a.finished_at, a.outcome, a.status_code, a.error,
           a.next_run_at, a.detail, a.excerpt
    from duly.attempt a where a.job_id = $1 order by a.number
"""
_WORKERS = """
    select w.id, w.name, w.kinds, w.queues, w.concurrency, w.started_at, w.heartbeat_at, w.lease_expires_at,
           w.lease_expires_at > clock_timestamp() as alive
    from duly.worker w order by w.id
"""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it stands now. `attempts`: how many were started; `next_run_at`: set while scheduled or ready.
    `on_success`, `on_dead`: payloads of its callbacks; `callback_of`: the job whose end this one tells. `held`: it was
    due and waits because deliveries to its target are held. `replay_of`: the job that it was copied from. `revision`:
    how often it was changed while it waited.
    """

    id: UUID
    account_id: int
    project_id: int
    queue: str
    concurrency_key: str | None
    kind: str
    payload: Any
    body: bytes | None
    has_body: bool
    priority: int
    state: State
    reason: str | None
    attempts: int
    final_attempt: int
    max_attempts: int
    run_at: datetime
    next_run_at: datetime | None
    timeout: timedelta
    retry: RetryPolicy
    tags: tuple[str, ...]
    metadata: Any
    expires_at: datetime | None
    unique: Unique | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_outcome: str | None
    last_status_code: int | None
    last_error: str | None
    cancel_requested: bool
    held: bool
    result: Any
    on_success: Any
    on_dead: Any
    callback_of: UUID | None
    replay_of: UUID | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt that ended. `detail` holds phases, kept headers and the like; `excerpt` the first bytes of the
    answer.
    """

    job_id: UUID
    number: int
    trigger: str
    worker_id: int
    started_at: datetime
    finished_at: datetime
    outcome: str
    status_code: int | None
    error: str | None
    next_run_at: datetime | None
    detail: dict[str, Any]
    excerpt: bytes | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process as the database knows it."""

    id: int
    name: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    concurrency: int
    started_at: datetime
    heartbeat_at: datetime
    lease_expires_at: datetime
    alive: bool


@dataclass(frozen=True, slots=True)
class Conservation:
    """Where all jobs are, in one snapshot; the last six are 0 on a sound system."""

    jobs: int
    scheduled: int
    ready: int
    running: int
    succeeded: int
    dead: int
    cancelled: int
    jobs_nowhere: int
    jobs_in_several_places: int
    places_without_job: int
    ready_in_retired_segments: int
    leases_in_retired_segments: int
    unique_keys_held_twice: int

    @property
    def faults(self) -> dict[str, int]:
        """The counts that should be 0 and are not."""
        names = [f.name for f in fields(self)][-6:]
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def holds(self) -> bool:
        return not self.faults


async def get_job(db: Executor, owner: Owner | None, job_id: UUID, *, include_body: bool = False) -> JobView | None:
    """One job of this owner (None: of anybody, for operators), or None. The body only if asked for."""
    row = await db.fetchrow(_JOB, *_ids(owner), job_id, include_body)
    return None if row is None else job_view(row)


async def list_jobs(
    db: Executor,
    owner: Owner | None,
    *,
    state: State | None = None,
    queue: str | None = None,
    tag: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[JobView]:
    """Jobs of this owner (None: of everybody), newest id first, without bodies; `before` is the last id of the page
    before.
    """
    rows = await db.fetch(
        _LIST_OF_ALL if owner is None else _LIST_OF_OWNER, *_ids(owner), before, state, queue, tag, limit
    )
    return [job_view(row) for row in rows]


async def list_attempts(db: Executor, owner: Owner | None, job_id: UUID) -> list[AttemptView] | None:
    """The ledger of one job, oldest attempt first; None: no such job of this owner."""
    known = await db.fetchval(
        """select true from duly.job j
           where j.id = $3 and ($1::integer is null or (j.account_id = $1 and j.project_id = $2))""",
        *_ids(owner),
        job_id,
    )
    if not known:
        return None
    return [_attempt_view(row) for row in await db.fetch(_ATTEMPTS, job_id)]


async def list_workers(db: Executor) -> list[WorkerView]:
    """Every worker known, alive or not, oldest first."""
    return [
        WorkerView(**{**dict(r), "kinds": tuple(r["kinds"]), "queues": r["queues"] and tuple(r["queues"])})
        for r in await db.fetch(_WORKERS)
    ]


async def conservation(db: Executor) -> Conservation:
    """Count where all jobs are, in one snapshot. Reads everything: for tests and `duly doctor`."""
    row = await db.fetchrow("select * from duly.conservation()")
    assert row is not None  # aggregates always give one row
    return Conservation(**dict(row))


async def server_now(db: Executor) -> datetime:
    """The database's clock."""
    now: datetime = await db.fetchval("select clock_timestamp()")
    return now


def _ids(owner: Owner | None) -> tuple[int | None, int | None]:
    return (None, None) if owner is None else (owner.account_id, owner.project_id)


def job_view(row: asyncpg.Record) -> JobView:
    return JobView(
        id=row["id"],
        account_id=row["account_id"],
        project_id=row["project_id"],
        queue=row["queue"],
        concurrency_key=row["concurrency_key"],
        kind=row["kind"],
        payload=read_json(row["payload"]),
        body=row["body"],
        has_body=row["has_body"],
        priority=row["priority"],
        state=State(row["status"]),
        reason=row["reason"],
        attempts=row["attempts"],
        final_attempt=row["final_attempt"],
        max_attempts=row["max_attempts"],
        run_at=row["run_at"],
        next_run_at=row["next_run_at"],
        timeout=timedelta(seconds=row["timeout_seconds"]),
        retry=RetryPolicy.from_json(_decoded(row["retry"]), row["max_attempts"]),
        tags=tuple(row["tags"] or ()),
        metadata=_decoded(row["metadata"]),
        expires_at=row["expires_at"],
        unique=_unique(row["unique_key"], row["unique_for"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        last_outcome=row["last_outcome"],
        last_status_code=row["last_status_code"],
        last_error=row["last_error"],
        cancel_requested=row["cancel_requested"],
        held=row["held"],
        result=_decoded(row["result"]),
        on_success=_decoded(row["on_success"]),
        on_dead=_decoded(row["on_dead"]),
        callback_of=row["callback_of"],
        replay_of=row["replay_of"],
        revision=row["revision"] or 0,
    )


def _unique(key: str | None, unique_for: str | None) -> Unique | None:
    return None if key is None or unique_for is None else Unique(key, unique_until(unique_for))


def _attempt_view(row: asyncpg.Record) -> AttemptView:
    return AttemptView(**{**dict(row), "detail": _decoded(row["detail"]) or {}})


def _decoded(text: str | None) -> Any:
    return None if text is None else read_json(text)
