"""`duly migrate`: bring the schema to this program's version."""

from __future__ import annotations

from dataclasses import asdict

import asyncpg

from duly import schema as schemas
from duly.cli.console import print_json, say
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema, found_database_url
from duly.cli.stopping import run_loop
from duly.model.errors import SchemaError
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA


def migrate(
    as_json: AsJson = False, database_url: DatabaseUrl = None, home: Home = None, schema: Schema = DEFAULT_SCHEMA
) -> None:
    """Install or upgrade Duly's schema. Repeatable, safe to run from many places at once."""
    url = found_database_url(database_url, home)
    done = run_loop(lambda: migrated(url, schema))
    if as_json:
        print_json({"schema": schema, **asdict(done)})
        return
    if done.before == done.after:
        say(
            f"schema {schema} is at version {done.after}"
            + ("; functions brought up to date" if done.functions_changed else "")
        )
    else:
        say(f"schema {schema}: version {done.before} → {done.after}")


async def migrated(url: str, schema: str) -> schemas.Migrated:
    """Connect and migrate. Raises DatabaseUnavailableError or SchemaError."""
    async with await Database.open(url, schema=schema, max_size=1, name="duly-migrate") as db:
        try:
            async with db.session() as session:
                return await schemas.migrate(session.connection, schema)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SchemaError(
                f"this role may not install schema {schema}: {error}; see docs/how-to/grants.md"
            ) from error
