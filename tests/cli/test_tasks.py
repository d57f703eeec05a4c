"""`duly worker --app`: real processes, killed, reloaded, told wrong things."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from cli.harness import Starter, duly, free_port, read_credentials, wait_until

APP = """
    import asyncio, os, threading, time
    import duly

    @duly.task
    def version() -> int:
        return 1

    @duly.task(max_attempts=3)
    async def waits_async() -> int:
        mark("async")
        await asyncio.sleep(0 if os.path.exists("go") else 60)
        return os.getpid()

    @duly.task(max_attempts=3)
    def waits_sync() -> int:
        mark("sync")
        time.sleep(0 if os.path.exists("go") else 60)
        return os.getpid()

    @duly.task(max_attempts=3, run_in="process")
    def waits_process() -> int:
        mark("process")
        time.sleep(0 if os.path.exists("go") else 60)
        return os.getpid()

    @duly.task
    def leaves_a_thread() -> str:
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
        return "left"

    def mark(way: str) -> None:
        with open(f"{way}.{os.getpid()}.{os.getppid()}", "w"):
            pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the commands, with a module of tasks."""
    (tmp_path / "jobs.py").write_text(textwrap.dedent(APP))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def enqueued(url: str, task: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select duly.enqueue_task(%s)::text", [task]).fetchone()
    assert row is not None
    return str(row[0])


def state(url: str, job: str) -> dict[str, object]:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select duly.task_state(%s)", [job]).fetchone()
    assert row is not None
    found: dict[str, object] = row[0]
    return found


def result(url: str, job: str) -> object:
    wait_until(lambda: state(url, job)["state"] == "succeeded", f"job {job} has succeeded")
    return state(url, job)["result"]


def test_a_worker_runs_an_apps_tasks_and_drains(folder: Path, start: Starter, database_url: str) -> None:
    """No encryption key is asked for: it delivers nothing."""
    worker = start("worker", "--app", "jobs", "--database-url", database_url, "--grace", 5, DULY_ENCRYPTION_KEYS="")
    worker.says("worker started, 100 slots, 5 tasks")
    assert result(database_url, enqueued(database_url, "jobs.version")) == 1
    assert worker.stop().code == 0


def test_a_killed_workers_tasks_run_again_within_two_leases(folder: Path, start: Starter, database_url: str) -> None:
    """SIGKILL while it runs one on its loop, one in a thread and one in a process: the process goes with it, and
    another worker has started all three again when two leases, and the short delay of a second attempt, are over.
    """
    options = ("worker", "--app", "jobs", "--database-url", database_url, "--lease", 2, "--process-slots", 1)
    first = start(*options)
    jobs = [enqueued(database_url, f"jobs.waits_{way}") for way in ("async", "sync", "process")]
    wait_until(lambda: len(list(folder.glob("*.*.*"))) == 3, "all three run")
    [of_process] = folder.glob("process.*")
    child = psutil.Process(int(of_process.name.split(".")[1]))
    assert int(of_process.name.split(".")[2]) == first.process.pid
    second = start(*options)
    second.says("worker started")
    (folder / "go").touch()
    first.kill()
    killed_at = time.monotonic()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its process is gone")
    for job in jobs:
        result(database_url, job)
    took_s = time.monotonic() - killed_at
    assert took_s < 2 * 2 + 2.5 + 3, took_s  # two leases, the delay (2 s and up to a quarter more), and a busy machine
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select outcome, count(*) from duly.attempt group by 1 order by 1").fetchall()
    assert rows == [("success", 3), ("worker_lost", 3)]


STARTING = """
    import subprocess, time
    import duly

    @duly.task(run_in="process", max_attempts=2)
    def starts(job: duly.Context) -> int:
        if job.attempt == 1:
            with open("started", "w") as file:
                file.write(f"{subprocess.Popen(['sleep', '600']).pid}\\n")
            time.sleep(600)
        return job.attempt
