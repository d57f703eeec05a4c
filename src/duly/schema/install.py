"""Install or upgrade the schema: numbered migrations once, functions whenever their text changed.

One transaction under one lock, so that eight processes starting at once on an empty database leave one schema and
none of them fails. Nothing is read outside the schema, so a role that owns just that one can install it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from duly.model.errors import SchemaError
from duly.schema.connection import Connection
from duly.schema.naming import DEFAULT_SCHEMA, checked_name, named

OLDEST_SERVER = 150000
_LOCK_KEY = 0x64756C79  # "duly", mixed with the schema's name


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migrate did: versions before (0: none) and after, and whether the functions were made anew."""

    before: int
    after: int
    functions_changed: bool


def migrations() -> list[tuple[int, str]]:
    """The numbered migrations that this program carries, oldest first."""
    return sorted((int(f.name.split("_")[0]), f.read_text()) for f in _sql_files("tables"))


def function_sources() -> list[str]:
    """The text of every function file, in name order."""
    return [f.read_text() for f in sorted(_sql_files("functions"), key=lambda f: f.name)]


def functions_digest() -> str:
    """Changes whenever a function's text does."""
    return hashlib.sha256("\0".join(function_sources()).encode()).hexdigest()


async def migrate(connection: Connection, schema: str = DEFAULT_SCHEMA) -> Migrated:
    """Bring the schema to this program's version. Repeatable; safe to run from many processes at once.

    Raises SchemaError if the database is older than PostgreSQL 15 or the schema is newer than this program.
    """
    checked_name(schema)
    if connection.get_server_version().major < OLDEST_SERVER // 10000:
        raise SchemaError(f"PostgreSQL {connection.get_server_version().major} is too old: Duly needs 15 or newer")
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("set local client_min_messages = warning; set local lock_timeout = '60s'")
        await connection.execute("select pg_advisory_xact_lock($1, hashtext($2))", _LOCK_KEY, schema)
        if not await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema):
            await connection.execute(f"create schema {schema}")
        await connection.execute(
            named(
                """create table if not exists duly.schema_version (
                       version integer primary key, functions_digest text not null, applied_at timestamptz not null
                       default now())""",
                schema,
            )
        )
        before = await connection.fetchval(named("select coalesce(max(version), 0) from duly.schema_version", schema))
        known = migrations()
        after = known[-1][0]
        if before > after:
            raise SchemaError(
                f"schema {schema} is at version {before}, this program knows {after}: "
                "upgrade Duly, or restore a backup from before"
            )
        there = await connection.fetchval(
            named("select functions_digest from duly.schema_version where version = $1", schema), after
        )
        changed = there != functions_digest()
        if changed:  # before the tables: views and functions hold on to the columns they name
            await _drop_functions(connection, schema)
        for version, text in known:
            if version > before:
                await connection.execute(named(text, schema))
                await connection.execute(
                    named("insert into duly.schema_version (version, functions_digest) values ($1, '')", schema),
                    version,
                )
        if changed:
            for text in function_sources():
                await connection.execute(named(text, schema))
            await connection.execute(
                named("update duly.schema_version set functions_digest = $2 where version = $1", schema),
                after,
                functions_digest(),
            )
        await connection.execute(named("select duly.add_days(4)", schema))
    return Migrated(before, after, changed)


async def _drop_functions(connection: Connection, schema: str) -> None:
    """Dropped, not only replaced: a changed argument list would leave the old overload behind. Views go with them."""
    views = await connection.fetch("select viewname as name from pg_views where schemaname = $1", schema)
    for row in views:
        await connection.execute(f"drop view if exists {schema}.{row['name']} cascade")
    functions = await connection.fetch(
        """select p.oid::regprocedure::text as signature from pg_proc p
           join pg_namespace n on n.oid = p.pronamespace where n.nspname = $1 and p.prokind = 'f'""",
        schema,
    )
    for row in functions:
        await connection.execute(f"drop function {row['signature']}")


def _sql_files(folder: str) -> Iterable[Traversable]:
    return [f for f in files("duly.schema").joinpath(folder).iterdir() if f.name.endswith(".sql")]
