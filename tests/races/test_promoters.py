"""Several promoters at once, and a promoter that stalls: each due job is promoted once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from duly import queue
from duly.queue import Database
from support.engine import Engine
from support.sessions import autocommitting, holding

HOUR = timedelta(hours=1)


async def due(engine: Engine, n: int) -> None:
    """As if n jobs had just come due."""
    for _ in range(n // 1000):
        await engine.enqueue(1000, delay=HOUR)
    await engine.db.execute("update duly.scheduled set run_at = now() - interval '1 second'")


async def test_promoters_at_once_promote_each_job_once(database: Database) -> None:
    """FO-010: six of them, without leadership: their counts add up, and the ledger is sound."""
    engine = await Engine.start(database)
    await due(engine, 4000)
    counts: list[int] = []

    async def promoter() -> None:
        while True:
            promoted = await queue.promote(database, 70, sweep=True)
            counts.append(promoted.count)
            if promoted.sleep > timedelta(0):
                return

    await asyncio.gather(*(promoter() for _ in range(6)))
    count = await engine.sound()
    assert (sum(counts), count.ready, count.scheduled) == (4000, 4000, 0)


async def test_a_promoter_that_stalls_holds_nobody_up_and_repeats_nothing(
    database: Database, database_url: str
) -> None:
    """FO-010: it hangs in the middle of a pass; another one promotes the rest without waiting; both commit."""
    engine = await Engine.start(database)
    await due(engine, 1000)
    async with holding(database_url) as (stalled, transaction), autocommitting(database_url) as other:
        await other.execute("set statement_timeout = '5s'")
        assert (await queue.promote(stalled, 300)).count == 300
        assert (await queue.promote(other, 1000)).count == 700
        assert (await queue.promote(other, 1000, sweep=True)).count == 0
        await transaction.commit()
    assert (await engine.sound()).ready == 1000
