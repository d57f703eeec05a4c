"""One call for many jobs: an operation is a row, and upkeep carries it out in steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.storable import read_json
from duly.queue.database import Executor
from duly.queue.enqueue import Owner
from duly.queue.finding import JobFilter

Call: TypeAlias = Literal["cancel", "redrive"]

_COLUMNS = """o.id, o.call, o.filter, o.most, o.rate, o.requested_by, o.requested_at, o.looked, o.done, o.refused,
              o.finished_at"""


@dataclass(frozen=True, slots=True)
class Operation:
    """How far a call for many jobs got. `looked`: jobs looked at; `done`: jobs cancelled or redriven; `refused`: jobs
    that matched, and had moved on or may not be redriven. `finished_at` None: it goes on.
    """

    id: UUID
    call: Call
    filter: dict[str, Any]
    most: int
    rate: float
    requested_by: str
    requested_at: datetime
    looked: int
    done: int
    refused: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did. `wait`: until the operation's next one."""

    operation_id: UUID
    done: int
    refused: int
    finished: bool
    wait: timedelta


async def make_operation(
    db: Executor, owner: Owner, call: Call, wanted: JobFilter, *, most: int, rate: float, by: str
) -> Operation:
    """Ask for `most` matching jobs at most, `rate` a second. Upkeep begins when this is committed."""
    row = await db.fetchrow(
        f"""insert into duly.operation as o (id, account_id, project_id, call, filter, most, rate, requested_by)
            values ($1, $2, $3, $4, $5, $6, $7, $8) returning {_COLUMNS}""",
        *(uuid7(), owner.account_id, owner.project_id, call, json.dumps(wanted.to_json()), most, rate, by),
    )
    assert row is not None
    return _operation(row)


async def list_operations(db: Executor, owner: Owner | None, limit: int = 50) -> list[Operation]:
    """The owner's operations, or everybody's, those asked for last first."""
    its = "where o.account_id = $2 and o.project_id = $3" if owner else ""
    of = () if owner is None else (owner.account_id, owner.project_id)
    rows = await db.fetch(f"select {_COLUMNS} from duly.operation o {its} order by o.id desc limit $1", limit, *of)
    return [_operation(row) for row in rows]


async def get_operation(db: Executor, owner: Owner, operation_id: UUID) -> Operation | None:
    """One of the owner's operations, or None."""
    row = await db.fetchrow(
        f"select {_COLUMNS} from duly.operation o where o.id = $1 and o.account_id = $2 and o.project_id = $3",
        *(operation_id, owner.account_id, owner.project_id),
    )
    return None if row is None else _operation(row)


def _operation(row: asyncpg.Record) -> Operation:
    return Operation(**{**dict(row), "filter": read_json(row["filter"])})


async def step_operation(db: Executor, batch: int, look: int) -> Step | None:
    """Carry out a step of an operation whose time has come: look at `look` jobs at most, change `batch` of them at
    most. None: there is nothing to do now.
    """
    row = await db.fetchrow(
        "select operation, done, refused, finished, wait_seconds from duly.step_operation($1, $2)", batch, look
    )
    if row is None:
        return None
    return Step(row["operation"], row["done"], row["refused"], row["finished"], timedelta(seconds=row["wait_seconds"]))
