"""How far running jobs have come, kept in the lease that each runs under, and gone with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from duly.model.storable import storable_json
from duly.queue.database import Executor


class NotedProgress(NamedTuple):
    """What one attempt says of itself: any JSON value; what JSON cannot hold is mended."""

    job_id: UUID
    attempt: int
    progress: Any


async def note_progress(db: Executor, noted: Sequence[NotedProgress]) -> None:
    """Write the latest word of each. An attempt whose lease is gone, or is being settled, is passed by."""
    if not noted:
        return
    await db.execute(
        "select duly.note_progress($1, $2, $3)",
        [one.job_id for one in noted],
        [one.attempt for one in noted],
        [storable_json(one.progress) for one in noted],
    )
