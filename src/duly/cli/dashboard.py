"""`duly dashboard token`: let an operator in. Whoever can reach the database decides who that is."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from duly.cli.console import note, print_json, say
from duly.cli.jobs import with_database
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema
from duly.model.errors import InvalidInputError
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA
from duly.service import Scope
from duly.service.sessions import OPERATOR_SCOPES, make_operator_token

SCOPES: tuple[Scope, ...] = ("read", "write", "admin", "read_payloads")
"""admin: accounts, keys and signing secrets, too."""

app = typer.Typer(help="Let operators into the dashboard.", no_args_is_help=True)


@app.callback()
def dashboard() -> None:
    """Let operators into the dashboard."""


@app.command()
def token(
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help=f"One of {', '.join(SCOPES)}. Repeatable. Default: all but read_payloads."),
    ] = None,
    hours: Annotated[float, typer.Option("--hours", min=0.01, max=168, help="Until when it may be used.")] = 24,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Print a token that signs an operator in, once. An operator sees every project."""
    unknown = set(scope or ()) - set(SCOPES)
    if unknown:
        raise InvalidInputError(f"scope {min(unknown)!r} is not known: {', '.join(SCOPES)}")
    scopes = [s for s in SCOPES if s in (scope or OPERATOR_SCOPES)]

    async def do(db: Database) -> str:
        return await make_operator_token(db, scopes=scopes, lasts=timedelta(hours=hours))

    made = with_database(do, database_url, home, schema)
    if as_json:
        print_json({"token": made, "scopes": scopes, "hours": hours})
        return
    note(f"scopes {', '.join(scopes)}; it signs in once, within {hours:g} h")
    say(made)
