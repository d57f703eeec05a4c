"""Connections and loops at their edges."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from duly import queue
from duly.model.errors import DatabaseUnavailableError, LeaseLostError, SchemaError
from duly.queue import Database
from duly.queue.failures import our_errors
from duly.queue.trouble import Trouble
from duly.schema import migrate
from duly.upkeep import Upkeep
from duly.upkeep.running import every
from duly.worker import Wakeups
from support.engine import Engine
from support.sessions import until


class StuckPool:
    """A pool whose connections do not come home."""

    terminated = False

    async def close(self) -> None:
        raise TimeoutError

    def terminate(self) -> None:
        self.terminated = True


class LostInSqlError(asyncpg.PostgresError):
    sqlstate = "DU001"


async def test_a_pool_that_does_not_close_is_terminated() -> None:
    """A stop is not held up by a statement that never ends."""
    pool: Any = StuckPool()
    await Database(pool, "duly").close()
    assert pool.terminated


def test_what_the_driver_raises_is_mapped_once() -> None:
    """A lost lease, an absent database, and everything else as it is."""
    cases: list[tuple[BaseException, type[BaseException]]] = [
        (LostInSqlError("worker 1 has lost its lease"), LeaseLostError),
        (asyncpg.AdminShutdownError("going"), DatabaseUnavailableError),
        (asyncpg.ReadOnlySQLTransactionError("standby"), DatabaseUnavailableError),
        (ConnectionResetError(), DatabaseUnavailableError),
        (asyncpg.UniqueViolationError("twice"), asyncpg.UniqueViolationError),
        (KeyError("x"), KeyError),
    ]
    for raised, seen in cases:
        with pytest.raises(seen), our_errors():
            raise raised


async def test_a_server_too_old_is_refused() -> None:
    """By its version, before anything is touched."""
    old: Any = SimpleNamespace(get_server_version=lambda: SimpleNamespace(major=14))
    with pytest.raises(SchemaError, match="PostgreSQL 14 is too old"):
        await migrate(old)


async def test_a_step_that_fails_is_tried_again() -> None:
    """Because the database is away, or refuses: after a pause, until it works."""
    calls: list[str] = []
    stopping = asyncio.Event()

    async def step() -> timedelta:
        calls.append("x")
        if len(calls) == 1:
            raise DatabaseUnavailableError("away")
        if len(calls) == 2:
            raise asyncpg.InsufficientPrivilegeError("refused")
        stopping.set()
        return timedelta(0)

    async with asyncio.timeout(20):
        await every(step, stopping, Trouble(), "step")
    assert len(calls) == 3


async def test_upkeep_does_it_all_in_loops(database: Database, database_url: str) -> None:
    """Promotes what comes due, rescues what lost its worker, and stops when told."""
    engine = await Engine.start(database, timedelta(seconds=0.05))
    job = await engine.running()
    [later] = await engine.enqueue(delay=timedelta(hours=1))
    await engine.expire_worker()
    await database.execute("update duly.scheduled set run_at = now() where job_id = $1", later)
    stopping = asyncio.Event()
    running = asyncio.create_task(Upkeep(database, Wakeups(database_url)).run(stopping))

    async def both() -> bool:
        return (
            (await engine.view(job.id)).attempts == 1
            and (await engine.view(later)).state == "ready"
            and not (await queue.conservation(database)).running
        )

    await until(both)
    stopping.set()
    async with asyncio.timeout(20):
        await running
    await engine.sound()
