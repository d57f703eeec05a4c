"""Every behaviour of bench/hostile_answers.py, one attempt each: right outcome, in time, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest
import trustme
from bench.hostile_answers import CASES, Case
from bench.hostile_server import server_context, serving

from duly.http import Deliverer
from duly.http.head_limit import CLOSE_LIMIT_S

from .servers import NOW, OPEN_LOOPBACK, make_job, report_of

DEADLINE_S = 0.3
ROOM_S = 3.0  # the deadline of what must end before it, on a busy machine, too
LATE_S = 0.1  # what an attempt may take beyond its deadline


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """One authority, whose certificates take a while to make."""
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """The servers' side."""
    return server_context(authority)


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's side."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case, tls: ssl.SSLContext, ca_file: Path) -> None:
    """The outcome is right; the attempt ends before 100 ms after its deadline (one of three, on a busy machine); then
    no task and no socket of it is left.

    Late or not is told by order, not by a clock: a timer set to the deadline plus 100 ms, on the same loop, goes first.
    """
    on_time = False
    for _ in range(3):
        if on_time := await _attempt(case, tls, ca_file):
            break
    assert on_time


def _sockets() -> int:
    return len(os.listdir("/dev/fd"))


async def _attempt(case: Case, tls: ssl.SSLContext, ca_file: Path) -> bool:
    loop = asyncio.get_running_loop()
    may_wait = case.waits or any("timeout" in result for result, _ in case.expected)
    deadline_s = DEADLINE_S if may_wait else ROOM_S
    async with serving(case, tls) as port, Deliverer(OPEN_LOOPBACK, ca_file=ca_file, clock=lambda: NOW) as deliverer:
        tasks, sockets = len(asyncio.all_tasks()), _sockets()
        url = f"{'http' if case.tls == 'none' else 'https'}://127.0.0.1:{port}/hook"
        job = make_job(url, case.method, body=b"b" * case.body_bytes, timeout_s=deadline_s)
        too_early, too_late = asyncio.Event(), asyncio.Event()
        loop.call_later(deadline_s * 0.9, too_early.set)
        watch = loop.call_later(deadline_s + LATE_S, too_late.set)
        report = report_of(await deliverer.deliver(job))
        watch.cancel()
        assert (report.result, report.status_code) in case.expected, report
        assert too_early.is_set() or not case.waits
        is_on_time = not too_late.is_set()
        await deliverer._connections.close()
        async with asyncio.timeout(CLOSE_LIMIT_S + 2.0):
            while len(asyncio.all_tasks()) > tasks + 1 or _sockets() > sockets + 1:
                await asyncio.sleep(0.01)  # the server's side of the connection, which goes when it notices
    return is_on_time
