"""The service's whole worker, as `duly worker` runs it, and what its upkeep logs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from duly.cli.parts import WorkerSettings, work
from duly.http import EgressPolicy
from duly.model import State
from duly.queue import Database
from duly.tasks.worker import Serving
from duly.upkeep import Upkeep
from duly.worker import Wakeups, runtime
from support.engine import Engine
from support.proxy import proxied
from support.roles import new_role
from support.sessions import holding, until, until_true
from support.working import state_becomes

POLICY = EgressPolicy.parse(allow_loopback=True)
HTTP: dict[str, Any] = {"kind": "http", "payload": {"url": "http://127.0.0.1:9999/", "method": "POST"}}


async def test_a_worker_in_a_black_hole_ends_by_its_grace(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep, listener, heartbeat and claims get no answer any more: the stop cuts them off."""
    monkeypatch.setattr(runtime, "_LAST_WORDS_S", 1.0)
    draining, aborting, started = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settings = WorkerSettings(serving=Serving(grace=timedelta(seconds=0.5)))
    async with proxied(database_url) as proxy:
        async with await Database.open(proxy.url) as db:
            run = asyncio.create_task(work(db, proxy.url, POLICY, settings, draining, aborting, started))
            await started.wait()
            await until(lambda: db.fetchval("select count(*) > 0 from duly.worker"))
            proxy.mode = "black_hole"
            await until_true(lambda: db._pool.get_size() - db._pool.get_idle_size() >= 3)
            draining.set()
            before = time.monotonic()
            async with asyncio.timeout(20):
                drained = await run
            ended_s = time.monotonic() - before
        closed_s = time.monotonic() - before
    assert not drained.clean
    assert ended_s < 0.5 + 1.0 + 1.0 + 1.0 + 2.0
    assert closed_s - ended_s < 3.0 + 2.0


async def test_a_secret_that_cannot_be_read_costs_no_attempt(database: Database, database_url: str) -> None:
    """The target was never asked: the job comes back a little later with its whole budget."""
    engine = await Engine.start(database)
    draining, aborting = asyncio.Event(), asyncio.Event()
    async with (
        new_role(database_url, "set statement_timeout = '200ms'") as role,
        await Database.open(role.url) as db,
        holding(database_url) as (lock, _),
    ):
        await lock.execute("lock table duly.signing_secret in access exclusive mode")
        run = asyncio.create_task(work(db, role.url, POLICY, WorkerSettings(), draining, aborting))
        [job_id] = await engine.enqueue(max_attempts=1, **HTTP)
        await state_becomes(engine, job_id, State.SCHEDULED)
        draining.set()
        assert (await run).clean
    view = await engine.view(job_id)
    assert (view.last_outcome, view.final_attempt) == ("snoozed", 2)


async def test_a_rescue_is_told_in_one_line(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """How many, why, and the first few: a lost worker with a thousand jobs does not fill the log."""
    engine = await Engine.start(database)
    await engine.enqueue(40)
    await engine.claim()
    await database.execute("delete from duly.worker")
    await Upkeep(database, Wakeups("")).rescue_step()
    [line] = [record for record in caplog.records if record.name == "duly.upkeep"]
    assert line.getMessage() == "leases lost"
    fields = line.__dict__
    assert (fields["jobs"], fields["worker_lost"], len(fields["job_ids"])) == (40, 40, 5)
    assert fields["worker_ids"] == [engine.worker_id]
