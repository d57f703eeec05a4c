"""Whoever waited for the row of a job that somebody changed sees the job as it was left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from duly import queue
from duly.model.jobs import Unique
from duly.queue import Change, Database, Session
from support.engine import Engine, new_job
from support.sessions import autocommitting, overlapping

Rival = Callable[[Engine, Session, queue.JobView], Awaitable[Any]]


async def change(engine: Engine, db: Session, job: queue.JobView) -> str:
    return await queue.change_job(db, job, Change(None, None, None, None, 1, None))


async def run(engine: Engine, db: Session, job: queue.JobView) -> str:
    return str(await queue.run_now(db, engine.owner, job.id))


async def cancel(engine: Engine, db: Session, job: queue.JobView) -> str:
    return str(await queue.cancel(db, engine.owner, job.id))


async def replace(engine: Engine, db: Session, job: queue.JobView) -> str:
    new = new_job(unique=Unique("k", on_conflict="replace"))
    [answer] = await queue.enqueue(db, [(engine.owner, new)])
    return str(answer.result)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    ("rival", "after_a_change", "without"),
    [
        (change, "stale", "changed"),
        (run, "run", "run"),
        (cancel, "cancelled", "cancelled"),
        (replace, "created", "created"),
    ],
)
async def test_beside_a_change(
    database: Database, database_url: str, rival: Rival, after_a_change: str, without: str, committed: bool
) -> None:
    """It waited for its time before and does afterwards: nobody may say that it did not."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue(delay=timedelta(hours=1), unique=Unique("k"))
    seen = await engine.view(job_id)
    answers: list[str] = []

    async def second(db: Session) -> None:
        answers.append(await rival(engine, db, seen))

    async def first(db: Session) -> None:
        assert await change(engine, db, seen) == "changed"

    async with autocommitting(database_url) as one, autocommitting(database_url) as other:
        assert await overlapping(database, one, first, other, second, commit=committed)
    assert answers == [after_a_change if committed else without]
    await engine.sound()
