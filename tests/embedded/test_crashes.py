"""Kills of every kind: the server, its owner, initdb; and the files they leave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.embedded import EmbeddedPostgres
from duly.model.errors import EmbeddedError

Query = Callable[[EmbeddedPostgres, str], list[Any]]
OwnerScript = Callable[[str], "subprocess.Popen[str]"]
WaitUntil = Callable[[Callable[[], bool]], None]
Ended = Callable[[int], bool]

OWNER = """
import time
from pathlib import Path
from duly.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path({home!r}), binaries={binaries})
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def owned_server_pid(owner: subprocess.Popen[str]) -> int:
    """The pid that the owner prints once its server is ready."""
    assert owner.stdout is not None
    return int(owner.stdout.readline())


def test_committed_rows_survive_a_killed_server(home: Path, query: Query) -> None:
    """After SIGKILL the same object starts again and finds every committed row."""
    server = EmbeddedPostgres(home)
    server.start()
    query(server, "create table kept as select generate_series(1, 1000) as n")
    server.kill()
    assert not server.alive
    server.start()
    assert query(server, "select count(*) from kept") == [1000]
    server.stop()


def test_a_killed_server_whose_backend_lives_is_waited_for(home: Path, query: Query) -> None:
    """While an old backend still holds the memory a new server may not start; it starts when that backend has ended."""
    frozen: list[int] = []
    waited: list[str] = []

    def progress(line: str) -> None:
        if "waiting for the last connections" in line:
            waited.append(line)
            os.kill(frozen[0], signal.SIGCONT)

    server = EmbeddedPostgres(home, on_progress=progress)
    server.start()
    query(server, "create table kept as select 1 as n")

    async def crash_with_a_frozen_backend() -> None:
        connection = await asyncpg.connect(server.dsn())
        frozen.append(await connection.fetchval("select pg_backend_pid()"))
        os.kill(frozen[0], signal.SIGSTOP)  # it cannot notice that its server is gone
        server.kill()
        connection.terminate()

    asyncio.run(crash_with_a_frozen_backend())
    server.start()
    assert waited
    assert query(server, "select n from kept") == [1]
    server.stop()


def test_the_server_ends_with_its_killed_owner(
    home: Path, query: Query, owner_script: OwnerScript, wait_until: WaitUntil, ended: Ended
) -> None:
    """SIGKILL of the process that started it ends the server by itself, and the next owner starts."""
    owner = owner_script(OWNER.format(home=str(home), binaries=None))
    pid = owned_server_pid(owner)
    owner.kill()
    owner.wait()
    wait_until(lambda: ended(pid))
    with EmbeddedPostgres(home) as server:
        assert query(server, "select 1") == [1]


def test_the_next_owner_does_not_wait_for_the_old_server(
    home: Path, query: Query, owner_script: OwnerScript, ended: Ended
) -> None:
    """A start directly after the owner's SIGKILL works, whether the old server is still there or not."""
    owner = owner_script(OWNER.format(home=str(home), binaries=None))
    pid = owned_server_pid(owner)
    owner.kill()
    owner.wait()
    with EmbeddedPostgres(home) as server:
        assert server.pid != pid
        assert ended(pid)
        assert query(server, "select 1") == [1]


def test_an_orphan_is_stopped_first(home: Path, query: Query, account: dict[str, int], ended: Ended) -> None:
    """A live server of this folder that nobody owns is stopped, then ours starts; its rows are there."""
    with EmbeddedPostgres(home) as server:
        query(server, "create table kept as select 5 as n")
        argv = Path(f"/proc/{server.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    (home / "run").mkdir(exist_ok=True)
    orphan = subprocess.Popen(argv, cwd="/", stderr=subprocess.DEVNULL, extra_groups=[] if account else None, **account)  # type: ignore[call-overload]
    pid = int(orphan.pid)
    pid_file = home / "data" / "postmaster.pid"
    while not (pid_file.exists() and "ready" in pid_file.read_text()):
        assert orphan.poll() is None
    news: list[str] = []
    with EmbeddedPostgres(home, on_progress=news.append) as server:
        assert ended(pid)
        assert any(f"stopping PostgreSQL {pid}" in line for line in news)
        assert query(server, "select n from kept") == [5]
    orphan.wait()


@pytest.mark.parametrize("kind", ["zombie", "reused", "empty"])
def test_a_stale_pid_file_does_not_block(home: Path, query: Query, account: dict[str, int], kind: str) -> None:
    """A pid file that names a zombie or somebody else's process, or is empty, is disarmed; rows are recovered."""
    server = EmbeddedPostgres(home)
    server.start()
    query(server, "create table kept as select 3 as n")
    server.kill()
    command = ["true"] if kind == "zombie" else ["sleep", "600"]
    other = subprocess.Popen(command, cwd="/", extra_groups=[] if account else None, **account)  # type: ignore[call-overload]
    if kind == "zombie":
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    pid_file = home / "data" / "postmaster.pid"
    rest = pid_file.read_text().splitlines()[1:]
    pid_file.write_text("" if kind == "empty" else "\n".join([str(other.pid), *rest]) + "\n")
    try:
        server.start()
        assert query(server, "select n from kept") == [3]
        server.stop()
        assert kind == "zombie" or other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_half_made_cluster_is_made_anew(home: Path, query: Query, halting_initdb: Callable[[str], Path]) -> None:
    """A killed initdb is an error with its exit code; the next start makes the cluster and removes what was left."""
    with pytest.raises(EmbeddedError, match="initdb could not make a cluster"):
        EmbeddedPostgres(home, binaries=halting_initdb("kill -9 $$")).start()
    assert list(home.glob("data.new*"))
    assert not (home / "data").exists()
    with EmbeddedPostgres(home) as server:
        assert query(server, "select 1") == [1]
        assert not list(home.glob("data.new*"))


def test_an_owner_killed_during_initdb(
    home: Path,
    query: Query,
    owner_script: OwnerScript,
    halting_initdb: Callable[[str], Path],
    wait_until: WaitUntil,
    ended: Ended,
) -> None:
    """initdb is killed with its owner, and the next start makes the cluster anew."""
    folder = halting_initdb("exec sleep 600")
    owner = owner_script(OWNER.format(home=str(home), binaries=f"Path({str(folder)!r})"))
    wait_until(lambda: any(path.read_text() for path in home.glob("data.new*/pid")))
    (pid_file,) = home.glob("data.new*/pid")
    pid = int(pid_file.read_text())
    owner.kill()
    owner.wait()
    wait_until(lambda: ended(pid))
    with EmbeddedPostgres(home) as server:
        assert query(server, "select 1") == [1]


def test_a_second_owner_is_refused(home: Path, query: Query, owner_script: OwnerScript) -> None:
    """One owner per folder: the error names the folder and the owner, whose server goes on."""
    owner = owner_script(OWNER.format(home=str(home), binaries=None))
    pid = owned_server_pid(owner)
    with pytest.raises(EmbeddedError, match="already has an owner") as caught:
        EmbeddedPostgres(home).start()
    assert str(home) in str(caught.value)
    assert str(owner.pid) in str(caught.value)
    os.kill(pid, 0)
