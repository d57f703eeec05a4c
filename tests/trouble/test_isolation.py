"""A role whose default isolation is stricter than ours."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database
from support.crash_ledger import all_succeeded
from support.engine import Engine
from support.roles import new_role
from support.working import working


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_stricter_default_isolation_changes_nothing(
    database: Database, database_url: str, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-045: four workers and 500 jobs under such a role: each runs once, and nothing is logged."""

    async def handler(job: ClaimedJob) -> Outcome:
        return Success()

    async with new_role(database_url, f"set default_transaction_isolation = '{isolation}'") as role:
        async with AsyncExitStack() as stack:
            dbs = [await stack.enter_async_context(await Database.open(role.url, max_size=3)) for _ in range(4)]
            assert await dbs[0].fetchval("show transaction_isolation") == "read committed"
            engine = await Engine.start(dbs[0])
            for db in dbs:
                await stack.enter_async_context(
                    working(db, role.url, {"k": handler}, claim_batch=10, concurrency=20, settle_batch=10)
                )
            for _ in range(10):
                await engine.enqueue(50)
            await all_succeeded(database, 500)
    assert await database.fetchval("select max(attempt) from duly.outcome") == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("duly")] == []
