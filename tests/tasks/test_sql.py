"""`duly.enqueue_task`, for any language and for triggers; and the rows that Python sends."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from duly import App, InvalidInputError, JobFailedError, enqueue_many, uuid7
from duly.model import uuid7_time
from duly.model.errors import IdConflictError, NotFoundError
from duly.queue import Database
from duly.schema import named
from duly.tasks.connections import link
from duly.tasks.enqueueing import make_async

app = App()


@app.task(name="one")
def one(n: int = 0) -> None: ...


async def test_a_few_words_of_sql_are_enough(database: Database) -> None:
    """A name is all that must be said; everything else has the defaults of a task."""
    job = await database.fetchval("select duly.enqueue_task('mail.send')")
    row = await database.fetchrow(
        """select kind, payload::text, queue, priority, max_attempts, timeout_seconds, unique_key, retry
           from duly.job where id = $1""",
        job,
    )
    assert row is not None
    assert tuple(row) == ("task:mail.send", "{}", "default", 5, 8, 300, None, None)
    assert uuid7_time(job) is not None


async def test_everything_can_be_said_by_name(database: Database) -> None:
    """In any order; a delay is counted from the database's clock."""
    await database.execute(
        """select duly.enqueue_task('mail.send', '{"to": "ada"}', queue => 'mail', delay => interval '1 hour',
               priority => 1, max_attempts => 2, timeout => '10 seconds', unique_key => 'k', concurrency_key => 'c',
               tags => array['t'])"""
    )
    row = await database.fetchrow("select *, run_at - created_at as wait from duly.job")
    assert row is not None
    assert (row["queue"], row["priority"], row["max_attempts"], row["timeout_seconds"]) == ("mail", 1, 2, 10)
    assert (row["unique_key"], row["concurrency_key"], row["tags"]) == ("k", "c", ["t"])
    assert row["wait"].total_seconds() == 3600


@pytest.mark.parametrize(
    "words",
    [
        "null",
        "''",
        "'no name!'",
        "'a', '[]'",
        "'a', null",
        "'a', queue => ''",
        "'a', priority => 10",
        "'a', priority => null",
        "'a', delay => '1 s', run_at => now()",
        "'a', delay => '-1 s'",
        "'a', delay => '100000 years'",
        "'a', delay => '178000000 years'",
        "'a', run_at => 'infinity'",
        "'a', run_at => '-infinity'",
        "'a', run_at => '9999-12-31'",
        "'a', run_at => '290000-01-01'",
        "'a', run_at => '4000-01-01 BC'",
        "'a', expires_at => 'infinity'",
        "'a', jsonb_build_object('a', repeat('x', 1000000))",
        "'a', unique_key => 'k', unique_for => '99999999999999999999'",
        "'a', max_attempts => 0",
        "'a', timeout => '0'",
        "'a', timeout => '1000 days'",
        "'a', unique_key => ''",
        "'a', concurrency_key => ''",
        "'a', on_conflict => 'ignore'",
        "'a', unique_key => 'k', unique_for => 'until_noon'",
        "'a', id => gen_random_uuid()",
    ],
)
async def test_what_is_wrong_is_an_error_that_says_what(words: str, database: Database) -> None:
    """22023, invalid parameter value, on one line; nothing is stored."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await database.execute(f"select duly.enqueue_task({words})")
    assert len(str(caught.value)) < 250
    assert "\n" not in caught.value.args[0]
    assert await database.fetchval("select count(*) from duly.job") == 0


async def test_a_unique_key_keeps_refuses_or_replaces(database: Database) -> None:
    """keep names the job that holds it; error raises 23505; replace cancels the one that waits."""
    first = await database.fetchval("select duly.enqueue_task('a', unique_key => 'k')")
    assert await database.fetchval("select duly.enqueue_task('a', unique_key => 'k')") == first
    with pytest.raises(asyncpg.UniqueViolationError, match=str(first)):
        await database.execute("select duly.enqueue_task('a', unique_key => 'k', on_conflict => 'error')")
    other = await database.fetchval("select duly.enqueue_task('a', unique_key => 'k', on_conflict => 'replace')")
    assert other != first
    assert await database.fetchval("select status from duly.jobs where id = $1", first) == "cancelled"


async def test_an_id_of_ones_own_may_be_repeated(database: Database) -> None:
    """FO-028, FO-030: the same call again is the same job; another call under the id is refused."""
    job = uuid7()
    for _ in range(2):
        assert await database.fetchval("select duly.enqueue_task('a', id => $1)", job) == job
    with pytest.raises(asyncpg.UniqueViolationError, match="different job"):
        await database.execute("select duly.enqueue_task('b', id => $1)", job)
    with pytest.raises(IdConflictError):
        await one.using(id=job).enqueue(database, 1)
    again = await one.using(id=(other := uuid7())).enqueue(database, 1)
    assert (again.created, (await one.using(id=other).enqueue(database, 1)).created) == (True, False)


async def test_a_trigger_enqueues(database: Database) -> None:
    """The job is part of the transaction of whoever writes the row."""
    await database.execute("create table public.document (id int primary key)")
    await database.execute(
        """create function public.index_document() returns trigger language plpgsql as $$
           begin
               perform duly.enqueue_task('search.index', jsonb_build_object('id', new.id));
               return new;
           end $$"""
    )
    await database.execute(
        "create trigger t after insert on public.document for each row execute function public.index_document()"
    )
    await database.execute("insert into public.document values (1), (2)")
    rows = await database.fetch("select payload ->> 'id' as id from duly.job where kind = 'task:search.index'")
    assert sorted(row["id"] for row in rows) == ["1", "2"]


async def test_the_first_enqueues_at_once_make_one_project(database: Database) -> None:
    """Twenty rivals on an empty database: none fails, all jobs are of one owner."""
    await asyncio.gather(*(one.enqueue(database, n) for n in range(20)))
    rows = await database.fetch("select account_id, project_id, count(*) as jobs from duly.job group by 1, 2")
    assert [row["jobs"] for row in rows] == [20]
    assert await database.fetchval("select count(*) from duly.project") == 1


async def test_another_schema(empty_database_url: str) -> None:
    """An app says in which schema its jobs are; calls of two apps do not mix."""
    from duly.cli.migrate import migrated

    await migrated(empty_database_url, "elsewhere")
    other = App(schema="elsewhere")
    task = other.task(name="t")(lambda: None)
    async with await Database.open(empty_database_url, schema="elsewhere") as db:
        await task.enqueue(db)
        assert await db.fetchval(named("select count(*) from duly.job", "elsewhere")) == 1
        with pytest.raises(InvalidInputError, match="different schemas"):
            await enqueue_many(db, [task.call(), one.call()])
        assert await make_async(link(db), []) == []  # type: ignore[arg-type]


async def test_the_state_of_what_is_not_there(database: Database) -> None:
    """None, and a wait for its result says so at once."""
    handle: Any = one.handle(database, uuid7())
    assert await handle.state() is None
    with pytest.raises(NotFoundError):
        await handle.result(5)


async def test_a_cancelled_job_has_no_result(database: Database) -> None:
    """The wait ends with the state."""
    handle = await one.using(delay=60).enqueue(database)
    assert await database.fetchval("select duly.withdraw($1, null)", handle.job_id)
    with pytest.raises(JobFailedError, match="is cancelled"):
        await handle.result(5)
