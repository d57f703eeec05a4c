"""The coalescer: who waits with whom, what fails with whom. Time stands still: a test opens the gates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from duly.model.errors import DatabaseUnavailableError
from duly.service.coalescing import Bounds, Coalescer


class Statements:
    """Stands in for the database: every batch waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gates: list[asyncio.Future[None]] = []

    async def run(self, items: Sequence[str]) -> Sequence[str | BaseException]:
        self.batches.append(list(items))
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return [KeyError(item) if item.startswith("bad") else item.upper() for item in items]

    async def settle_down(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def made(statements: Statements, **bounds: int) -> Coalescer[str, str]:
    return Coalescer(statements.run, weigh=len, key=lambda item: item, bounds=Bounds(**bounds))


async def submitted(statements: Statements, coalescer: Coalescer[str, str], *texts: str) -> list[asyncio.Task[str]]:
    """Handed over one after the other, each when nothing else is ready to run."""
    callers = []
    for text in texts:
        callers.append(asyncio.create_task(coalescer.submit(text)))
        await statements.settle_down()
    return callers


async def test_idle_goes_at_once_and_busy_gathers() -> None:
    """One alone is sent alone; what comes while two are in flight goes in one."""
    statements = Statements()
    coalescer = made(statements)
    callers = await submitted(statements, coalescer, *(f"job{n}" for n in range(10)))
    assert statements.batches == [["job0"], ["job1"]]
    statements.gates[1].set_result(None)
    await statements.settle_down()
    assert statements.batches[2] == [f"job{n}" for n in range(2, 10)]
    assert [caller.done() for caller in callers] == [False, True, *[False] * 8]
    statements.gates[0].set_result(None)
    statements.gates[2].set_result(None)
    assert await asyncio.gather(*callers) == [f"JOB{n}" for n in range(10)]
    await coalescer.close()


async def test_what_arrives_together_goes_together() -> None:
    """Those who are ready at the same moment share a statement, also when nothing is in flight."""
    statements = Statements()
    coalescer = made(statements)
    callers = [asyncio.create_task(coalescer.submit(f"job{n}")) for n in range(3)]
    await statements.settle_down()
    assert statements.batches == [["job0", "job1", "job2"]]
    statements.gates[0].set_result(None)
    assert await asyncio.gather(*callers) == ["JOB0", "JOB1", "JOB2"]


async def test_closing_leaves_nobody_behind() -> None:
    """What was handed over in the very moment of the end is sent and answered."""
    statements = Statements()
    coalescer = made(statements)
    caller = asyncio.create_task(coalescer.submit("last"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(coalescer.close())
    await statements.settle_down()
    assert not closing.done()
    statements.gates[0].set_result(None)
    await closing
    assert await caller == "LAST"
    assert statements.batches == [["last"]]


async def test_bounds() -> None:
    """A batch has so many items, so much weight, and each key once."""
    statements = Statements()
    coalescer = made(statements, in_flight=1, items=3, weight=8)
    texts = ["a", "b", "b", "c", "d", "123456789", "e" * 8]
    callers = await submitted(statements, coalescer, *texts)
    for n in range(5):
        await statements.settle_down()
        statements.gates[n].set_result(None)
    assert await asyncio.gather(*callers) == [text.upper() for text in texts]
    assert statements.batches == [["a"], ["b", "c", "d"], ["b"], ["123456789"], ["e" * 8]]


async def test_each_gets_its_own_answer() -> None:
    """A bad item fails for itself."""
    statements = Statements()
    coalescer = made(statements, in_flight=1)
    first, bad, good = await submitted(statements, coalescer, "first", "bad", "good")
    statements.gates[0].set_result(None)
    await statements.settle_down()
    statements.gates[1].set_result(None)
    assert await first == "FIRST"
    assert await good == "GOOD"
    with pytest.raises(KeyError):
        await bad


async def test_a_failed_statement_fails_all_in_it() -> None:
    """And the next one goes on."""
    statements = Statements()
    coalescer = made(statements, in_flight=1)
    one, two, three = await submitted(statements, coalescer, "one", "two", "three")
    statements.gates[0].set_result(None)
    await statements.settle_down()
    statements.gates[1].set_exception(DatabaseUnavailableError("gone"))
    assert await one == "ONE"
    for caller in (two, three):
        with pytest.raises(DatabaseUnavailableError):
            await caller
    again = asyncio.create_task(coalescer.submit("again"))
    await statements.settle_down()
    statements.gates[2].set_result(None)
    assert await again == "AGAIN"


async def test_cancelled_callers_break_nothing() -> None:
    """Cancelled while waiting: not sent. Cancelled while in flight: finished without the caller."""
    statements = Statements()
    coalescer = made(statements, in_flight=1)
    flying, waiting, other = await submitted(statements, coalescer, "flying", "waiting", "other")
    flying.cancel()
    waiting.cancel()
    await statements.settle_down()
    statements.gates[0].set_result(None)
    await statements.settle_down()
    assert statements.batches == [["flying"], ["other"]]
    statements.gates[1].set_result(None)
    assert await other == "OTHER"
    assert flying.cancelled()
    assert waiting.cancelled()
    await coalescer.close()


async def test_too_much_waiting_is_refused() -> None:
    """The queue in memory has an end; what is refused was not taken."""
    statements = Statements()
    coalescer = made(statements, in_flight=1, waiting=10)
    callers = await submitted(statements, coalescer, "flying", "12345678")
    with pytest.raises(DatabaseUnavailableError):
        await coalescer.submit("123")
    for n in range(2):
        statements.gates[n].set_result(None)
        await statements.settle_down()
    assert await asyncio.gather(*callers) == ["FLYING", "12345678"]
    close = asyncio.create_task(coalescer.submit("123"))
    await statements.settle_down()
    statements.gates[2].set_result(None)
    assert await close == "123"
