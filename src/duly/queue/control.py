"""What people do to a job: cancel, run now, redrive. Each names the owner, so a foreign id is a missing one."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from duly.queue.database import Executor
from duly.queue.enqueue import Owner


async def cancel(
    db: Executor, owner: Owner, job_id: UUID, *, abort: bool = False
) -> Literal["cancelled", "requested", "final", "missing"]:
    """scheduled | ready → cancelled. Running: `requested`, no further attempt, and with `abort` the attempt is stopped.

    `final`: the job had already ended as succeeded or dead; nothing changed.
    """
    answer: Literal["cancelled", "requested", "final", "missing"] = await db.fetchval(
        "select duly.cancel($1, $2, $3, $4)", owner.account_id, owner.project_id, job_id, abort
    )
    return answer


async def run_now(db: Executor, owner: Owner, job_id: UUID) -> Literal["run", "wrong_state", "missing"]:
    """scheduled → ready."""
    answer: Literal["run", "wrong_state", "missing"] = await db.fetchval(
        "select duly.run_now($1, $2, $3)", owner.account_id, owner.project_id, job_id
    )
    return answer


async def redrive(
    db: Executor, owner: Owner, job_id: UUID, *, by: str | None = None
) -> Literal["redriven", "wrong_state", "missing", "key_taken", "expired"]:
    """dead | cancelled → ready with a fresh budget of attempts; numbers go on. `by` is kept for the record.

    `key_taken`: another job holds its unique key by now. `expired`: its `expires_at` has passed, it may not start any
    more. Nothing changed then.
    """
    answer: Literal["redriven", "wrong_state", "missing", "key_taken", "expired"] = await db.fetchval(
        "select duly.redrive($1, $2, $3, $4)", owner.account_id, owner.project_id, job_id, by
    )
    return answer
