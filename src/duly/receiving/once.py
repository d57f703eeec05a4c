"""Was this job done already? A record in the receiver's own database, written in the transaction that does the work.

A delivery may arrive twice (a lost answer, a worker that died after the target had answered), so the receiver
decides: whoever writes the record first does the work, and both commit together or not at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable
from typing import Any, overload
from uuid import UUID

from duly.model.errors import InvalidInputError
from duly.tasks.connections import AsyncLink, SyncLink, link
from duly.tasks.task import AsyncConnection, AsyncExecutor, SyncConnection

TABLE = "duly_processed"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")
_CREATE = """
    create table if not exists {table} (job_id uuid primary key, processed_at timestamptz not null default now())
"""
_RECORD = """
    with made as (
        insert into {table} (job_id) values (cast($1 as uuid)) on conflict (job_id) do nothing returning job_id)
    select cast(count(*) as text) from made
"""


@overload
def processed_once(on: SyncConnection, job_id: UUID, *, table: str = TABLE) -> bool: ...
@overload
def processed_once(on: AsyncConnection, job_id: UUID, *, table: str = TABLE) -> Awaitable[bool]: ...
@overload
def processed_once(on: AsyncExecutor, job_id: UUID, *, table: str = TABLE) -> Awaitable[bool]: ...
def processed_once(on: Any, job_id: UUID, *, table: str = TABLE) -> Any:
    """True the first time for a job: do its work now, in this transaction, and commit. False: it is done, answer 200.

    A rival that is not committed is waited for: True if it rolls back. The connection is any that tasks are enqueued
    on; where statements are awaited, this is too. Raises InvalidInputError on a connection that would commit the
    record alone.
    """
    chosen = link(on)
    statement = _RECORD.format(table=_checked(table))
    if inspect.iscoroutinefunction(chosen.text):
        return _recorded_async(chosen, statement, job_id)  # type: ignore[arg-type]
    return _recorded(chosen, statement, job_id)  # type: ignore[arg-type]


@overload
def create_processed_table(on: SyncConnection, *, table: str = TABLE) -> None: ...
@overload
def create_processed_table(on: AsyncConnection, *, table: str = TABLE) -> Awaitable[None]: ...
@overload
def create_processed_table(on: AsyncExecutor, *, table: str = TABLE) -> Awaitable[None]: ...
def create_processed_table(on: Any, *, table: str = TABLE) -> Any:
    """Make the table, if it is not there; or put its one statement into a migration of yours. Nothing is committed
    here.
    """
    return link(on).run(_CREATE.format(table=_checked(table)))


def _recorded(on: SyncLink, statement: str, job_id: UUID) -> bool:
    if on.autocommits():
        raise _would_commit()
    return on.text(statement, str(job_id)) == "1"


async def _recorded_async(on: AsyncLink, statement: str, job_id: UUID) -> bool:
    if await on.autocommits():
        raise _would_commit()
    return await on.text(statement, str(job_id)) == "1"


def _would_commit() -> InvalidInputError:
    return InvalidInputError(
        "this connection commits each statement by itself, so the record would be kept although the work fails: "
        "begin a transaction"
    )


def _checked(table: str) -> str:
    if not _NAME.fullmatch(table):
        raise InvalidInputError(
            f"{table!r} is no plain table name: lower-case letters, digits and _, with a schema or without"
        )
    return table
