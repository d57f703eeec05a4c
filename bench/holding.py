"""A session that holds a snapshot, as a forgotten BEGIN or an analytics query does: vacuum can remove nothing that
dies after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg


@asynccontextmanager
async def held_snapshot(dsn: str) -> AsyncIterator[None]:
    """REPEATABLE READ, with a transaction id assigned and a snapshot taken, while the block runs."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("begin isolation level repeatable read")
        await connection.execute("select pg_current_xact_id(), (select count(*) from duly.worker)")
        yield
    finally:
        connection.terminate()
