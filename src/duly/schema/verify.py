"""Is the schema there, and is it this program's? Asked at every start."""

from __future__ import annotations

from duly.model.errors import SchemaError
from duly.schema.connection import Connection
from duly.schema.install import functions_digest, migrations
from duly.schema.naming import DEFAULT_SCHEMA, named


async def verify(connection: Connection, schema: str = DEFAULT_SCHEMA) -> None:
    """Return if the schema fits this program; raise SchemaError with what to do otherwise."""
    import asyncpg  # not at the top: naming the schema must not load a driver

    try:
        row = await connection.fetchrow(
            named("select version, functions_digest from duly.schema_version order by version desc limit 1", schema)
        )
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        row = None
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"this role may not read schema {schema}: grant it usage, see docs/how-to/grants.md"
        ) from error
    if row is None:
        raise SchemaError(f"schema {schema} is not installed in this database: run `duly migrate`")
    ours = migrations()[-1][0]
    if row["version"] < ours:
        raise SchemaError(
            f"schema {schema} is at version {row['version']}, this program needs {ours}: run `duly migrate`"
        )
    if row["version"] > ours:
        raise SchemaError(f"schema {schema} is at version {row['version']}, this program knows {ours}: upgrade Duly")
    if row["functions_digest"] != functions_digest():
        raise SchemaError(f"the functions of schema {schema} are another program's: run `duly migrate`")
