"""What job code does, and what becomes of its job: on the loop, in a thread, in a process. The worker lives on."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli.harness import duly
from duly import AsyncHandle, Worker, queue
from duly.queue import Database
from duly.tasks.handle import JobState
from support import task_zoo
from support.sessions import until

SECOND = timedelta(seconds=1)
WAYS = ("async", "sync", "process")


@asynccontextmanager
async def working(url: str, **settings: Any) -> AsyncIterator[Worker]:
    async with Worker(url, app=task_zoo.app, grace=settings.pop("grace", 5 * SECOND), **settings) as worker:
        yield worker


async def ended(handle: AsyncHandle[Any]) -> JobState:
    """The job once it neither waits for its first attempt nor runs."""

    async def look() -> JobState | None:
        state = await handle.state()
        return state if state is not None and (state.error or state.state not in ("ready", "running")) else None

    found = await until(look, 30)
    assert isinstance(found, JobState)
    return found


async def outcome_of(handle: AsyncHandle[Any], database: Database) -> str | None:
    """The last attempt's class in the ledger."""
    outcome: str | None = await database.fetchval(
        "select outcome from duly.attempt where job_id = $1 order by number desc limit 1", handle.job_id
    )
    return outcome


@pytest.mark.parametrize("way", WAYS)
async def test_it_runs_with_its_arguments_and_its_result_comes_back(
    way: str, database: Database, database_url: str
) -> None:
    """The context is the job's own, progress is seen while it runs, the result is what was returned."""
    async with working(database_url):
        handle = await task_zoo.good[way].enqueue(database, 7, word="ü")
        result = await handle.result(30)
    assert result == {"number": 7, "word": "ü", "job": str(handle.job_id), "attempt": 1, "final": False}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("does", "state", "outcome", "says"),
    [
        ("raise", "scheduled", "error", "ValueError: no"),
        ("exit", "scheduled", "error", "SystemExit: 3"),
        ("interrupt", "scheduled", "error", "KeyboardInterrupt"),
        ("generator exit", "scheduled", "error", "GeneratorExit"),
        ("cancel itself", "scheduled", "error", "the handler cancelled itself"),
        ("set", "scheduled", "error", r"\$ is of type set"),
        ("generator", "scheduled", "error", r"\$ is of type generator"),
        ("nan", "scheduled", "error", r"\$.a\[0\] is NaN"),
        ("200 MB", "scheduled", "error", "larger than the 1,000,000 bytes"),
        ("raise retry", "scheduled", "error", "later"),
        ("return retry", "scheduled", "error", "later"),
        ("snooze", "scheduled", "snoozed", None),
        ("bury", "dead", "error", "never"),
        ("cancel", "cancelled", "cancelled", "unwanted"),
        ("bury on", "dead", "error", "KeyError"),
    ],
)
async def test_whatever_it_does_its_job_is_settled_once(
    way: str, does: str, state: str, outcome: str, says: str | None, database: Database, shared_worker: str
) -> None:
    """And the next job runs on the same worker."""
    handle = await task_zoo.bad[way].enqueue(database, does)
    found = await until(lambda: settled(handle, database), 30)
    assert (found.state, await outcome_of(handle, database)) == (state, outcome)
    if says is not None:
        assert re.search(says, found.error or ""), found.error
    good = await task_zoo.good[way].enqueue(database, 1, word="w")
    assert (await good.result(30))["number"] == 1


async def settled(handle: AsyncHandle[Any], database: Database) -> JobState | None:
    return await handle.state() if await outcome_of(handle, database) else None


@pytest.fixture
async def shared_worker(database_url: str) -> AsyncIterator[str]:
    async with working(database_url, process_slots=1):
        yield database_url


async def test_code_that_ends_its_process_is_a_failed_attempt(database: Database, database_url: str) -> None:
    """os._exit and a segmentation fault too; the next job gets a new process."""
    async with working(database_url, process_slots=1):
        for does, says in [("leave", "exit code 7"), ("crash", "signal 11")]:
            handle = await task_zoo.bad["process"].enqueue(database, does)
            assert says in ((await ended(handle)).error or "")
        good = await task_zoo.good["process"].enqueue(database, 1, word="w")
        assert (await good.result(30))["number"] == 1


