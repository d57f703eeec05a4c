"""A pg_dump that takes as long as we let it: its output is read slowly, so that it keeps its snapshot and ACCESS
SHARE on every table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from duly.embedded import find_binaries

BALLAST_MIB = 128  # dumped first and never to its end
READ_BYTES_PER_SECOND = 256 * 1024

_READS_PER_SECOND = 20
_PIPE_BYTES = READ_BYTES_PER_SECOND // _READS_PER_SECOND
_HOLDS_LOCKS = """
    select count(*) = 3
    from pg_locks l join pg_stat_activity a using (pid)
    where a.datname = current_database() and a.application_name = 'pg_dump' and l.mode = 'AccessShareLock' and l.granted
      and l.relation in ('duly.ready'::regclass, 'duly.lease'::regclass, 'duly.job'::regclass)
"""
_COPIES = """
    select exists (
        select from pg_stat_activity a
        where a.datname = current_database() and a.application_name = 'pg_dump' and a.query like 'COPY a_ballast.%')
"""


async def add_ballast(dsn: str) -> None:
    """A table that sorts before ours and is too big to be read in any run; stored as it is, so that its size is
    what is sent.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("create schema a_ballast")
        await connection.execute("create table a_ballast.weight (n integer not null, filling text not null)")
        await connection.execute(
            """insert into a_ballast.weight
               select n, repeat(md5(n::text), 32) from generate_series(1, $1::integer * 1024) n""",
            BALLAST_MIB,
        )
        await connection.execute("analyze a_ballast.weight")
    finally:
        await connection.close()


class Dump:
    """A dump under way. `read_bytes` so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.read_bytes = 0

    @property
    def runs(self) -> bool:
        """Whether it still has something to dump."""
        return self._process.returncode is None

    async def trickle(self) -> None:
        """Read slowly until cancelled or at its end."""
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(_PIPE_BYTES):
            self.read_bytes += len(piece)
            await asyncio.sleep(len(piece) / READ_BYTES_PER_SECOND)


@asynccontextmanager
async def slow_dump(dsn: str, errors: Path) -> AsyncIterator[Dump]:
    """Dump the whole database while the block runs; entered once the dump holds its locks and copies the ballast."""
    program = find_binaries().program("pg_dump")
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            "--dbname",
            dsn,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_PIPE_BYTES,
        )
    dump = Dump(process)
    reading = asyncio.create_task(dump.trickle())
    try:
        await _until_it_holds(dsn, dump, errors)
        yield dump
    finally:
        reading.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_it_holds(dsn: str, dump: Dump, errors: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        end = time.monotonic() + 60
        while not (await connection.fetchval(_HOLDS_LOCKS) and await connection.fetchval(_COPIES)):
            if not dump.runs or time.monotonic() > end:
                raise RuntimeError(f"pg_dump did not get to the ballast: {errors.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.02)
    finally:
        await connection.close()
