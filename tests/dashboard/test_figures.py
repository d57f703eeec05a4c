"""Figures are asked for once for all tabs, at a bounded pace, and a page does not wait for those that are slow."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly.dashboard import figures
from duly.dashboard.figures import Figures
from duly.model.errors import DatabaseBusyError
from duly.queue import Database, Owner, overview

OWNER = Owner(1, 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_fifty_tabs_ask_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """FO-050: While one looks the others wait for it; for two seconds all are content with what it found."""
    clock, asked = Clock(), 0

    async def counted(db: Any, owner: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        return []

    monkeypatch.setattr(overview, "backlog", counted)
    shared = Figures(database, clock)
    found = await asyncio.gather(*(shared.backlog(OWNER) for _ in range(50)))
    assert (asked, {figure.trouble for figure in found}) == (1, {None})
    clock.now_s += 1.9
    await shared.backlog(OWNER)
    assert asked == 1
    await shared.backlog(None)
    assert asked == 2, "somebody else's is another question"
    clock.now_s += 0.2
    await shared.backlog(OWNER)
    assert asked == 3
    shared.forget(OWNER)
    await shared.backlog(OWNER)
    assert asked == 4, "what was changed is looked at anew"


async def test_a_slow_question_is_asked_less_often(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a second rests for ten: a tenth of the database's time at most."""
    clock, asked = Clock(), 0

    async def slow(db: Any, owner: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        clock.now_s += 1
        return []

    monkeypatch.setattr(overview, "backlog", slow)
    shared = Figures(database, clock)
    for _ in range(100):
        await shared.backlog(OWNER)
        clock.now_s += 0.1
    assert asked == 1
    clock.now_s += 0.1
    await shared.backlog(OWNER)
    assert asked == 2


async def test_a_page_does_not_wait_for_what_takes_long(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows that it is being looked up, then what was found; and while it is looked up again, the last of it."""
    gates = [asyncio.Event(), asyncio.Event()]
    answers = iter(gates)

    async def gated(db: Any, owner: Any) -> list[Any]:
        gate = next(answers)
        await gate.wait()
        return [gates.index(gate)]

    monkeypatch.setattr(overview, "backlog", gated)
    monkeypatch.setattr(figures, "PATIENCE_S", 0.01)
    clock = Clock()
    shared: Any = Figures(database, clock)
    first = await shared.backlog(OWNER)
    assert (first.value, first.trouble) == (None, "being looked up")
    gates[0].set()
    monkeypatch.setattr(figures, "PATIENCE_S", 20)
    assert (await shared.backlog(OWNER)).value == [0]
    clock.now_s += 3
    monkeypatch.setattr(figures, "PATIENCE_S", 0.01)
    assert (await shared.backlog(OWNER)).value == [0]
    gates[1].set()
    monkeypatch.setattr(figures, "PATIENCE_S", 20)
    assert (await shared.backlog(OWNER)).value == [1]


@pytest.mark.parametrize("fault", [DatabaseBusyError("busy"), asyncpg.UndefinedFunctionError("gone"), RuntimeError()])
async def test_what_fails_is_shown_as_it_was_last_known_and_marked(
    database: Database, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """No fault of one question takes the page with it."""
    clock = Clock()
    shared = Figures(database, clock)
    before = await shared.sizes()
    assert before.value is not None

    async def broken(db: Any) -> Any:
        raise fault

    monkeypatch.setattr(overview, "sizes", broken)
    clock.now_s += 3
    after = await shared.sizes()
    assert after.value == before.value
    assert after.trouble


async def test_the_database_ends_what_takes_too_long_and_lets_nothing_be_written(database: Database) -> None:
    """By its own time limit, which ends with the session; what reads may not write."""
    for _ in range(3):
        with pytest.raises(DatabaseBusyError):
            async with overview.quick(database, timedelta(milliseconds=50)) as db:
                await db.fetchval("select pg_sleep(30)")
    async with overview.quick(database, timedelta(seconds=5)) as db:
        assert await db.fetchval("show transaction_read_only") == "on"
    assert await database.fetchval("show statement_timeout") == "0"
    assert await database.fetchval("show transaction_read_only") == "off"


async def test_memory_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand projects the latest are known."""

    async def nothing(db: Any, owner: Any) -> list[Any]:
        return []

    monkeypatch.setattr(overview, "backlog", nothing)
    monkeypatch.setattr(figures, "KEPT", 10)
    shared = Figures(database)
    for n in range(30):
        await shared.backlog(Owner(n, n))
    assert len(shared._entries) == 10
