"""Run all that is due, on the real engine, and stop."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from duly.queue import Database
from duly.tasks.app import App, default_app
from duly.tasks.worker import Worker
from duly.worker.runtime import Drained

_LEFT = """
    select count(*) from (
        select r.job_id from duly.ready r union all select l.job_id from duly.lease l union all
        select s.job_id from duly.scheduled s where s.run_at <= clock_timestamp()) waiting
    join duly.job j on j.id = waiting.job_id where j.kind = any ($1)
"""
_LOOK_EVERY_S = 0.01


async def drain(dsn: str, app: App = default_app, *, limit: timedelta = timedelta(seconds=60)) -> Drained:
    """Run a worker until no job of the app's tasks is due or running: those that jobs enqueue are run, too; retries
    and delayed ones wait for their time (see `Clock`). Raises TimeoutError after `limit`.
    """
    kinds = [kind for task in app for kind in task.kinds]
    async with asyncio.timeout(limit.total_seconds()):
        async with Worker(dsn, app=app, grace=limit) as worker:
            async with await Database.open(dsn, schema=app.schema, max_size=1, name="duly-testing") as db:
                while await db.fetchval(_LEFT, kinds):  # noqa: ASYNC110  the database tells nobody
                    await asyncio.sleep(_LOOK_EVERY_S)
            worker.stop()
            return await worker.wait()


def drain_now(dsn: str, app: App = default_app, *, limit: timedelta = timedelta(seconds=60)) -> Drained:
    """The same from code without a loop."""
    return asyncio.run(drain(dsn, app, limit=limit))
