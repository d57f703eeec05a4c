"""Where everything is measured: one private PostgreSQL, a fresh migrated database with an account for every run,
no-op jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg

from duly.embedded import EmbeddedPostgres
from duly.model.jobs import NewJob
from duly.queue import Database, Owner, enqueue
from duly.schema import migrate
from duly.service import create_account, create_project

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "fsync": "on", "max_connections": "100"}
NOOP = "noop"

_ENQUEUE_CHUNK = 1000
_ENQUEUERS = 2
_TEMPLATE = "bench_template"


@dataclass(frozen=True, slots=True)
class Place:
    """A database and who owns the jobs in it."""

    dsn: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class Setting:
    """The running server. `folder` is for the measured processes' files and goes with the setting; `quick` makes
    every program small.
    """

    server: EmbeddedPostgres
    folder: Path
    owner: Owner
    quick: bool
    numbers: Iterator[int]

    @property
    def server_pid(self) -> int:
        """The postmaster."""
        pid = self.server.pid
        assert pid is not None, "the server has ended"
        return pid

    def file(self, stem: str) -> Path:
        """A new name in the folder."""
        return self.folder / f"{stem}-{next(self.numbers)}"

    @asynccontextmanager
    async def database(self, *, migrated: bool = True, template: str = _TEMPLATE) -> AsyncIterator[Place]:
        """A fresh database while the block runs, with a checkpoint behind it; not `migrated`: without Duly's schema."""
        name = f"bench_{next(self.numbers)}"
        await self.make_database(name, template if migrated else "template1")
        try:
            yield Place(self.server.dsn(name), self.owner)
        finally:
            await self.drop_database(name)

    async def make_database(self, name: str, template: str = _TEMPLATE) -> None:
        """Copy a template and take a checkpoint, so that full-page images of an earlier run do not fall into this
        one.
        """
        await self.command(f"create database {name} template {template} strategy file_copy")
        await self.command("checkpoint")

    async def drop_database(self, name: str) -> None:
        """Drop it, whoever is connected."""
        await self.command(f"drop database if exists {name} with (force)")

    async def command(self, statement: str) -> None:
        """Run one statement that belongs to no database."""
        connection = await asyncpg.connect(self.server.dsn())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def open_setting(quick: bool) -> Iterator[Setting]:
    """Start PostgreSQL in a folder under /tmp (as root it runs as another account, which must get in), and make
    the template.
    """
    folder = Path(tempfile.mkdtemp(prefix="duly-bench-", dir="/tmp"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder / "postgres", settings=SETTINGS)
    try:
        server.start()
        owner = asyncio.run(_make_template(server))
        yield Setting(server, folder, owner, quick, itertools.count(1))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _make_template(server: EmbeddedPostgres) -> Owner:
    connection = await asyncpg.connect(server.dsn())
    await connection.execute(f"create database {_TEMPLATE}")
    await connection.close()
    connection = await asyncpg.connect(server.dsn(_TEMPLATE))
    await migrate(connection)
    await connection.close()
    async with await Database.open(server.dsn(_TEMPLATE)) as db:
        return await make_owner(db, "bench")


async def make_owner(db: Database, name: str) -> Owner:
    """A new account with one project."""
    account = await create_account(db, name)
    return (await create_project(db, account.id, name)).owner


async def enqueue_noops(db: Database, owner: Owner, count: int, *, delay: timedelta | None = None) -> None:
    """Enqueue no-op jobs in bulk, a thousand a statement, two statements at a time."""
    chunks = iter([_ENQUEUE_CHUNK] * (count // _ENQUEUE_CHUNK) + [count % _ENQUEUE_CHUNK])

    async def run() -> None:
        for size in chunks:
            await enqueue(db, [(owner, NewJob(NOOP, None, delay=delay)) for _ in range(size)])

    async with asyncio.TaskGroup() as group:
        for _ in range(_ENQUEUERS):
            group.create_task(run())


async def analyze(dsn: str) -> None:
    """Give the planner its statistics, as autovacuum would have by now on a system that lives."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("analyze")
    finally:
        await connection.close()
