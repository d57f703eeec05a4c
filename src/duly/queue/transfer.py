"""Bringing jobs in and out by files: bodies in bulk, and which jobs are there already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from duly.model.ids import uuid7_time
from duly.queue.database import Executor, Session
from duly.queue.enqueue import Owner


async def read_bodies(db: Executor, owner: Owner, ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """The bodies of these jobs of the owner, as they are stored; jobs without one are left out."""
    rows = await db.fetch("select id, body from duly.bodies($1, $2, $3)", owner.account_id, owner.project_id, list(ids))
    return {row["id"]: row["body"] for row in rows}


async def known_jobs(db: Executor, ids: Iterable[UUID]) -> dict[UUID, Owner]:
    """Those of these ids that jobs have, and whose they are."""
    rows = await db.fetch("select id, account_id, project_id from duly.known_jobs($1)", list(ids))
    return {row["id"]: Owner(row["account_id"], row["project_id"]) for row in rows}


async def moments_with_jobs(db: Executor, milliseconds: Iterable[int]) -> list[int]:
    """Those of these moments (Unix time) at which the id of some job says that it was made."""
    moments = list(milliseconds)
    rows = await db.fetch(
        "select duly.moments_with_jobs($1, $2) as low",
        [UUID(int=moment << 80) for moment in moments],
        [UUID(int=(moment + 1) << 80) for moment in moments],
    )
    return sorted(row["low"].int >> 80 for row in rows)


async def oldest_job_at(db: Executor) -> datetime | None:
    """When the oldest id of a job says that it was made; None without jobs."""
    oldest: UUID | None = await db.fetchval("select duly.oldest_job()")
    return None if oldest is None else uuid7_time(oldest)


async def lock_imports(session: Session, project_ids: Iterable[int]) -> None:
    """Be the only one who imports into these projects until the transaction ends; others wait."""
    for project_id in sorted(set(project_ids)):
        await session.execute("select pg_advisory_xact_lock(hashtext('duly.import'), $1)", project_id)
