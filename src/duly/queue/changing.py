"""Changing a job that waits for its time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from duly.model.retry import RetryPolicy
from duly.queue.database import Executor
from duly.queue.inspect import JobView

Changed: TypeAlias = Literal["changed", "stale", "wrong_state", "expired", "too_often", "missing"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be different; None stays. `payload` and `body` go together: with a payload the body is what is given,
    None for none. A `run_at` in the past is now.
    """

    run_at: datetime | None = None
    payload: Any = None
    body: bytes | None = None
    retry: RetryPolicy | None = None
    priority: int | None = None
    tags: Sequence[str] | None = None


async def change_job(db: Executor, seen: JobView, change: Change) -> Changed:
    """Change a scheduled job as it was seen. stale: it is not as it was seen any more. wrong_state: it does not wait
    for its time. expired: it would be due too late for its `expires_at`. Nothing changed then.
    """
    retry = change.retry
    answer: Changed = await db.fetchval(
        "select duly.change($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        seen.account_id,
        seen.project_id,
        seen.id,
        seen.revision,
        seen.attempts + 1,
        seen.next_run_at,
        change.run_at,
        _json(change.payload),
        change.body,
        None if retry is None else retry.max_attempts,
        None if retry is None else _json(retry.to_json()),
        change.priority,
        None if change.tags is None else list(change.tags),
    )
    return answer


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
