"""Fixtures for pytest: `pytest_plugins = ["duly.testing.fixtures"]` in the top conftest.py.

A private PostgreSQL for the session (from `duly[embedded]`), or the server that DULY_TEST_DATABASE_URL names; a
database of its own for each test, with Duly's schema.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from duly.embedded import EmbeddedPostgres
from duly.schema import migrate
from duly.testing.clock import Clock

_FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "100"}


@pytest.fixture(scope="session")
def duly_server_url() -> Iterator[str]:
    """A server's address, with a database that may be connected to. Its role may create databases."""
    given = os.environ.get("DULY_TEST_DATABASE_URL")
    if given:
        yield given
        return
    home = Path(tempfile.mkdtemp(prefix="duly-testing-", dir="/tmp"))
    home.chmod(0o755)
    server = EmbeddedPostgres(home, settings=_FAST)
    try:
        server.start()
        yield server.dsn()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def duly_template(duly_server_url: str) -> Iterator[str]:
    """The name of a database with Duly's schema, to copy."""
    name = f"duly_template_{uuid4().hex[:12]}"
    asyncio.run(_statement(duly_server_url, f"create database {name}"))
    asyncio.run(_install(_of(duly_server_url, name)))
    yield name
    asyncio.run(_statement(duly_server_url, f"drop database if exists {name} with (force)"))


@pytest.fixture
def duly_database_url(duly_server_url: str, duly_template: str) -> Iterator[str]:
    """A database with Duly's schema for one test; dropped after it."""
    name = f"duly_test_{uuid4().hex[:12]}"
    asyncio.run(_statement(duly_server_url, f"create database {name} template {duly_template}"))
    yield _of(duly_server_url, name)
    asyncio.run(_statement(duly_server_url, f"drop database if exists {name} with (force)"))


@pytest.fixture
def duly_clock(duly_database_url: str) -> Iterator[Clock]:
    """The time of that database: `duly_clock.advance(timedelta(hours=1))`."""
    with Clock(duly_database_url) as clock:
        yield clock


def _of(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}")) if parts.netloc else f"{parts.scheme}:///{name}?{parts.query}"


async def _statement(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _install(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()
