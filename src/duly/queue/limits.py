"""How many jobs may run at once, and pauses: of an account, a queue, a concurrency key."""

from __future__ import annotations

from dataclasses import dataclass

from duly.queue.database import Executor


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What applies to a queue of a project. `concurrency`: how many of its jobs run at once, over all workers (None: no
    limit); `key_concurrency`: and how many of those with one concurrency key; jobs without a key count for the queue
    only.
    """

    concurrency: int | None = None
    key_concurrency: int | None = None
    paused: bool = False


async def set_queue(db: Executor, project_id: int, name: str, settings: QueueSettings) -> None:
    """Replace a queue's settings, before or after its first job. What runs goes on, also above a limit that fell."""
    await db.execute(
        "select duly.set_queue($1, $2, $3, $4, $5)",
        project_id,
        name,
        settings.concurrency,
        settings.key_concurrency,
        settings.paused,
    )


async def get_queue(db: Executor, project_id: int, name: str) -> QueueSettings:
    """A queue's settings; those without limits if nothing was ever set."""
    row = await db.fetchrow(
        "select concurrency, key_concurrency, paused from duly.queue where project_id = $1 and name = $2",
        project_id,
        name,
    )
    return QueueSettings() if row is None else QueueSettings(**dict(row))


async def set_account_concurrency(db: Executor, account_id: int, concurrency: int | None) -> None:
    """How many jobs of an account run at once, over all its projects and all workers; None: no limit."""
    await db.execute("select duly.set_account_concurrency($1, $2)", account_id, concurrency)
