"""One behaviour on everything a caller may hold: the job is part of the caller's transaction."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from duly import App, InvalidInputError, UniqueKeyTakenError, enqueue_many
from duly.queue import Database
from duly.tasks.connections import link
from support.callers import CALLERS, Caller

app = App()


@app.task(name="keep", timeout=7, max_attempts=3)
def keep(number: int, *, word: str = "w") -> int:
    return number


@dataclass
class Held:
    """A caller in a transaction with a business write of its own, and a way to call Duly on it."""

    caller: Caller
    db: Database

    async def call(self, what: Callable[[], Any]) -> Any:
        allowed = getattr(self.caller, "allowed", None)
        answer = what() if allowed is None else allowed(what)
        return await answer if inspect.isawaitable(answer) else answer

    async def jobs(self) -> list[tuple[str, str]]:
        rows = await self.db.fetch("select kind, payload::text from duly.job order by id")
        return [(row["kind"], row["payload"]) for row in rows]

    async def orders(self) -> int:
        count: int = await self.db.fetchval("select count(*) from public.orders")
        return count


@pytest.fixture(params=list(CALLERS))
async def held(request: pytest.FixtureRequest, database: Database, database_url: str) -> AsyncIterator[Held]:
    await database.execute("create table public.orders (id int primary key)")
    async with CALLERS[request.param](database_url) as caller:
        yield Held(caller, database)


async def test_a_commit_makes_the_write_and_the_job(held: Held) -> None:
    """Nothing is seen of either before it."""
    await held.caller.write("insert into public.orders values (1)")
    handle = await held.call(lambda: keep.enqueue(held.caller.on, 1, word="%s $1 :p1 'ü'"))
    assert (await held.jobs(), await held.orders()) == ([], 0)
    await held.caller.commit()

    assert await held.jobs() == [("task:keep", '{"word": "%s $1 :p1 \'ü\'", "number": 1}')]
    assert await held.orders() == 1
    assert handle.created
    [row] = await held.db.fetch("select id, timeout_seconds, max_attempts from duly.job")
    assert (row["id"], row["timeout_seconds"], row["max_attempts"]) == (handle.job_id, 7, 3)


async def test_a_rollback_makes_neither(held: Held) -> None:
    """The job is gone with the write, for good."""
    await held.caller.write("insert into public.orders values (1)")
    await held.call(lambda: keep.enqueue(held.caller.on, 1))
    await held.caller.rollback()
    assert (await held.jobs(), await held.orders()) == ([], 0)


async def test_many_at_once(held: Held) -> None:
    """The handles stand in the order of the calls, more than one statement's worth of them."""
    calls = [keep.call(n) for n in range(1001)] + [keep.using(delay=60).call(1001)]
    handles = await held.call(lambda: enqueue_many(held.caller.on, calls))
    await held.caller.commit()
    rows = await held.db.fetch("select id, (payload ->> 'number')::int as number from duly.job")
    assert {row["id"]: row["number"] for row in rows} == {h.job_id: n for n, h in enumerate(handles)}
    assert await held.db.fetchval("select count(*) from duly.scheduled") == 1


async def test_what_is_refused_leaves_the_transaction_as_it_was(held: Held) -> None:
    """Wrong arguments are found before anything is sent, a taken key is an answer and no error of the statement."""
    wrong: Any = "no number"
    unique = keep.using(unique="k", on_conflict="error")
    await held.call(lambda: unique.enqueue(held.caller.on, 1))
    with pytest.raises(InvalidInputError, match=r"task keep: argument number"):
        await held.call(lambda: keep.enqueue(held.caller.on, wrong))
    with pytest.raises(UniqueKeyTakenError):
        await held.call(lambda: unique.enqueue(held.caller.on, 2))
    await held.caller.write("insert into public.orders values (1)")
    await held.caller.commit()
    assert ([payload for _, payload in await held.jobs()], await held.orders()) == (['{"number": 1}'], 1)


async def test_a_failed_statement_takes_back_itself_only_with_a_savepoint(held: Held, database: Database) -> None:
    """Without one the transaction is aborted, as PostgreSQL has it; with one it goes on."""
    await database.execute("alter table duly.job add check (payload ->> 'number' <> '13')")
    await held.caller.write("insert into public.orders values (1)")
    with pytest.raises(Exception, match=r"job_check|violates check"):
        await held.call(lambda: keep.using(savepoint=True).enqueue(held.caller.on, 13))
    await held.call(lambda: keep.using(savepoint=True).enqueue(held.caller.on, 14))
    await held.caller.commit()
    assert ([payload for _, payload in await held.jobs()], await held.orders()) == (['{"number": 14}'], 1)


async def test_a_result_is_not_waited_for_inside_the_transaction(held: Held) -> None:
    """It would never come: the error says to commit. Afterwards the same connection waits, and is left outside any
    transaction.
    """
    handle = await held.call(lambda: keep.enqueue(held.caller.on, 1))
    with pytest.raises(InvalidInputError, match="commit it first"):
        await held.call(lambda: handle.result(1))
    await held.caller.commit()
    with pytest.raises(TimeoutError):
        await held.call(lambda: handle.result(timedelta(milliseconds=30)))
    assert not await held.call(lambda: link(held.caller.on).is_in_transaction())
    assert (await held.call(handle.state)).state == "ready"


def test_what_is_no_connection() -> None:
    """The error says what is."""
    with pytest.raises(InvalidInputError, match="str is no connection that Duly knows"):
        keep.enqueue("postgresql://…", 1)  # type: ignore[call-overload]
