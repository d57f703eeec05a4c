"""A full disk, simulated: the server refuses one kind of write with SQLSTATE 53100 (disk_full), as it does when it
cannot extend a file. A trigger raises it; nothing else about the refusal is pretended.
"""

from __future__ import annotations

import asyncpg

from duly.queue import Database

_REFUSE = """
    create schema refusing;
    create sequence refusing.refusals;
    create function refusing.refuse() returns {returns} language plpgsql as $$
    begin
        perform nextval('refusing.refusals');   -- counted outside of what is rolled back
        raise exception 'could not extend file: No space left on device' using errcode = '53100';
    end $$;
"""
NEW_TABLE = "create table"


async def refuse(db: Database, write: str) -> None:
    """From now on the write is refused: "insert on ready", or `NEW_TABLE`."""
    if write == NEW_TABLE:
        await db.execute(_REFUSE.format(returns="event_trigger"))
        await db.execute("create event trigger refuse on ddl_command_start execute function refusing.refuse()")
    else:
        event, _, table = write.partition(" on ")
        await db.execute(_REFUSE.format(returns="trigger"))
        await db.execute(
            f"create trigger refuse before {event} on duly.{table} for each row execute function refusing.refuse()"
        )


async def refusals(db: Database) -> int:
    """How often it was refused."""
    asked: int = await db.fetchval("select case when is_called then last_value else 0 end from refusing.refusals")
    return asked


async def allow(dsn: str, write: str) -> None:
    """There is room again."""
    connection = await asyncpg.connect(dsn)
    try:
        if write == NEW_TABLE:
            await connection.execute("drop event trigger refuse")
        else:
            await connection.execute(f"drop trigger refuse on duly.{write.partition(' on ')[2]}")
    finally:
        await connection.close()
