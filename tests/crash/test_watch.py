"""Rescue spares workers that had no chance to renew, because the database was away."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.engine import Engine
from support.sessions import server_up_for, until

LEASE = timedelta(seconds=1)


async def test_rescue_spares_a_worker_until_the_database_was_watched_for_its_lease(database: Database) -> None:
    """However long ago the server started: it may have recovered, or been a standby, for all that time."""
    engine = await Engine.start(database, LEASE)
    job = await engine.running()
    await engine.expire_worker()
    segments = await queue.live_segments(database, "lease")
    async with server_up_for(database, timedelta(days=1)) as session:
        assert await queue.rescue(session, segments, 10, LEASE * 0.9) == []
        [rescued] = await queue.rescue(session, segments, 10, LEASE * 1.1)
    assert (rescued.job_id, rescued.outcome) == (job.id, "worker_lost")


async def test_upkeep_watches_anew_after_a_rescue_that_failed(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch starts with the first rescue that was answered, goes on with each, and starts again after a failure."""
    engine = await Engine.start(database, LEASE)
    job = await engine.running()
    await engine.expire_worker()
    rescue, watches = queue.rescue, list[timedelta]()

    async def noted(db: Database, segments: Any, limit: int, watched: timedelta) -> Sequence[queue.Rescued]:
        watches.append(watched)
        if len(watches) == 3:
            raise DatabaseUnavailableError("away")
        return await rescue(db, segments, limit, watched)

    monkeypatch.setattr(queue, "rescue", noted)
    upkeep = Upkeep(database, Wakeups(database_url))
    await upkeep.rescue_step()
    await upkeep.rescue_step()
    with pytest.raises(DatabaseUnavailableError):
        await upkeep.rescue_step()
    await upkeep.rescue_step()
    await upkeep.rescue_step()
    assert watches[0] == watches[3] == timedelta(0)
    assert timedelta(0) < watches[1] < watches[2]
    assert watches[4] > timedelta(0)

    async def rescued() -> bool:
        await upkeep.rescue_step()
        return (await engine.attempts(job.id)) == [(1, "schedule", "worker_lost")]

    await until(rescued)
    assert watches[-1] > LEASE