"""


def test_what_a_killed_workers_process_started_is_killed(folder: Path, start: Starter, database_url: str) -> None:
    """SIGKILL of the worker while its process has one of its own: that does not go on beside the next attempt."""
    (folder / "starting.py").write_text(textwrap.dedent(STARTING))
    options = ("worker", "--app", "starting", "--database-url", database_url, "--lease", 2)
    first = start(*options)
    job = enqueued(database_url, "starting.starts")
    file = folder / "started"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), "it has started one")
    started = psutil.Process(int(file.read_text()))
    below = psutil.Process(first.process.pid).children(recursive=True)
    assert started in below
    first.kill()
    wait_until(lambda: not any(map(_runs, below)), "all below the worker have ended")
    start(*options)
    assert result(database_url, job) == 2


def _runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_several_processes_are_kept_running(folder: Path, start: Starter, database_url: str) -> None:
    """One that is killed is started again; a stop drains all of them."""
    command = start("worker", "--app", "jobs", "--database-url", database_url, "--processes", 2, "--grace", 2)
    parent = psutil.Process(command.process.pid)
    wait_until(lambda: command.err.count("worker started") == 2, "two have started")
    before = {child.pid for child in parent.children()}
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: command.err.count("worker started") == 3, "a third one has started")
    assert len({child.pid for child in parent.children()} & before) == 1
    assert result(database_url, enqueued(database_url, "jobs.version")) == 1
    workers = parent.children(recursive=True)
    assert command.stop().code == 0
    assert not any(worker.is_running() for worker in workers)


def test_workers_end_with_their_supervisor(folder: Path, start: Starter, database_url: str) -> None:
    """Killed, it cannot pass anything on; they notice."""
    command = start("worker", "--app", "jobs", "--database-url", database_url, "--processes", 2, "--grace", 1)
    wait_until(lambda: command.err.count("worker started") == 2, "two have started")
    workers = psutil.Process(command.process.pid).children(recursive=True)
    command.kill()
    wait_until(lambda: not any(worker.is_running() for worker in workers), "they have ended")


def test_reload_runs_the_new_code(folder: Path, start: Starter, database_url: str) -> None:
    """Also after code that could not be imported."""
    command = start("worker", "--app", "jobs", "--database-url", database_url, "--reload", "--grace", 1)
    command.says("worker started")
    assert result(database_url, enqueued(database_url, "jobs.version")) == 1
    text = (folder / "jobs.py").read_text()
    (folder / "jobs.py").write_text("this is no Python")
    command.says("waiting for a change")
    (folder / "jobs.py").write_text(text.replace("return 1", "return 2"))
    wait_until(lambda: command.err.count("worker started") == 2, "the new one has started")
    assert result(database_url, enqueued(database_url, "jobs.version")) == 2
    assert command.stop().code == 0


def test_reload_starts_every_process_anew(folder: Path, start: Starter, database_url: str) -> None:
    """Each change, whichever of them ends first: after two, all three are there and run the new code."""
    command = start(
        "worker", "--app", "jobs", "--database-url", database_url, "--reload", "--processes", 3, "--grace", 1
    )
    supervisor = psutil.Process(command.process.pid)
    wait_until(lambda: command.err.count("worker started") == 3, "three have started")
    for version in (2, 3):
        before = set(supervisor.children())
        text = (folder / "jobs.py").read_text()
        (folder / "jobs.py").write_text(text.replace(f"return {version - 1}", f"return {version}"))
        wait_until(partial(_has_said, command, "worker started", 3 * version), "three have started anew")
        assert len(set(supervisor.children()) - before) == 3
    assert "has ended" not in command.err
    assert {result(database_url, enqueued(database_url, "jobs.version")) for _ in range(6)} == {3}
    assert command.stop().code == 0


def _has_said(command: Any, words: str, times: int) -> bool:
    return bool(command.err.count(words) == times)


def test_a_thread_that_job_code_left_does_not_keep_the_worker(folder: Path, start: Starter, database_url: str) -> None:
    """The stop ends in time, and says which thread it was."""
    worker = start("worker", "--app", "jobs", "--database-url", database_url, "--grace", 2)
    assert result(database_url, enqueued(database_url, "jobs.leaves_a_thread")) == "left"
    stopped = worker.stop()
    assert stopped.code == 0
    assert "job code has left 1 threads" in stopped.err


def test_the_same_worker_delivers_http_if_told(folder: Path, start: Starter, database_url: str) -> None:
    """Both kinds are registered."""
    worker = start("worker", "--app", "jobs", "--http", "--database-url", database_url)
    worker.says("worker started, 100 slots, HTTP, 5 tasks")

    def kinds() -> set[str]:
        with psycopg.connect(database_url) as connection:
            rows = connection.execute("select distinct unnest(kinds) from duly.worker").fetchall()
        return {row[0] for row in rows}

    wait_until(lambda: kinds() >= {"http", "task:jobs.version", "task:jobs.waits_process"}, "it serves both")
    assert worker.stop().code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--app", "no_such_module"), "cannot import no_such_module"),
        (("--app", "jobs:nothing"), "nothing in jobs is no duly.App"),
        (("--app", ":app"), "names no module"),
        (("--app", "textwrap"), "no task is declared there"),
        (("--no-http",), "leaves nothing to do"),
        (("--app", "jobs", "--queues", "mail:0"), "1 to 10000"),
        (("--app", "jobs", "--queues", "mail,mail:2"), "given twice"),
        (("--app", "jobs", "--queues", "mail:x"), "write a number, as mail:10"),
        (("--app", "jobs", "--queues", "mail:-1"), "write a number, as mail:10"),
        (("--app", "jobs", "--queues", "mail:"), "write a number, as mail:10"),
        (("--app", "jobs", "--queues", "mail:" + "9" * 5000), "1 to 10000"),
        (("--app", "../jobs"), "a path is none"),
        (("--app", "jobs.py"), "cannot import jobs.py"),
        (("--app", "jobs", "--queues", "no queue"), "is no queue name"),
    ],
)
def test_what_is_told_wrong_is_one_sentence(
    options: tuple[str, ...], says: str, folder: Path, database_url: str
) -> None:
    """And exit code 1, before anything runs."""
    told = duly("worker", *options, "--database-url", database_url)
    assert told.code == 1
    assert says in told.said
    assert "Traceback" not in told.err


def test_two_processes_of_a_broken_app_give_up(folder: Path, start: Starter, database_url: str) -> None:
    """A program that cannot start is not started for ever."""
    (folder / "jobs.py").write_text("import no_such_thing")
    command = start("worker", "--app", "jobs", "--database-url", database_url, "--processes", 2)
    assert command.process.wait(60) == 1
    assert "giving up" in command.err


def test_everything_in_one_command(folder: Path, home: Path, start: Starter) -> None:
    """`duly up --app`: a private PostgreSQL, and a worker that runs the tasks."""
    up = start("up", "--home", home, "--port", free_port(), "--app", "jobs")
    up.says("Stop with Ctrl-C")
    url = read_credentials(home)["database_url"]
    assert f"export DULY_DATABASE_URL={shlex.quote(url)}\n" in up.out
    assert "It runs 5 tasks of jobs" in up.out
    assert result(url, enqueued(url, "jobs.version")) == 1
    assert up.stop().code == 0


SCHEDULED = """
    import duly

    @duly.task
    def tick(n: int) -> int:
        return n

    duly.schedule("seconds", tick.call(7), cron="* * * * * *")
    duly.schedule("nightly", tick.call(8), cron="0 3 * * *", timezone="Europe/London")