@pytest.mark.parametrize("then", ["leave", "crash"])
async def test_what_a_process_started_ends_with_it(
    then: str, database: Database, database_url: str, tmp_path: Path
) -> None:
    """However it ends: its group is killed before another attempt begins."""
    async with working(database_url, process_slots=1):
        handle = await task_zoo.starts.enqueue(database, then, str(tmp_path / "pid"))
        await ended(handle)
        pid = int((tmp_path / "pid").read_text())
        await until(lambda: _has_ended(pid))


async def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("way", ["async", "sync"])
async def test_a_fork_leaves_no_copy_of_the_worker(way: str, database: Database, database_url: str) -> None:
    """The copy ends where the task does; the worker goes on."""
    before = {child.pid for child in psutil.Process().children()}
    async with working(database_url):
        fork = await task_zoo.bad[way].enqueue(database, "fork")
        assert await fork.result(30) == "forked"
        good = await task_zoo.good[way].enqueue(database, 1, word="w")
        assert (await good.result(30))["number"] == 1
        [copy] = {child.pid for child in psutil.Process().children()} - before
        await until(lambda: _has_ended(copy))
        os.waitpid(copy, 0)


async def test_what_job_code_forks_answers_for_nobody(database: Database, database_url: str) -> None:
    """A copy of the process has the same socket: it neither reads the jobs that come next nor ends them."""
    async with working(database_url, process_slots=1):
        forks = [await task_zoo.bad["process"].enqueue(database, "fork") for _ in range(3)]
        goods = [await task_zoo.good["process"].enqueue(database, number, word="w") for number in range(5)]
        assert [await handle.result(30) for handle in forks] == ["forked"] * 3
        assert [(await handle.result(30))["number"] for handle in goods] == list(range(5))


@pytest.mark.parametrize("way", WAYS)
async def test_its_time_ends(way: str, database: Database, database_url: str) -> None:
    """What waits when its time is over is a timeout, in time; what listens ends at once."""
    async with working(database_url) as worker:
        handle = await task_zoo.waits[way].using(timeout=0.5).enqueue(database, 60.0, True)
        found = await ended(handle)
        assert await outcome_of(handle, database) == "timeout", found
        assert found.state == "scheduled"
        await until(lambda: _is_zero(worker))


async def _is_zero(worker: Worker) -> bool:
    return worker.strays == 0


async def test_code_in_a_process_is_killed_at_its_time(database: Database, database_url: str) -> None:
    """FO-025: with all that it started, however it blocks."""
    async with working(database_url, process_slots=1) as worker:
        handle = await task_zoo.waits["process"].using(timeout=1).enqueue(database, 60.0, False)
        assert "its process was killed" in ((await ended(handle)).error or "")
        good = await task_zoo.good["process"].enqueue(database, 1, word="w")
        assert (await good.result(30))["number"] == 1
        assert worker.strays == 0


