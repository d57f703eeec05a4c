"""`duly tail`: follow a job."""

from __future__ import annotations

from typing import Annotated

import typer

from duly.cli.following import told
from duly.cli.jobs import JobId, parsed_id, with_database
from duly.cli.options import DatabaseUrl, Home, Schema, read_duration
from duly.schema import DEFAULT_SCHEMA


def tail(
    job: JobId,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Leave after this time, such as 5m, with 124.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each thing that happens.")] = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Follow a job: each attempt as it begins and ends, until the job has ended.

    Exits with 0 if it succeeded, 3 if it is dead, 4 if it was cancelled, 124 if it had not ended within --timeout.
    """
    job_id = parsed_id(job)
    limit = None if timeout is None else read_duration("--timeout", timeout)
    code = with_database(lambda db: told(db, job_id, limit, as_json), database_url, home, schema)
    if code:
        raise typer.Exit(code)
