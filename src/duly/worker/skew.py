"""Does this machine's wall clock agree with the database's? Nothing here is decided by it; people read logs by it."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.queue.database import Executor

log = logging.getLogger("duly.worker")

_TOLERATED = timedelta(seconds=5)


def ahead(asked: datetime, database: datetime, heard: datetime) -> timedelta:
    """How far our clock is ahead of the database's (negative: behind) at least, when it said `database` between our
    `asked` and `heard`; zero when both may be right.
    """
    if database < asked:
        return asked - database
    return min(heard - database, timedelta(0))


async def warn_of_skew(db: Executor, worker_id: int) -> None:
    """Ask the database for its time, once, and warn if ours is more than five seconds away. It only tells: it never
    fails.
    """
    with suppress(DatabaseUnavailableError, asyncpg.PostgresError):
        asked = datetime.now(UTC)
        database = await queue.server_now(db)
        skew_s = ahead(asked, database, datetime.now(UTC)).total_seconds()
        if abs(skew_s) > _TOLERATED.total_seconds():
            log.warning(
                "this machine's clock is not the database's, which decides what is due and when a lease ends",
                extra={"worker_id": worker_id, "ahead_seconds": round(skew_s, 1)},
            )