async def test_blocked_threads_do_not_stop_the_next_job(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-025: four slots, eight jobs that sleep beyond their limit; each is a timeout, its thread a stray that is
    told with its stack, and the quick job runs.
    """
    with caplog.at_level(logging.WARNING, "duly.task"):
        async with working(database_url, concurrency=4) as worker:
            sleepers = [await task_zoo.waits["sync"].using(timeout=0.3).enqueue(database, 8.0, False) for _ in range(8)]
            quick = await task_zoo.good["sync"].enqueue(database, 1, word="w")
            assert (await quick.result(30))["number"] == 1
            for sleeper in sleepers:
                assert "cannot be stopped and goes on" in ((await ended(sleeper)).error or "")
            assert worker.strays > 0
            await until(lambda: _is_zero(worker))
    assert "task_zoo.py" in caplog.text


async def test_too_many_strays_end_the_worker(database: Database, database_url: str) -> None:
    """FO-025: it says so and drains, for its supervisor to start a new one."""
    async with working(database_url, concurrency=8) as worker:
        worker._runtime._stray_limit = 2
        for _ in range(4):
            await task_zoo.waits["sync"].using(timeout=0.2).enqueue(database, 6.0, False)
        async with asyncio.timeout(30):
            assert (await worker.wait()).clean


async def test_a_coroutine_that_ignores_its_cancellation(database: Database, database_url: str) -> None:
    """It is a timeout, and a stray until it ends; others on its loop run."""
    async with working(database_url) as worker:
        handle = await task_zoo.stubborn.using(timeout=0.3).enqueue(database, 4.0)
        assert "cannot be stopped" in ((await ended(handle)).error or "")
        good = await task_zoo.good["async"].enqueue(database, 1, word="w")
        assert (await good.result(30))["number"] == 1
        await until(lambda: _is_zero(worker))


async def test_a_loop_blocked_for_three_leases_loses_no_lease_and_is_reported(
    database: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FO-005, FO-025: the job that blocks succeeds at its first attempt; a job that it made late is given back and
    runs on a new loop; the log has the stack.
    """
    with caplog.at_level(logging.WARNING, "duly.task"):
        async with working(database_url, lease=SECOND):
            other = await task_zoo.waits["async"].using(timeout=2).enqueue(database, 0.2, False)
            blocker = await task_zoo.blocks.enqueue(database, 4.0)
            late = await task_zoo.good["async"].using(timeout=1).enqueue(database, 5, word="w")
            assert await other.result(30) == "waited"
            assert (await late.result(30))["number"] == 5
            assert (await blocker.state()).state == "running"  # type: ignore[union-attr]
            assert await blocker.result(30) == "blocked"
    assert (await blocker.state()).attempt == 1  # type: ignore[union-attr]
    assert "blocks its event loop" in caplog.text
    assert "in blocks" in caplog.text
    rows = await database.fetch("select outcome from duly.attempt where outcome = 'worker_lost'")
    assert rows == []


async def test_a_task_that_exits_beside_its_own_harms_nobody(database: Database, database_url: str) -> None:
    """SystemExit in a task that job code made, and threads that it leaves: the loop and the worker go on."""
    async with working(database_url):
        for task in (task_zoo.exits_aside, task_zoo.leaks_threads):
            assert await (await task.enqueue(database)).result(30) == "left"
            good = await task_zoo.good["async"].enqueue(database, 1, word="w")
            assert (await good.result(30))["number"] == 1
    task_zoo.let_go.set()


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_job_stops(way: str, database: Database, database_url: str) -> None:
    """With abort: the code is told, ends, and the job is cancelled."""
    async with working(database_url, lease=SECOND):
        handle = await task_zoo.waits[way].enqueue(database, 60.0, True)
        await until(lambda: _is_running(handle))
        row = await database.fetchrow("select account_id, project_id from duly.job where id = $1", handle.job_id)
        assert row is not None
        owner = queue.Owner(row["account_id"], row["project_id"])
        await queue.cancel(database, owner, handle.job_id, abort=True)
        await until(lambda: _is(handle, "cancelled"))


async def _is_running(handle: AsyncHandle[Any]) -> bool:
    state = await handle.state()
    return state is not None and state.state == "running"


async def _is(handle: AsyncHandle[Any], name: str) -> bool:
    state = await handle.state()
    return state is not None and state.state == name


@pytest.mark.parametrize("way", WAYS)
async def test_a_drain_lets_it_end_or_gives_it_back(way: str, database: Database, database_url: str) -> None:
    """What ends within the grace has succeeded; what does not is interrupted, and uses up no attempt."""
    async with working(database_url, grace=3 * SECOND) as worker:
        short = await task_zoo.waits[way].enqueue(database, 1.0, True)
        long = await task_zoo.waits[way].enqueue(database, 60.0, True)
        await until(lambda: _is_running(short))
        await until(lambda: _is_running(long))
        worker.stop()
        drained = await worker.wait()
    assert drained.interrupted == 1
    assert (await short.state()).result == "waited"  # type: ignore[union-attr]
    assert await outcome_of(long, database) == "interrupted"
    assert (await long.state()).state == "ready"  # type: ignore[union-attr]


@pytest.mark.parametrize("way", WAYS)
async def test_progress_is_seen_while_it_runs(way: str, database: Database, database_url: str) -> None:
    """A share and a line; gone with the lease."""
    async with working(database_url):
        handle = await task_zoo.tells[way].enqueue(database)

        async def seen() -> Any:
            state = await handle.state()
            return None if state is None else state.progress

        progress = await until(seen)
        assert (progress.share, progress.message) == (0.5, "half\u2400")
        await handle.result(30)
        assert await seen() is None


async def test_an_unknown_task_waits_and_an_alias_runs(database: Database, database_url: str) -> None:
    """Rolling deploys: a worker claims the names it knows, old ones of renamed tasks too; arguments that only
    another release knows are a failed attempt.
    """
    async with working(database_url):
        unknown = await database.fetchval("select duly.enqueue_task('zoo.of_the_next_release')")
        await database.execute("select duly.enqueue_task('zoo.old_name', '{\"number\": 3}')")
        await database.execute("select duly.enqueue_task('zoo.renamed', '{\"other\": 3}')")
        await until(lambda: database.fetchval("select count(*) = 2 from duly.attempt"))
        rows = await database.fetch(
            "select j.kind, a.outcome, a.error from duly.job j join duly.attempt a on a.job_id = j.id order by j.kind"
        )
        assert [(row["kind"], row["outcome"]) for row in rows] == [
            ("task:zoo.old_name", "success"),
            ("task:zoo.renamed", "arguments"),
        ]
        assert await database.fetchval("select count(*) from duly.ready where job_id = $1", unknown) == 1


async def test_queues_with_slots_of_their_own(database: Database, database_url: str) -> None:
    """mail: 2 at once, whatever waits in others; a queue that is not named is not served."""
    async with working(database_url, queues={"mail": 2, "other": None}, concurrency=5):
        for queue_name in ("mail", "other", "third"):
            for _ in range(8):
                await task_zoo.waits["async"].using(queue=queue_name).enqueue(database, 3.0, True)

        async def running() -> dict[str, int]:
            rows = await database.fetch(
                "select j.queue, count(*) as n from duly.lease l join duly.job j on j.id = l.job_id group by 1"
            )
            return {row["queue"]: row["n"] for row in rows}

        await until(lambda: _equal(running, {"mail": 2, "other": 5}))


async def _equal(ask: Callable[[], Any], value: Any) -> bool:
    return bool(await ask() == value)


async def test_a_program_of_its_own_loop_embeds_it(database: Database, database_url: str) -> None:
    """Nothing of the worker is left in the loop afterwards."""
    before = asyncio.all_tasks()
    async with working(database_url):
        assert await (await task_zoo.good["async"].enqueue(database, 1, word="w")).result(30)
    await asyncio.sleep(0)
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def test_one_by_one_with_a_concurrency_key(database: Database, database_url: str) -> None:
    """By the command of the how-to page; jobs with other keys run beside."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tasks.md").read_text()
    [words] = re.findall(r"^    duly (queues set .*)$", page, re.MULTILINE)
    done = await asyncio.to_thread(duly, *shlex.split(words), "--database-url", database_url)
    assert done.code == 0, done.err
    async with working(database_url, concurrency=10):
        for key in ("a", "a", "a", "b"):
            await task_zoo.waits["async"].using(queue="mail", concurrency_key=key).enqueue(database, 0.3, True)
        most: dict[str, int] = {}

        async def all_done() -> bool:
            rows = await database.fetch(
                """select j.concurrency_key as key, count(*) as n from duly.lease l join duly.job j on j.id = l.job_id
                   group by 1"""
            )
            for row in rows:
                most[row["key"]] = max(most.get(row["key"], 0), row["n"])
            return bool(await database.fetchval("select count(*) = 4 from duly.outcome"))

        await until(all_done, 30)
    assert most == {"a": 1, "b": 1}
