"""The kit for the tests of programs that enqueue, tried as such a program would."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import duly
from duly import App, Context, InvalidInputError, JobFailedError, enqueue_many
from duly.queue import Database
from duly.testing import (
    Clock,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    drain_now,
    enqueued,
    enqueued_async,
    inline,
)

app = App()
HOUR = timedelta(hours=1)


@dataclass
class Order:
    id: int


@app.task(name="kit.ship", queue="mail")
def ship(context: Context, order: Order, times: int = 1) -> Order:
    return Order(order.id * times)


@app.task(name="kit.fetch")
async def fetch(number: int) -> int:
    return number + 1


@app.task(name="kit.fails", backoff=3600, max_attempts=2)
def fails(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("no")
        case "bury":
            raise duly.Bury("never")
        case "retry":
            raise duly.Retry(60)


@app.task(name="kit.unstorable")
def unstorable() -> Any:
    return {1, 2}


@app.task(name="kit.chain")
async def chain(dsn: str, left: int) -> None:
    async with await Database.open(dsn, max_size=1) as db:
        if left:
            await chain.enqueue(db, dsn, left - 1)


def test_inline_runs_at_once_without_a_database() -> None:
    """Sync and async; the result is as it would come back; the calls are listed."""
    none: Any = None
    with inline() as jobs:
        assert ship.enqueue(none, Order(2), times=3).result(0) == Order(6)
        assert fetch.enqueue(none, 1).result(0) == 2
        assert [h.result(0) for h in enqueue_many(none, [fetch.call(1), fetch.using(delay=60).call(2)])] == [2, 3]
    assert jobs.of(ship) == [{"order": {"id": 2}, "times": 3}]
    assert [call.task.name for call in jobs.made] == ["kit.ship", "kit.fetch", "kit.fetch", "kit.fetch"]


async def test_inline_is_awaited_where_an_enqueue_would_be(database: Database) -> None:
    """On a connection whose statements are awaited; nothing reaches the database."""
    with inline():
        handle = await fetch.enqueue(database, 5)
        assert await handle.result(0) == 6
        [other] = await enqueue_many(database, [fetch.call(6)])
        assert await other.result(0) == 7
    assert await enqueued_async(database) == []


def test_inline_shows_what_goes_wrong() -> None:
    """Exceptions of the task and arguments that do not fit are raised; outcomes are the handle's state; a result
    that could not be kept is an error, too.
    """
    none: Any = None
    with inline():
        with pytest.raises(ValueError, match="no"):
            fails.enqueue(none, "raise")
        with pytest.raises(InvalidInputError):
            fails.enqueue(none, none)
        with pytest.raises(InvalidInputError, match="set"):
            unstorable.enqueue(none)
        with pytest.raises(JobFailedError):
            fails.enqueue(none, "bury").result(0)
        assert fails.enqueue(none, "retry").state().state == "scheduled"


def test_inline_counts_in_other_threads_and_may_only_list() -> None:
    """A web framework's test client runs the program in another thread."""
    none: Any = None
    with inline(run=False) as jobs:
        thread = threading.Thread(target=lambda: fails.enqueue(none, "raise"))
        thread.start()
        thread.join()
    assert jobs.of(fails) == [{"how": "raise"}]


def test_what_was_enqueued_is_seen_in_the_open_transaction(database_url: str) -> None:
    """And not after its rollback. What is missing is told with what there is."""
    with psycopg.connect(database_url) as connection:
        assert_not_enqueued(connection, ship)
        ship.enqueue(connection, Order(1))
        ship.using(queue="other", priority=1, unique="k").enqueue(connection, Order(2), times=2)
        job = assert_enqueued(connection, ship, Order(2))
        assert (job.queue, job.priority, job.unique_key, job.state) == ("other", 1, "k", "ready")
        assert assert_enqueued(connection, ship, times=2).args["order"] == {"id": 2}
        assert [job.task for job in enqueued(connection)] == ["kit.ship", "kit.ship"]
        with pytest.raises(AssertionError, match=r"no job of kit\.ship with .*7.* was enqueued: there are .*'id': 1"):
            assert_enqueued(connection, ship, Order(7))
        with pytest.raises(AssertionError, match="there is none at all"):
            assert_enqueued(connection, fetch, 1)
        with pytest.raises(AssertionError, match=r"2 jobs of kit\.ship"):
            assert_not_enqueued(connection, ship)
        with pytest.raises(InvalidInputError, match="has no argument nothing"):
            assert_enqueued(connection, ship, nothing=1)
        connection.rollback()
        assert_not_enqueued(connection, ship)


