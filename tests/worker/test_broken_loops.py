"""What a worker does when one of its own loops breaks, or its registration is lost again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

import pytest

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from duly.queue.trouble import Trouble
from duly.upkeep import SegmentKeeper
from duly.worker.heartbeat import Heartbeat
from duly.worker.skew import warn_of_skew
from support.engine import Engine
from support.sessions import until, until_true
from support.working import Holding, working

SECOND = timedelta(seconds=1)


async def broken(*_: Any) -> Any:
    raise RuntimeError("broken")


async def test_a_broken_heartbeat_ends_the_worker_loudly(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is stopped, for nobody renews it any more; the process is told why."""
    engine, handler = await Engine.start(database), Holding()
    await engine.enqueue()
    async with working(database, database_url, {"k": handler}, lease=SECOND) as it:
        await until_true(lambda: handler.started)
        monkeypatch.setattr(queue, "heartbeat", broken)
        with pytest.raises(RuntimeError, match="broken"):
            async with asyncio.timeout(10):
                await it.run
        assert it.worker.fenced
        await until_true(lambda: handler.stopped)
        it.worker._on_heartbeat_failed(RuntimeError("once more"))  # too late to matter


async def test_a_broken_settler_ends_the_worker_loudly(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is no matter of the database is not tried again for ever."""
    engine, handler = await Engine.start(database), Holding()
    await engine.enqueue()
    monkeypatch.setattr(queue, "settle", broken)
    async with working(database, database_url, {"k": handler}) as it:
        handler.go.set()
        with pytest.raises(RuntimeError, match="broken"):
            async with asyncio.timeout(10):
                await it.run


async def test_a_lost_registration_is_made_again_until_it_is(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time; a database that is away meanwhile is asked again at the next heartbeat."""
    engine, handler = await Engine.start(database), Holding()
    register, asked, answer = queue.register, [0.0], asyncio.Event()

    async def away(*args: Any) -> int:
        asked.append(time.monotonic())
        await answer.wait()
        if len(asked) < 4:
            raise DatabaseUnavailableError("away")
        return await register(*args)

    async with working(database, database_url, {"k": handler}, lease=SECOND) as it:
        first = it.worker.worker_id
        monkeypatch.setattr(queue, "register", away)
        await database.execute("delete from duly.worker where id = $1", first)
        await until_true(lambda: len(asked) == 2)
        it.worker._on_unknown()  # noticed once more while it registers: no second one is made
        await asyncio.sleep(0)
        assert len(asked) == 2
        answer.set()
        await until_true(lambda: it.worker.worker_id != first)
        assert len(asked) == 4
        [job_id] = await engine.enqueue()
        handler.go.set()
        await until(lambda: database.fetchval("select true from duly.outcome where job_id = $1", job_id))


async def test_a_heartbeat_whose_loop_has_ended_ends() -> None:
    """A program that forgot to stop its worker leaves no thread behind."""
    loop = asyncio.new_event_loop()
    loop.close()
    heartbeat = Heartbeat(
        "postgresql://nobody@127.0.0.1:1/none",
        "duly",
        1,
        time.monotonic(),
        SECOND,
        Trouble(),
        loop,
        on_fenced=loop.stop,
        on_unknown=loop.stop,
        on_abort=lambda _: None,
        on_failed=lambda _: None,
    )
    heartbeat.start()
    await until_true(lambda: not heartbeat._thread.is_alive())


async def test_a_clock_that_is_off_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-055: by how much, once; a clock that is right is not."""
    await warn_of_skew(database, 7)
    assert caplog.records == []
    now = await queue.server_now(database)

    async def an_hour_ago(_: object) -> Any:
        return now - timedelta(hours=1)

    monkeypatch.setattr(queue, "server_now", an_hour_ago)
    with caplog.at_level(logging.WARNING, "duly.worker"):
        await warn_of_skew(database, 7)
    [record] = caplog.records
    assert 3600 <= record.__dict__["ahead_seconds"] < 3700


async def test_carrying_over_ends_though_others_bring_more(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that fills up as fast as it is carried over is left for the next round."""
    engine = await Engine.start(database)
    await engine.enqueue()
    await queue.advance(database)
    moves = 0

    async def always_full(*_: Any) -> int:
        nonlocal moves
        moves += 1
        return 500

    monkeypatch.setattr(queue, "move", always_full)
    keeper = SegmentKeeper(database, "ready", crowded=0)
    await keeper.step()
    assert moves == 2
    assert keeper.moved_total == 1000
