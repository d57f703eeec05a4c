"""Starting, stopping, settings and addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.embedded import EmbeddedPostgres
from duly.model.errors import EmbeddedError

Query = Callable[[EmbeddedPostgres, str], list[Any]]


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_cold_start_serves_queries(home: Path, query: Query) -> None:
    """A folder that does not exist becomes a running server with durable settings, checksums and the role duly."""
    news: list[str] = []
    with EmbeddedPostgres(home, on_progress=news.append) as server:
        running = server.pid
        assert running is not None
        assert query(server, "select current_user::text") == ["duly"]
        assert query(server, "show server_version") == [server.version]
        for name, value in {
            "fsync": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "max_connections": "200",
            "listen_addresses": "",
            "server_encoding": "UTF8",
        }.items():
            assert query(server, f"show {name}") == [value]
        assert query(server, "select 'Z' < 'a'") == [True]
    assert not server.alive
    assert server.pid is None
    assert any("making" in line for line in news)


def test_warm_start_keeps_rows(home: Path, query: Query) -> None:
    """Rows outlive a stop, and the second start, which makes nothing, is quick."""
    server = EmbeddedPostgres(home)
    server.start()
    query(server, "create table kept as select 7 as n")
    server.stop()
    began = time.monotonic()
    server.start()
    assert time.monotonic() - began < 5
    assert query(server, "select n from kept") == [7]
    server.stop()
    server.stop()


def test_the_callers_settings_win(home: Path, query: Query) -> None:
    """A given setting replaces ours; one that only the launcher can decide is refused."""
    with EmbeddedPostgres(home, settings={"max_connections": "33", "port": "6000"}) as server:
        assert query(server, "show max_connections") == ["33"]
        assert (home / "run" / ".s.PGSQL.6000").is_socket()
    with pytest.raises(EmbeddedError, match="unix_socket_directories"):
        EmbeddedPostgres(home, settings={"unix_socket_directories": "/tmp"})
    with pytest.raises(EmbeddedError, match="port"):
        EmbeddedPostgres(home, settings={"port": "many"})


def test_no_tcp_port_is_open_by_default(home: Path) -> None:
    """Nothing listens on the server's port unless asked; then a role without a password stays out."""
    port = free_port()
    with EmbeddedPostgres(home, settings={"port": str(port)}):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
    with EmbeddedPostgres(home, settings={"port": str(port), "listen_addresses": "127.0.0.1"}):
        with pytest.raises(asyncpg.InvalidPasswordError):
            asyncio.run(asyncpg.connect(f"postgresql://duly:guess@127.0.0.1:{port}/postgres", ssl=False))


def test_the_socket_is_private(home: Path) -> None:
    """Other accounts cannot enter the socket's folder nor the data."""
    with EmbeddedPostgres(home):
        for folder in (home / "run", home / "data"):
            assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0


def test_a_long_home_gets_a_short_socket_folder(ground: Path, query: Query) -> None:
    """A path too long for a Unix socket works; the folder in /tmp is gone after stop, and after a killed server too."""
    home = ground / ("long" * 25) / "a, b"
    server = EmbeddedPostgres(home)
    server.start()
    first = Path(os.readlink(home / "run"))
    assert first.parent == Path("/tmp")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert query(server, "select 1") == [1]
    server.kill()
    server.start()
    second = Path(os.readlink(home / "run"))
    assert second != first
    assert not first.exists()
    assert query(server, "select 1") == [1]
    server.stop()
    assert not second.exists()
    assert not (home / "run").is_symlink()


def test_the_address_is_percent_encoded(ground: Path, query: Query) -> None:
    """Spaces, quotes and signs in the home's path and in a database's name arrive whole."""
    with EmbeddedPostgres(ground / 'a b&"c%20#') as server:
        query(server, 'create database "x y/z?"')
        dsn = server.dsn("x y/z?")

        async def name() -> Any:
            connection = await asyncpg.connect(dsn)
            try:
                return await connection.fetchval("select current_database()::text")
            finally:
                await connection.close()

        assert asyncio.run(name()) == "x y/z?"


def test_off_the_main_thread_it_is_refused(home: Path) -> None:
    """A server started in another thread would end with that thread, so nothing is begun there."""
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(home).start()
        except EmbeddedError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])
    assert not home.exists()


def test_a_server_that_ends_while_starting_says_why(home: Path, query: Query) -> None:
    """The error carries the log's last lines, and after it the folder is free for a better start."""
    server = EmbeddedPostgres(home, settings={"no_such_setting": "1"})
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        server.start()
    assert not server.alive
    with EmbeddedPostgres(home) as better:
        assert query(better, "select 1") == [1]


def test_a_start_out_of_time_leaves_nothing(home: Path) -> None:
    """When the time is over the half-started server is stopped and the lock let go."""
    with EmbeddedPostgres(home):
        pass
    with pytest.raises(EmbeddedError, match="in time"):
        EmbeddedPostgres(home).start(timeout=timedelta(0))
    assert not (home / "data" / "postmaster.pid").exists()
    with EmbeddedPostgres(home):
        pass


def test_starting_twice_is_refused_and_leaves_the_first_running(home: Path, query: Query) -> None:
    """A second start of the same object is an error, not a second server."""
    with EmbeddedPostgres(home) as server:
        with pytest.raises(EmbeddedError, match="runs already"):
            server.start()
        assert query(server, "select 1") == [1]


def test_before_a_start_there_is_no_address(home: Path) -> None:
    """dsn and version say so instead of guessing; stop is harmless."""
    server = EmbeddedPostgres(home)
    server.stop()
    with pytest.raises(EmbeddedError, match="not started"):
        server.dsn()
    with pytest.raises(EmbeddedError, match="not started"):
        _ = server.version


def test_a_large_log_is_put_aside(home: Path) -> None:
    """A log over ten megabytes is renamed at the start; the one before it is dropped."""
    home.mkdir(mode=0o755)
    (home / "postgres.log").write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    (home / "postgres.log.1").write_text("older")
    os.chmod(home, 0o755)
    with EmbeddedPostgres(home):
        assert (home / "postgres.log").stat().st_size < 100_000
        assert (home / "postgres.log.1").stat().st_size > 10 * 1024 * 1024