async def test_a_drain_runs_all_that_is_due(database: Database, database_url: str) -> None:
    """What jobs enqueue is run too; what is delayed, and what another app knows, waits."""
    await chain.enqueue(database, database_url, 3)
    late = await fetch.using(delay=60).enqueue(database, 1)
    await database.execute("select duly.enqueue_task('of.another.app')")
    drained = await drain(database_url, app)
    assert (drained.settled, drained.clean) == (4, True)
    assert (await late.state()).state == "scheduled"  # type: ignore[union-attr]


def test_time_is_the_databases(database_url: str) -> None:
    """A retry an hour away runs an hour later; days later jobs are enqueued and delayed as ever."""
    with Clock(database_url) as clock, psycopg.connect(database_url, autocommit=True) as connection:
        failing = fails.enqueue(connection, "raise")
        drain_now(database_url, app)
        assert failing.state().attempt == 1  # type: ignore[union-attr]
        drain_now(database_url, app)
        assert failing.state().attempt == 1  # type: ignore[union-attr]
        clock.advance(HOUR + timedelta(minutes=30))
        drain_now(database_url, app)
        state = failing.state()
        assert state is not None
        assert (state.attempt, state.state) == (2, "dead")
        clock.advance(timedelta(days=3))
        later = fetch.using(delay=timedelta(days=1)).enqueue(connection, 1)
        drain_now(database_url, app)
        assert later.state().state == "scheduled"  # type: ignore[union-attr]
        now = clock.advance(timedelta(days=1))
        drain_now(database_url, app)
        assert later.result(0) == 2
        with pytest.raises(InvalidInputError):
            clock.advance(-HOUR)
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select clock_timestamp() < %s", [now]).fetchone()
        assert row == (True,)


SUITE = """
    from datetime import timedelta
    import duly, psycopg
    from duly.testing import assert_enqueued, drain_now

    pytest_plugins = ["duly.testing.fixtures"]
    app = duly.App()

    @app.task(name="t")
    def t(n: int) -> int:
        return n

    def test_one(duly_database_url):
        with psycopg.connect(duly_database_url) as connection:
            handle = t.enqueue(connection, 1)
            assert_enqueued(connection, t, 1)
            connection.commit()
            drain_now(duly_database_url, app)
            assert handle.result(5) == 1

    def test_each_has_a_database_of_its_own(duly_clock, duly_database_url):
        with psycopg.connect(duly_database_url, autocommit=True) as connection:
            assert connection.execute("select count(*) from duly.job").fetchone() == (0,)
            handle = t.using(delay=3600).enqueue(connection, 2)
            duly_clock.advance(timedelta(hours=2))
            drain_now(duly_database_url, app)
            assert handle.result(5) == 2
"""


@pytest.mark.parametrize("given", [False, True])
def test_the_fixtures(given: bool, database_url: str, tmp_path: Path) -> None:
    """On a private server, and on one that is named."""
    (tmp_path / "test_them.py").write_text(textwrap.dedent(SUITE))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    if given:
        environment["DULY_TEST_DATABASE_URL"] = database_url
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_importing_duly_is_light() -> None:
    """Neither a driver nor pydantic is loaded by the import, nor by asking for what enqueues: asyncpg neither."""
    code = """
import sys
import duly
assert not {"asyncpg", "pydantic", "aiohttp", "asyncio"} & set(sys.modules), "import duly"
duly.task, duly.App, duly.Context, duly.Retry, duly.enqueue_many, duly.verify, duly.receive, duly.processed_once
print(sorted({"asyncpg", "pydantic", "aiohttp", "fastapi", "typer"} & set(sys.modules)))
assert all(getattr(duly, name) for name in duly.__all__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
