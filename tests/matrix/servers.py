"""Where cells run: a server for all, with a database for each; or a server of its own, which may be killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from duly.embedded import EmbeddedPostgres
from duly.schema import migrate
from matrix.cells import CELLS, Cell
from matrix.judging import Seen
from matrix.running import run_cell

TEMPLATE = "matrix_template"


@contextmanager
def server(mortal: bool) -> Iterator[EmbeddedPostgres]:
    """A running server and a migrated template. Under /tmp: as root it runs as another account.

    With fsync if it is `mortal`: what was committed is on the disk when it is killed. The others outlive their cells.
    """
    home = Path(tempfile.mkdtemp(prefix="duly-matrix-", dir="/tmp"))
    home.chmod(0o755)
    binaries = os.environ.get("DULY_POSTGRES")
    settings = {"max_connections": "200", "shared_buffers": "64MB", "fsync": "on" if mortal else "off"}
    running = EmbeddedPostgres(home, binaries=Path(binaries) if binaries else None, settings=settings)
    try:
        running.start()
        asyncio.run(_install(running))
        yield running
    finally:
        running.stop()
        shutil.rmtree(home, ignore_errors=True)


def run_apart(cell: Cell, dsn: str) -> tuple[Cell, Seen, float]:
    """Run a cell on a database of the server that the URL names, or on a server of its own; and how long it took.

    In the main thread of a process, which is the server's parent.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duly-matrix-") as folder:
        if cell.restarts:
            with server(mortal=True) as own:
                seen = asyncio.run(run_cell(cell, own.dsn(TEMPLATE), Path(folder), own))
        else:
            name = f"cell_{CELLS.index(cell)}"
            asyncio.run(_command(dsn, f"create database {name} template {TEMPLATE} strategy file_copy"))
            seen = asyncio.run(run_cell(cell, dsn.replace("/postgres?", f"/{name}?"), Path(folder)))
    return cell, seen, time.monotonic() - began


async def _install(running: EmbeddedPostgres) -> None:
    await _command(running.dsn(), f"create database {TEMPLATE}")
    connection = await asyncpg.connect(running.dsn(TEMPLATE))
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _command(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
