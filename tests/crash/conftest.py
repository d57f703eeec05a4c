"""Fleets of real worker processes, and a cluster that a test may kill."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from duly.embedded import EmbeddedPostgres
from duly.queue import Database, Owner
from duly.schema import migrate
from support.crash_fleet import Fleet, fleet_against
from support.engine import new_owner


@pytest.fixture
async def owner(database: Database) -> Owner:
    return await new_owner(database)


@pytest.fixture
def fleet(database: Database, database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Processes on the test's own database."""
    with fleet_against(database_url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def mortal_cluster() -> Iterator[EmbeddedPostgres]:
    """A migrated server of the test's own, which it may stop and kill: what was committed is on the disk."""
    home = Path(tempfile.mkdtemp(prefix="duly-crash-", dir="/tmp"))
    home.chmod(0o755)
    binaries = os.environ.get("DULY_POSTGRES")
    settings = {"max_connections": "80", "shared_buffers": "64MB", "fsync": "on"}
    server = EmbeddedPostgres(home, binaries=Path(binaries) if binaries else None, settings=settings)
    server.start()
    try:
        asyncio.run(_install(server.dsn()))
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


async def _install(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
    finally:
        await connection.close()


@pytest.fixture
async def mortal_database(mortal_cluster: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with await Database.open(mortal_cluster.dsn(), max_size=4, name="duly-test") as db:
        yield db


@pytest.fixture
def mortal_fleet(mortal_cluster: EmbeddedPostgres, tmp_path: Path) -> Iterator[Fleet]:
    """Processes on the server that may be killed; its address stays the same."""
    with fleet_against(mortal_cluster.dsn(), tmp_path) as fleet:
        yield fleet
