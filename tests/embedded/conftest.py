"""A home that an unprivileged account can reach, one query, and processes that are looked at from outside."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.embedded import EmbeddedPostgres, find_binaries

SOURCE = Path(__file__).resolve().parents[2] / "src"
Query = Callable[[EmbeddedPostgres, str], list[Any]]
OwnerScript = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def ground() -> Iterator[Path]:
    """An empty folder that every account can pass (pytest's own is closed to others when root runs it)."""
    folder = Path(tempfile.mkdtemp(prefix="duly-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def home(ground: Path) -> Path:
    """A home folder that does not exist yet."""
    return ground / "pg"


@pytest.fixture
def query() -> Query:
    """Run one statement on a fresh connection and return its first column."""

    async def run(dsn: str, sql: str) -> list[Any]:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return [row[0] for row in await connection.fetch(sql, timeout=10)]
        finally:
            await connection.close()

    return lambda server, sql: asyncio.run(run(server.dsn(), sql))


@pytest.fixture
def account() -> dict[str, int]:
    """Keywords for subprocess that start a process as the account the server runs as."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid}
    pytest.skip("root, and no account to drop to")


@pytest.fixture
def owner_script() -> Iterator[OwnerScript]:
    """Run Python lines in a process of its own, with what they print readable; killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def run(lines: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", lines],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def halting_initdb(ground: Path) -> Callable[[str], Path]:
    """An installation whose initdb writes PG_VERSION first, as the real one does, and then runs `last` (shell)."""
    real = find_binaries()

    def make(last: str) -> Path:
        folder = ground / "fake" / "bin"
        folder.mkdir(parents=True)
        scripts = {
            "postgres": f'exec "{real.program("postgres")}" "$@"',
            "initdb": f'echo {real.major} > "$2/PG_VERSION"; echo $$ > "$2/pid"; {last}',
        }
        for name, body in scripts.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        folder.parent.chmod(0o755)
        folder.chmod(0o755)
        return folder.parent

    return make


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something another process does; the test fails when it has not happened after ten seconds."""

    def wait(happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not happened():
            assert time.monotonic() < end, "it did not happen within ten seconds"
            time.sleep(0.01)

    return wait


@pytest.fixture
def ended() -> Callable[[int], bool]:
    """The predicate `has_ended`."""
    return has_ended
