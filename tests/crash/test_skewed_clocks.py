"""Workers whose wall clocks are wrong, or are stepped while they work."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from bench.skewed_clock import NoCompilerError, compile_preload

from duly.queue import Database, Owner
from support.clocks import MakeClock, clocks_in
from support.crash_fleet import Fleet, Process
from support.crash_ledger import all_final, all_succeeded, enqueue_orders, ledger
from support.sessions import until_true

LEASE_S = 2.0
SKEW = timedelta(seconds=120)
HOUR = timedelta(hours=1)
WARNED = "this machine's clock is not the database's"
TELL = """
import sys, time
from datetime import datetime
for line in sys.stdin:
    print(time.time(), time.time_ns() / 1e9, datetime.now().timestamp(), time.monotonic(), flush=True)
"""


@pytest.fixture
def make_clock(tmp_path: Path) -> MakeClock:
    return clocks_in(tmp_path)


async def _told(process: asyncio.subprocess.Process) -> tuple[list[float], float]:
    """How far the process's wall clocks are ahead of ours, and its monotonic clock; rounded to seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    wall, monotonic = time.time(), time.monotonic()
    process.stdin.write(b"\n")
    *walls, its_monotonic = map(float, (await process.stdout.readline()).split())
    return [round(one - wall) for one in walls], round(its_monotonic - monotonic)


async def test_a_skewed_clock_shifts_the_wall_clock_and_nothing_else(make_clock: MakeClock) -> None:
    """The tool that this file stands on: every way to ask for the time is shifted, the monotonic clock is not; and it
    can be stepped while the process runs.
    """
    clock = make_clock(SKEW)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TELL,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **clock.environment},
    )
    async with asyncio.timeout(30):
        await _told(process)  # it runs
        assert await _told(process) == ([120, 120, 120], 0)
        clock.step_to(SKEW - HOUR)
        assert await _told(process) == ([-3480, -3480, -3480], 0)
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0


async def test_a_process_without_its_clock_does_not_run(make_clock: MakeClock) -> None:
    """A run with a right clock that was to be wrong would prove nothing."""
    clock = make_clock(SKEW)
    clock.file.unlink()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "print('ran')",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **clock.environment},
    )
    out, words = await process.communicate()
    assert (process.returncode, out) == (97, b"")
    assert b"cannot be opened" in words


def test_without_gcc_there_is_no_skewed_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and nobody goes on with clocks that are right."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match="need gcc"):
        compile_preload(tmp_path)


async def test_workers_with_wrong_clocks_go_by_the_clock_of_the_database(
    database: Database, owner: Owner, fleet: Fleet, make_clock: MakeClock
) -> None:
    """FO-055: one worker 120 s fast and one 120 s slow, both stepped back an hour in mid-run. Nothing runs before it is
    due, no lease is thought to have ended, each job runs once, and both workers say how far off their clocks are.
    """
    clocks = fast, slow = make_clock(SKEW), make_clock(-SKEW)
    workers = [await fleet.worker(LEASE_S, clock, concurrency=15) for clock in clocks]
    held = await enqueue_orders(database, owner, *[{"do": "wait", "gate": str(fleet.gate())}] * 20)
    await until_true(lambda: fleet.journal.jobs("start") == set(held))
    assert all(fleet.journal.jobs("start", worker.pid) for worker in workers)

    before_s, delay = time.monotonic(), timedelta(seconds=1.5 * LEASE_S)
    later = await enqueue_orders(database, owner, *[{"do": "finish"}] * 20, delay=delay)
    fast.step_to(SKEW - HOUR)
    slow.step_to(-SKEW - HOUR)
    due_s = before_s + delay.total_seconds()  # not later than what the database reckons
    await until_true(lambda: fleet.journal.jobs("end") >= set(later))
    await until_true(lambda: time.monotonic() > before_s + 2.5 * LEASE_S)
    fleet.gate().touch()
    await all_succeeded(database, len(held) + len(later))

    assert fleet.journal.starts() == dict.fromkeys(((job, 1) for job in (*held, *later)), 1)
    assert min(e.at_s for e in fleet.journal.entries("start") if e.job_id in later) >= due_s
    assert all(attempts == [(1, "success")] for attempts in (await ledger(database)).values())
    assert not any(worker.said("lease not renewed in time") for worker in workers)
    assert 115 < _ahead_s(workers[0]) <= 120.1  # less the way of the answer
    assert -120.1 <= _ahead_s(workers[1]) < -115


def _ahead_s(worker: Process) -> float:
    """What the worker says of its clock, once."""
    [said] = [line for line in worker.log.read_text().splitlines() if WARNED in line]
    return float(said.rpartition("ahead_seconds=")[2])


async def test_a_lost_lease_ends_by_the_clock_of_the_database(
    database: Database, owner: Owner, fleet: Fleet, make_clock: MakeClock
) -> None:
    """FO-055: a fast worker rescues no earlier: what a killed worker held starts again after its lease."""
    lease_s = 3.0
    first = await fleet.worker(lease_s, make_clock(-SKEW))
    [job] = await enqueue_orders(database, owner, {"do": "wait", "gate": str(fleet.gate())})
    await until_true(lambda: fleet.journal.starts()[job, 1])
    second = await fleet.worker(lease_s, make_clock(SKEW + HOUR))
    first.kill()
    killed_s = time.monotonic()
    fleet.gate().touch()
    await all_final(database)
    assert await ledger(database) == {job: [(1, "worker_lost"), (2, "success")]}
    [again] = fleet.journal.entries("start", second.pid)
    assert again.at_s > killed_s + lease_s / 2  # it was renewed a quarter of the lease before, and a little


async def test_a_worker_with_a_right_clock_has_nothing_to_say(database: Database, owner: Owner, fleet: Fleet) -> None:
    """No warning, also when the machine is slow: only what cannot be the way of the answer counts."""
    worker = await fleet.worker()
    await enqueue_orders(database, owner, {"do": "finish"})
    await all_succeeded(database, 1)
    assert not worker.said(WARNED)
