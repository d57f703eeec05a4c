"""A limit that was not there when a claim began: who sets it waits for the claims under way; what they took counts."""

from __future__ import annotations

import asyncio

import pytest

from duly import queue
from duly.model.errors import DatabaseBusyError
from duly.queue import Database, QueueSettings
from support.engine import Engine, new_owner
from support.sessions import holding, until

WAITING = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"


async def set_limit(engine: Engine, what: str) -> None:
    project = engine.owner.project_id
    match what:
        case "queue":
            await queue.set_queue(engine.db, project, "default", QueueSettings(concurrency=3))
        case "key":
            await queue.set_queue(engine.db, project, "default", QueueSettings(key_concurrency=3))
        case "pause":
            await queue.pause_queue(engine.db, project, "default", True)
        case "account":
            await queue.set_account_concurrency(engine.db, engine.owner.account_id, 3)


@pytest.mark.parametrize("what", ["queue", "key", "pause", "account"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_new_limit_binds_the_claims_in_flight(
    database: Database, database_url: str, what: str, end: str
) -> None:
    """A claim has taken two jobs and is not committed. The limit waits for its end; a claim that comes meanwhile passes
    the queue by and finds others' work; once the limit is set, what runs counts whole.
    """
    engine = await Engine.start(database)
    stranger = await new_owner(database)
    await engine.enqueue(10, concurrency_key="c")
    async with holding(database_url) as (session, transaction):
        assert len(await engine.claim(2, db=session)) == 2
        setting = asyncio.create_task(set_limit(engine, what))
        await until(lambda: database.fetchval(WAITING))
        [theirs] = await engine.enqueue(owner=stranger)
        assert [job.id for job in await engine.claim()] == [theirs]
        assert not setting.done()
        await (transaction.commit() if end == "commit" else transaction.rollback())
        await asyncio.wait_for(setting, 10)
    room = 0 if what == "pause" else 3 - (2 if end == "commit" else 0)
    assert len(await engine.claim()) == room
    await engine.sound()


async def test_a_claim_that_stays_open_holds_a_change_up_for_a_bounded_time(
    database: Database, database_url: str
) -> None:
    """Then nothing is changed, and the caller is told; other queues and accounts may be changed meanwhile."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    await engine.enqueue(3)
    async with holding(database_url) as (session, _):
        assert len(await engine.claim(1, db=session)) == 1
        refused = asyncio.gather(set_limit(engine, "queue"), return_exceptions=True)
        await queue.set_queue(database, engine.owner.project_id, "other", QueueSettings(concurrency=1))
        await queue.set_queue(database, other.project_id, "default", QueueSettings(concurrency=1))
        await queue.set_account_concurrency(database, other.account_id, 1)
        [error] = await refused
    assert isinstance(error, DatabaseBusyError)
    assert await queue.get_queue(database, engine.owner.project_id, "default") == QueueSettings()
    assert len(await engine.claim()) == 3
