"""Make jobs exist: () → scheduled | ready."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

from duly.model.jobs import NewJob
from duly.queue.database import Executor

Value = TypeVar("Value")

_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_ENQUEUE = """
    select place, result, stored_at, other
    from duly.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
                     $21, $22, p_patience => $23, p_replays_of => $24)
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose job it is: the cell's numbers of an account and one of its projects."""

    account_id: int
    project_id: int


class Enqueued(NamedTuple):
    """What became of one job: created, repeated (it was there, the same), conflict (its id is another's), taken or kept
    (another job holds its unique key, so it was not made).

    `stored_at`: when the job was created, by the database's clock. `other`: the job that holds the key; for a created
    one, the job that it replaced.
    """

    job_id: UUID
    result: Literal["created", "repeated", "conflict", "taken", "kept"]
    stored_at: datetime
    other: UUID | None = None


async def task_owner(db: Executor) -> Owner:
    """Whose the jobs of tasks are; made if nobody has enqueued one yet."""
    row = await db.fetchrow("select account_id, project_id from duly.task_project()")
    assert row is not None  # it answers or raises
    return Owner(row["account_id"], row["project_id"])


async def enqueue(
    db: Executor, items: Sequence[tuple[Owner, NewJob]], *, patience: timedelta | None = None
) -> list[Enqueued]:
    """Enqueue all in one statement; the answers stand in the same order. On a `Database` they are committed on return;
    on a `Session` they exist once its transaction commits. An exception means that nothing was stored.

    A rival that is not committed (the same unique key, the same new lane) is waited for, at most `patience` (None: as
    the session is set): then DatabaseBusyError. For a Database only: a session's transaction would go on with it.
    """
    if not items:
        return []
    owners = [owner for owner, _ in items]
    jobs = [job for _, job in items]
    rows = await db.fetch(
        _ENQUEUE,
        [job.id for job in jobs],
        [owner.account_id for owner in owners],
        [owner.project_id for owner in owners],
        [job.queue for job in jobs],
        [job.kind for job in jobs],
        _column([job.concurrency_key for job in jobs]),
        [job.priority for job in jobs],
        _column([job.run_at for job in jobs]),
        _column([None if job.delay is None else job.delay.total_seconds() for job in jobs]),
        [job.retry.max_attempts for job in jobs],
        [job.timeout.total_seconds() for job in jobs],
        _column([job.expires_at for job in jobs]),
        _column([_json(job.retry.to_json()) for job in jobs]),
        _column([_json(list(job.tags)) if job.tags else None for job in jobs]),
        _column([_json(job.metadata) for job in jobs]),
        [_ENCODE(job.payload) for job in jobs],
        _column([job.body for job in jobs]),
        *_unique(jobs),
        _column([_json(job.on_success) for job in jobs]),
        _column([_json(job.on_dead) for job in jobs]),
        None if patience is None else f"{patience // timedelta(milliseconds=1)}ms",
        _column([job.replay_of for job in jobs]),
    )
    answers: list[Any] = [None] * len(jobs)
    for row in rows:
        answers[row["place"] - 1] = Enqueued(jobs[row["place"] - 1].id, row["result"], row["stored_at"], row["other"])
    return answers


def _unique(jobs: Sequence[NewJob]) -> tuple[list[str | None], list[str | None], list[str | None]]:
    """Keys, how long they are held, what to do on conflict; three empty lists if no job has a key."""
    keys = [job.unique for job in jobs]
    if not any(keys):
        return [], [], []
    return (
        [None if key is None else key.key for key in keys],
        [None if key is None else key.unique_for for key in keys],
        [None if key is None else key.on_conflict for key in keys],
    )


def _column(values: list[Value]) -> list[Value]:
    """Nothing at all if no job has a value: `unnest` makes the same of it, and nulls would be work for nothing."""
    return values if any(value is not None for value in values) else []


def _json(value: Any) -> str | None:
    return None if value is None else _ENCODE(value)
