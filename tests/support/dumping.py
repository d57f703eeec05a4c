"""Everything that a schema holds, as text: what somebody with a dump of the database could read."""

from __future__ import annotations

import base64

from duly.queue import Executor


async def everything(db: Executor) -> str:
    """Every row of every table as PostgreSQL writes it; bytes are in hex."""
    tables = await db.fetch(
        """select c.oid::regclass::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where n.nspname = $1 and c.relkind in ('r', 'p') order by 1""",
        db.schema,
    )
    parts = [f"{row['name']}\n{await _rows(db, row['name'])}" for row in tables]
    return "\n".join(parts)


def forms(secret: str) -> set[str]:
    """How a secret could stand in a dump: as it is, in hex, in base64 wherever it begins in a text."""
    plain = secret.encode()
    shifted = {base64.b64encode(b"x" * n + plain).decode()[4:-4] for n in range(3)}
    return {secret, plain.hex(), *shifted}


def found_in(text: str, secret: str) -> set[str]:
    """The forms of the secret that the text holds."""
    return {form for form in forms(secret) if form in text}


async def _rows(db: Executor, table: str) -> str:
    rows = await db.fetch(f"select t::text as row from {table} t")
    return "\n".join(row["row"] for row in rows)
