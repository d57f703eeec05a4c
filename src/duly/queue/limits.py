"""What its owner says about a queue: how many of its jobs run at once, how many start over time, pauses, and what new
jobs take from it. And how much an account may run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta

import asyncpg

from duly.model.defaults import JobDefaults
from duly.model.storable import read_json
from duly.queue.database import Executor

_COLUMNS = "q.concurrency, q.key_concurrency, q.rate_limit, q.rate_seconds, q.defaults, q.paused"
_GET = f"select {_COLUMNS} from duly.queue q where q.project_id = $1 and q.name = $2"
_FIND = """
    select exists (select from duly.queue q where q.project_id = $1 and q.name = $2) or exists (
        select from duly.lane_block b where b.account_id = $3 and b.project_id = $1 and b.queue = $2)
"""
_LIST = f"""
    select n.name, {_COLUMNS}
    from (
        select name from duly.queue where project_id = $1
        union
        select b.queue from duly.lane_block b where b.account_id = $2 and b.project_id = $1) n (name)
    left join duly.queue q on q.project_id = $1 and q.name = n.name
    where n.name collate "C" > $3 order by n.name collate "C" limit $4
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many attempts may start: `limit` in every `per`, evenly, but a block of a tenth of the limit at once."""

    limit: int
    per: timedelta


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What applies to a queue of a project. `concurrency`: how many of its jobs run at once, over all workers (None: no
    limit); `key_concurrency`: and how many of those with one concurrency key; jobs without a key count for the queue
    only. `rate`: how many attempts start over time. `defaults`: what its new jobs take where they say nothing.
    """

    concurrency: int | None = None
    key_concurrency: int | None = None
    paused: bool = False
    rate: Rate | None = None
    defaults: JobDefaults = field(default_factory=JobDefaults)


async def set_queue(
    db: Executor, project_id: int, name: str, settings: QueueSettings, *, keep_pause: bool = False
) -> None:
    """Replace a queue's settings, before or after its first job; with `keep_pause` all but the pause. It binds every
    claim that has not ended when this returns. What runs goes on, also above a limit that fell.

    Raises DatabaseBusyError if a claim for the account stays open for 5 seconds: nothing was changed.
    """
    defaults = settings.defaults.to_json()
    await db.execute(
        "select duly.set_queue($1, $2, $3, $4, $5, $6, $7, $8)",
        project_id,
        name,
        settings.concurrency,
        settings.key_concurrency,
        None if settings.rate is None else settings.rate.limit,
        None if settings.rate is None else settings.rate.per.total_seconds(),
        None if defaults is None else json.dumps(defaults),
        None if keep_pause else settings.paused,
    )


async def pause_queue(db: Executor, project_id: int, name: str, paused: bool) -> None:
    """Hand out no more of a queue's jobs, or again; as binding as `set_queue`."""
    await db.execute("select duly.pause_queue($1, $2, $3)", project_id, name, paused)


async def unset_queue(db: Executor, project_id: int, name: str) -> bool:
    """Forget what was set, the pause too; False if nothing was. Its jobs stay."""
    found: bool = await db.fetchval("select duly.unset_queue($1, $2)", project_id, name)
    return found


async def get_queue(db: Executor, project_id: int, name: str) -> QueueSettings:
    """A queue's settings; those without limits if nothing was ever set."""
    row = await db.fetchrow(_GET, project_id, name)
    return QueueSettings() if row is None else _settings(row)


async def queue_is_known(db: Executor, account_id: int, project_id: int, name: str) -> bool:
    """Whether anything was ever set for a queue, or a job put into it."""
    known: bool = await db.fetchval(_FIND, project_id, name, account_id)
    return known


async def list_queues(
    db: Executor, account_id: int, project_id: int, *, after: str = "", limit: int = 50
) -> list[tuple[str, QueueSettings]]:
    """A project's queues by name, those behind `after`: what was set, and what has ever had a job."""
    rows = await db.fetch(_LIST, project_id, account_id, after, limit)
    return [(row["name"], QueueSettings() if row["paused"] is None else _settings(row)) for row in rows]


async def set_account_concurrency(db: Executor, account_id: int, concurrency: int | None) -> None:
    """How many jobs of an account run at once, over all its projects and all workers; None: no limit. As binding as
    `set_queue`.
    """
    await db.execute("select duly.set_account_concurrency($1, $2)", account_id, concurrency)


async def set_account_weight(db: Executor, account_id: int, weight: int) -> None:
    """An account's part of each claim, beside those of others that have work due: 1 (as all have at first) to 100."""
    await db.execute("select duly.set_account_weight($1, $2)", account_id, weight)


def _settings(row: asyncpg.Record) -> QueueSettings:
    return QueueSettings(
        row["concurrency"],
        row["key_concurrency"],
        row["paused"],
        None if row["rate_limit"] is None else Rate(row["rate_limit"], timedelta(seconds=row["rate_seconds"])),
        JobDefaults.from_json(row["defaults"] and read_json(row["defaults"])),
    )
