"""The claimer's own rules, step by step, with the database's answers held back by the test."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database, LiveSegments
from duly.worker import WorkerConfig
from duly.worker.claimer import Claimer, Slots


async def handler(job: ClaimedJob) -> Outcome:
    return Success()


def new_claimer(database: Database, slots: Slots, fenced: bool = False) -> Claimer:
    return Claimer(
        database,
        WorkerConfig({"k": handler}),
        slots,
        lambda: 1,
        lambda: fenced,
        list,
        lambda job, worker: None,
        asyncio.Event(),
    )


async def settled_down() -> None:
    """Every task has gone as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_claim_starts_while_lost_ones_are_given_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that was reading the segments when another's answer was lost waits for the give-back: what it takes must
    not be taken for unheard of, and given away while it starts.
    """
    reading, giving = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def live_segments(db: object, line: str) -> LiveSegments:
        if line == "ready":
            await reading.wait()
        return LiveSegments((), 1)

    async def give_back(*args: Any) -> int:
        calls.append("give back")
        await giving.wait()
        calls.append("given back")
        return 0

    async def claim(*args: Any) -> list[ClaimedJob]:
        calls.append("claim")
        return []

    monkeypatch.setattr("duly.queue.live_segments", live_segments)
    monkeypatch.setattr("duly.queue.give_back", give_back)
    monkeypatch.setattr("duly.queue.claim", claim)
    claimer = new_claimer(database, Slots(10))
    one = asyncio.create_task(claimer._claim(5, timedelta(0)))
    await settled_down()
    claimer._unheard = True
    other = asyncio.create_task(claimer._recover_unheard(database))
    await settled_down()
    reading.set()
    await settled_down()
    assert calls == ["give back"]
    giving.set()
    await asyncio.gather(one, other)
    assert calls == ["give back", "given back", "claim"]


async def test_a_fenced_worker_does_not_claim(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease may end before the next renewal: it looks for nothing until then."""
    stopping = asyncio.Event()

    async def claim(*args: Any) -> list[ClaimedJob]:
        raise AssertionError("claimed")

    monkeypatch.setattr("duly.queue.claim", claim)
    claimer = new_claimer(database, Slots(10), fenced=True)
    run = asyncio.create_task(claimer.run(stopping))
    await settled_down()
    stopping.set()
    async with asyncio.timeout(10):
        await run


async def test_a_doubt_is_cleared_up_at_the_end(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that may not have arrived: what the database has for this worker is compared with what it holds."""
    calls: list[str] = []

    async def give_back(*args: Any) -> int:
        calls.append("give back")
        return 1

    monkeypatch.setattr("duly.queue.give_back", give_back)
    claimer = new_claimer(database, Slots(10))
    await claimer.last_word(database)
    assert calls == []
    claimer.doubt()
    await claimer.last_word(database)
    await claimer.last_word(database)
    assert calls == ["give back"]
