"""Two transactions enqueue at once, the same lane or the same id: the second waits, then says what became of it."""

from __future__ import annotations

import asyncio

from duly import queue
from duly.queue import Database
from support.engine import Engine, new_job
from support.sessions import autocommitting, holding, until_waiting


async def test_two_transactions_make_the_same_lane(database: Database, database_url: str) -> None:
    """The second waits for the first and uses its lane; after a rollback it makes its own."""
    engine = await Engine.start(database)
    for key, committed in (("a", True), ("b", False)):
        async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
            await engine.enqueue_on(first, concurrency_key=key)
            other = asyncio.create_task(engine.enqueue_on(second, concurrency_key=key))
            await until_waiting(database, second)
            await (transaction.commit() if committed else transaction.rollback())
            await other
    assert await database.fetchval("select count(*) from duly.lane") == 2
    assert len(await engine.claim()) == 3
    await engine.sound()


async def test_two_enqueues_of_the_same_id(database: Database, database_url: str) -> None:
    """A repeat that overtakes its own first try: it waits, and is then repeated, conflict or created."""
    engine = await Engine.start(database)
    other = new_job(payload={"other": True})
    for committed, payload, result in ((True, {}, "repeated"), (True, {"x": 1}, "conflict"), (False, {}, "created")):
        job = new_job()
        again = new_job(id=job.id, payload=payload)
        async with holding(database_url) as (first, transaction), autocommitting(database_url) as second:
            await queue.enqueue(first, [(engine.owner, job)])
            task = asyncio.create_task(queue.enqueue(second, [(engine.owner, again), (engine.owner, new_job())]))
            await until_waiting(database, second)
            await (transaction.commit() if committed else transaction.rollback())
            assert [a.result for a in await task] == [result, "created"]
    assert [a.result for a in await engine.put(other)] == ["created"]
    assert (await engine.sound()).jobs == 3 + 3 + 1