"""


def test_declared_schedules_are_shown_applied_and_fired(folder: Path, start: Starter, database_url: str) -> None:
    """A worker changes none unasked, and says what differs; applied, a worker of tasks alone, without keys, fires
    them. An HTTP schedule stays due. What is declared no more is removed by a worker that is told to.
    """
    file, at = folder / "ticking.py", ("--database-url", database_url)
    file.write_text(textwrap.dedent(SCHEDULED))
    apply = ("schedules", "apply", "--app", "ticking", *at)
    unasked = duly(*apply)
    assert (unasked.code, unasked.out.splitlines()) == (1, ["+ nightly", "+ seconds"])
    assert "say --yes" in unasked.err
    options = ("worker", "--app", "ticking", *at, "--grace", 2)
    worker = start(*options, DULY_ENCRYPTION_KEYS="")
    worker.says("worker started")
    assert "schedules are not as declared (+ nightly, + seconds)" in " ".join(worker.err.split())
    assert duly("schedules", "list", "--json", *at).json == []
    assert duly(*apply, "--yes").code == 0
    assert duly(*apply, "--json").json == {"applied": True, "changes": []}

    def results() -> set[int]:
        with psycopg.connect(database_url) as connection:
            return {row[0] for row in connection.execute("select result from duly.outcome where state = 'succeeded'")}

    wait_until(lambda: 7 in results(), "a fire has run")
    assert duly("schedules", "run", "nightly", *at).code == 0
    wait_until(lambda: 8 in results(), "one that was made by hand has run")
    assert worker.stop().code == 0
    shown = duly("schedules", "show", "seconds", "--json", *at).json
    assert (shown["declared_by"], shown["job"]["kind"]) == ("app:ticking", "task:ticking.tick")
    file.write_text(file.read_text().replace('duly.schedule("nightly"', 'duly.schedule("weekly"'))
    told = start(*options, "--apply-schedules")
    told.says("worker started")
    assert {one["name"] for one in duly("schedules", "list", "--json", *at).json} == {"seconds", "weekly"}
    assert told.stop().code == 0


def test_schedules_that_cannot_be_applied(folder: Path, start: Starter, database_url: str) -> None:
    """One sentence that names the schedule; nothing is changed; a worker that was told to apply them does not start."""
    at = ("--database-url", database_url)
    bad = textwrap.dedent(SCHEDULED).replace("0 3 * * *", "0 0 30 2 *")
    (folder / "ticking.py").write_text(bad)
    for command in (("schedules", "apply", "--yes"), ("worker", "--apply-schedules")):
        told = duly(*command, "--app", "ticking", *at)
        assert told.code == 1
        assert "nightly/cron" in told.said
        assert "Traceback" not in told.err
    assert duly("schedules", "list", "--json", *at).json == []
    for options, says in (
        (("schedules", "apply"), "give a file, or --app"),
        (("schedules", "apply", "x.toml", "--app", "ticking"), "a file excludes --app"),
        (("worker", "--apply-schedules"), "give --app"),
    ):
        told = duly(*options, *at)
        assert (told.code, says in told.said) == (1, True), told.said


def test_a_worker_says_why_schedules_stay_as_they_are(folder: Path, start: Starter, database_url: str) -> None:
    """A name of another set, or a schedule that never fires: the worker runs, and does not keep it to itself. One whose
    only moment has passed keeps nothing from being applied.
    """
    at = ("--database-url", database_url)
    (folder / "ticking.py").write_text(textwrap.dedent(SCHEDULED))
    assert duly("schedules", "apply", "--yes", "--app", "ticking", "--set", "other", *at).code == 0
    for text, says in (
        (SCHEDULED, "of the set 'other'"),
        (
            SCHEDULED.replace("0 3 * * *", "0 0 30 2 *").replace("nightly", "never").replace("seconds", "s"),
            "never/cron",
        ),
    ):
        (folder / "ticking.py").write_text(textwrap.dedent(text))
        worker = start("worker", "--app", "ticking", *at, "--grace", 1)
        worker.says("worker started")
        assert says in " ".join(worker.err.split())
        assert worker.stop().code == 0
    passed = """
        import datetime, duly

        @duly.task
        def tick() -> None: ...

        duly.schedule("once", tick, at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    """
    (folder / "passed.py").write_text(textwrap.dedent(passed))
    applied = duly("schedules", "apply", "--app", "passed", *at)
    assert (applied.code, applied.out.strip()) == (0, ". once (its time has passed: left out)")
    worker = start("worker", "--app", "passed", "--apply-schedules", *at, "--grace", 1)
    worker.says("worker started")
    assert worker.stop().code == 0


def test_arguments_are_shown_as_they_are(database_url: str) -> None:
    """Also those that are called like parts of an HTTP request, of any type; no encryption key is looked for."""
    arguments = '{"url": 5, "headers": [1], "redact": {"headers": 3}, "sealed": {"key": "k9"}}'
    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute("select duly.enqueue_task('a.b', %s)::text", [arguments]).fetchone()
    assert row is not None
    at = ("--database-url", database_url)
    assert duly("jobs", "show", row[0], "--json", *at).json["job"]["payload"] == json.loads(arguments)
    assert "task:a.b" in duly("jobs", "show", row[0], *at).out
    assert "k9" not in duly("keys", "encryption", "used", *at).said


def test_the_command_without_its_packages() -> None:
    """`pip install duly` alone is enough to enqueue; the command says what else it needs."""
    without = "import sys; sys.modules['typer'] = None; import duly.__main__; duly.__main__.run()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "duly: the command needs typer, which is not installed: pip install 'duly[server]'\n"


WITHOUT = """
    import asyncio, logging, sys
    for name in ("cronsim", "cryptography", "idna", "aiohttp", "tzdata"):
        sys.modules[name] = None
    import duly

    done = asyncio.Event()

    @duly.task
    def double(n: int = 1) -> int:
        loop.call_soon_threadsafe(done.set)
        return 2 * n

    duly.schedule("often", double, every=1)

    async def main() -> None:
        global loop
        loop = asyncio.get_running_loop()
        async with duly.Worker(sys.argv[1], concurrency=2), asyncio.timeout(30):
            await done.wait()

    if __name__ == "__main__":
        logging.basicConfig(level=logging.INFO)
        asyncio.run(main())
"""


def test_a_worker_in_a_program_without_them(database_url: str, folder: Path) -> None:
    """It runs tasks; that it fires no schedules is a warning where some are declared."""
    script = folder / "embeds.py"
    script.write_text(textwrap.dedent(WITHOUT))
    job = enqueued(database_url, "embeds.double")
    done = subprocess.run([sys.executable, script, database_url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert result(database_url, job) == 2
    assert "this worker fires no schedules: install duly[server] for that" in done.stderr
