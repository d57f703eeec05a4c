"""A worker's own life: register, renew all its leases at once, go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from duly.queue.database import Executor


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal that was granted. `abort`: attempts that the worker is asked to stop."""

    abort: frozenset[tuple[UUID, int]]


async def register(
    db: Executor, name: str, kinds: Sequence[str], queues: Sequence[str] | None, concurrency: int, lease: timedelta
) -> int:
    """Announce a worker process; returns its id. Its leases are good for `lease` from now."""
    worker_id: int = await db.fetchval(
        "select duly.register($1, $2, $3, $4, $5)", name, kinds, queues, concurrency, lease.total_seconds()
    )
    return worker_id


async def heartbeat(db: Executor, worker_id: int) -> Renewal | None:
    """Renew everything the worker holds. None: it is not registered any more."""
    row = await db.fetchrow("select abort_ids, abort_attempts from duly.heartbeat($1)", worker_id)
    if row is None:
        return None
    return Renewal(frozenset(zip(row["abort_ids"], row["abort_attempts"], strict=True)))


async def deregister(db: Executor, worker_id: int) -> None:
    """Take the worker's row away. Anything it still holds is rescued at once."""
    await db.execute("select duly.deregister($1)", worker_id)
