"""A server killed soon after the schema was installed: a sequence may come back higher, and must not hide jobs."""

from __future__ import annotations

from duly import queue
from duly.embedded import EmbeddedPostgres
from duly.queue import Database
from support.engine import Engine


async def test_jobs_enqueued_before_the_first_segment_closed_survive_a_crash(mortal_cluster: EmbeddedPostgres) -> None:
    """What stood ready or ran under a lease is still found: no floor rose over it by the crash."""
    async with await Database.open(mortal_cluster.dsn()) as db:
        engine = await Engine.start(db)
        running = await engine.running()
        waiting = await engine.enqueue(5)
    mortal_cluster.kill()
    mortal_cluster.start()

    async with await Database.open(mortal_cluster.dsn()) as db:
        engine.db = db
        assert (await engine.sound()).ready == len(waiting)
        segments = await queue.live_segments(db, "lease")
        assert await queue.give_back(db, engine.worker_id, [], segments) == 1
        jobs = await engine.claim()
        assert {job.id for job in jobs} == {running.id, *waiting}
