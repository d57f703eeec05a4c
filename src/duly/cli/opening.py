"""Opening the database that a command is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duly.queue import Database
from duly.schema import verify


@asynccontextmanager
async def open_database(url: str, schema: str, *, max_size: int, name: str) -> AsyncIterator[Database]:
    """Connect, and make sure that the schema is this program's. Raises DatabaseUnavailableError or SchemaError."""
    async with await Database.open(url, schema=schema, max_size=max_size, name=name) as db:
        async with db.session() as session:
            await verify(session.connection, schema)
        yield db
