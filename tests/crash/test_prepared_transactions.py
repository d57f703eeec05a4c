"""Two-phase commit: what a prepared transaction enqueued is found, whatever happened before its commit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import asyncpg

from duly import queue
from duly.embedded import EmbeddedPostgres
from duly.queue import Database, Session
from duly.schema import migrate
from duly.upkeep import SegmentKeeper
from support.engine import Engine


async def test_a_segment_waits_for_a_transaction_that_a_restart_brought_back() -> None:
    """Enqueued, prepared, its segment closed, the server restarted: the keeper, which noted who could still write
    there, does not take it for gone. Committed, the job is claimed; after that the segment is retired.
    """
    home = Path(tempfile.mkdtemp(prefix="duly-crash-", dir="/tmp"))
    home.chmod(0o755)
    settings = {"max_connections": "40", "shared_buffers": "32MB", "max_prepared_transactions": "4"}
    server = EmbeddedPostgres(home, settings=settings)
    server.start()
    try:
        connection = await asyncpg.connect(server.dsn())
        await migrate(connection)
        async with await Database.open(server.dsn()) as db:
            engine = await Engine.start(db)
            await engine.enqueue(2)  # makes the lane
            assert len(await engine.claim()) == 2
            await connection.execute("begin")
            [job_id] = await engine.enqueue(db=Session(connection, "duly"))
            keeper = SegmentKeeper(db, "ready")
            await queue.advance(db)
            await keeper.step()
            await connection.execute("prepare transaction 'x'")
            await keeper.step()
            await connection.close()
        server.stop()
        server.start()
        async with await Database.open(server.dsn()) as db:
            engine.db, keeper._db = db, db
            for _ in range(3):
                await queue.advance(db)
                await keeper.step()
            await db.execute("commit prepared 'x'")
            assert [job.id for job in await engine.claim()] == [job_id]
            await keeper.step()
            assert (await queue.live_segments(db, "ready")).closed == ()
            await engine.sound()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
