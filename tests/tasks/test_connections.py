"""One behaviour on everything a caller may hold: the job is part of the caller's transaction."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import duly
from duly import App, InvalidInputError, UniqueKeyTakenError, enqueue_many
from duly.model.errors import IdConflictError
from duly.queue import Database
from duly.receiving import create_processed_table
from duly.tasks.connections import link
from duly.tasks.enqueueing import Call
from support.callers import AUTOCOMMITTING, CALLERS, Caller

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


def refused_at_the_end(count: int, **options: Any) -> list[Call[int]]:
    """So many calls, the last one of a key that is taken."""
    taken = keep.using(unique="held", on_conflict="error", **options).call(count)
    return [keep.using(**options).call(n) for n in range(1, count)] + [taken]


@pytest.mark.parametrize("count", [2, 1001])
@pytest.mark.parametrize("options", [{}, {"savepoint": True}], ids=["plain", "savepoint"])
async def test_many_are_enqueued_all_or_none(count: int, options: Any, held: Held, database: Database) -> None:
    """One key that is taken refuses all calls, also those that were sent before it. The transaction goes on, and the
    same calls can be made again.
    """
    first = await keep.using(unique="held").enqueue(database, 0)
    await held.caller.write("insert into public.orders values (1)")
    calls = refused_at_the_end(count, **options)
    with pytest.raises(UniqueKeyTakenError):
        await held.call(lambda: enqueue_many(held.caller.on, calls))
    await held.caller.write("insert into public.orders values (2)")
    await held.caller.commit()
    assert (len(await held.jobs()), await held.orders()) == (1, 2)
    await database.execute("select duly.withdraw($1, 'replaced')", first.job_id)
    made = await enqueue_many(database, calls)
    assert {handle.created for handle in made} == {True}
    assert len(await held.jobs()) == 1 + count


async def test_an_id_of_another_job_refuses_all(held: Held, database: Database) -> None:
    """As a taken key does."""
    taken = duly.uuid7()
    await keep.using(id=taken).enqueue(database, 0)
    with pytest.raises(IdConflictError):
        await held.call(lambda: enqueue_many(held.caller.on, [keep.call(1), keep.using(id=taken).call(2)]))
    await held.caller.commit()
    assert len(await held.jobs()) == 1


@dataclass
class Alone:
    """A connection that commits each statement by itself."""

    on: Any
    db: Database

    async def call(self, what: Callable[[], Any]) -> Any:
        answer = what()
        return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture(params=list(AUTOCOMMITTING))
async def alone(request: pytest.FixtureRequest, database: Database, database_url: str) -> AsyncIterator[Alone]:
    async with AUTOCOMMITTING[request.param](database_url) as on:
        yield Alone(on, database)


async def test_a_record_of_its_own_is_refused_where_each_statement_commits(alone: Alone) -> None:
    """It would be kept although the work fails, so nothing is written."""
    await create_processed_table(alone.db)
    with pytest.raises(InvalidInputError, match="commits each statement by itself"):
        await alone.call(lambda: duly.processed_once(alone.on, duly.uuid7()))
    assert await alone.db.fetchval("select count(*) from duly_processed") == 0


async def test_enqueueing_where_each_statement_commits(alone: Alone, database: Database) -> None:
    """The job is there at once, a savepoint is not needed, and its result can be waited for."""
    for wanted in (keep, keep.using(savepoint=True)):
        handle = await alone.call(partial(wanted.enqueue, alone.on, 1))
        assert await database.fetchval("select count(*) from duly.job where id = $1", handle.job_id) == 1
        assert (await alone.call(handle.state)).state == "ready"
        with pytest.raises(TimeoutError):
            await alone.call(partial(handle.result, timedelta(milliseconds=20)))
    again = await alone.call(lambda: keep.enqueue(alone.on, 2))
    assert again.created


@pytest.mark.parametrize("count", [2, 1001])
async def test_many_where_each_statement_commits_are_all_or_none(count: int, alone: Alone, database: Database) -> None:
    """They are one transaction, also where they are several statements; afterwards the connection is as before."""
    first = await keep.using(unique="held").enqueue(database, 0)
    calls = refused_at_the_end(count)
    with pytest.raises(UniqueKeyTakenError):
        await alone.call(lambda: enqueue_many(alone.on, calls))
    assert await database.fetchval("select count(*) from duly.job") == 1
    await database.execute("select duly.withdraw($1, 'replaced')", first.job_id)
    await alone.call(lambda: enqueue_many(alone.on, calls))
    assert await database.fetchval("select count(*) from duly.job") == 1 + count
    state = link(alone.on).is_in_transaction()
    assert not (await state if inspect.isawaitable(state) else state)


async def test_djangos_own_autocommit_mode(database: Database, database_url: str) -> None:
    """After a commit with `set_autocommit(False)` no transaction is open, although Django would begin one next."""
    async with CALLERS["django"](database_url) as caller:
        handle = caller.allowed(lambda: keep.enqueue(caller.on, 1))  # type: ignore[attr-defined]
        await caller.commit()
        with pytest.raises(TimeoutError):
            caller.allowed(lambda: handle.result(0))  # type: ignore[attr-defined]
        assert not caller.allowed(lambda: link(caller.on).is_in_transaction())  # type: ignore[attr-defined]


def test_what_is_no_connection() -> None:
    """The error says what is."""
    with pytest.raises(InvalidInputError, match="str is no connection that Duly knows"):
        keep.enqueue("postgresql://…", 1)  # type: ignore[call-overload]
