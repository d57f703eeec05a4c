"""How far running jobs have come: in the lease, under its fence."""

from __future__ import annotations

from duly import queue
from duly.queue import Database, NotedProgress
from support.engine import Engine
from support.sessions import holding


async def noted(database: Database) -> list[object]:
    rows = await database.fetch("select progress::text as progress from duly.lease order by job_id")
    return [row["progress"] for row in rows]


async def test_the_latest_word_is_kept_with_the_lease(database: Database) -> None:
    """What JSON cannot hold is mended; the settle takes it along."""
    engine = await Engine.start(database)
    job = await engine.running()
    await queue.note_progress(database, [NotedProgress(job.id, job.attempt, {"share": 0.1})])
    await queue.note_progress(database, [NotedProgress(job.id, job.attempt, {"share": float("nan"), "m": "\x00"})])
    assert await noted(database) == ['{"m": "\u2400", "share": "nan"}']
    await queue.note_progress(database, [])
    await engine.finish(job)
    assert await noted(database) == []
    await engine.sound()


async def test_an_attempt_without_a_lease_notes_nothing(database: Database, database_url: str) -> None:
    """Another attempt's number, a job that is over, and one that somebody settles just now: passed by."""
    engine = await Engine.start(database)
    job, other = await engine.running(), await engine.running()
    stranger = NotedProgress(job.id, job.attempt + 1, 1)
    await queue.note_progress(database, [stranger])
    assert await noted(database) == [None, None]
    async with holding(database_url) as (session, transaction):
        await session.execute("select job_id from duly.lease where job_id = $1 for update", job.id)
        await queue.note_progress(
            database, [NotedProgress(job.id, job.attempt, 1), NotedProgress(other.id, other.attempt, 2)]
        )
        await transaction.rollback()
    assert sorted(map(str, await noted(database))) == ["2", "None"]
