"""A private PostgreSQL per test process, and a fresh, migrated database per test."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest

from duly.embedded import EmbeddedPostgres
from duly.queue import Database
from duly.schema import migrate

# The same examples each time, and no time limit for one: a busy machine must not make a test fail.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("suite")

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """A running server. Not in pytest's own folders: as root it runs as another account, which cannot enter them."""
    home = Path(tempfile.mkdtemp(prefix="duly-test-", dir=_ground()))
    home.chmod(0o755)
    binaries = os.environ.get("DULY_POSTGRES")
    # fsync guards against the machine's crash, which no test here is about; a database a test costs a second with it
    settings = {
        "max_connections": "150",
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum_naptime": "10s",
        "max_wal_size": "256MB",
    }
    server = EmbeddedPostgres(home, binaries=Path(binaries) if binaries else None, settings=settings)
    server.start()
    try:
        asyncio.run(_make_template(server.dsn()))
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _ground() -> str:
    """Where a server's files lie: in memory where there is room, as copying a database is mostly making 600 files."""
    memory = "/dev/shm"
    if os.path.isdir(memory) and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 4 << 30:
        return memory
    return "/tmp"


async def _make_template(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("create database duly_template")
    await connection.close()


@pytest.fixture(scope="session")
def template(cluster: EmbeddedPostgres) -> str:
    """The name of a migrated database to copy."""

    async def install() -> None:
        connection = await asyncpg.connect(cluster.dsn("duly_template"))
        try:
            await migrate(connection)
        finally:
            await connection.close()

    asyncio.run(install())
    return "duly_template"


@pytest.fixture
def empty_database_url(cluster: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database without Duly's schema."""
    yield from _database(cluster, "template1")


@pytest.fixture
def database_url(cluster: EmbeddedPostgres, template: str) -> Iterator[str]:
    """A fresh, migrated database."""
    yield from _database(cluster, template)


def _database(cluster: EmbeddedPostgres, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(cluster.dsn())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"create database {name} template {template} strategy file_copy"))
    yield cluster.dsn(name)
    asyncio.run(run(f"drop database if exists {name} with (force)"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open pool on a fresh, migrated database."""
    db = await Database.open(database_url, max_size=8, name="duly-test")
    try:
        yield db
    finally:
        await db.close()
