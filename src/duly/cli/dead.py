"""`duly dead list | redrive`: the dead letters."""

from __future__ import annotations

import getpass
import os
from typing import Annotated
from uuid import UUID

import typer

from duly.cli.console import say_done
from duly.cli.jobs import Limit, found_job, parsed_id, show_jobs, with_database
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema
from duly.model.errors import ExpiredJobError, InvalidInputError, UniqueKeyTakenError, WrongStateError
from duly.model.states import State
from duly.queue import Database, Owner, list_jobs, redrive
from duly.schema import DEFAULT_SCHEMA

app = typer.Typer(help="Look at dead letters and run them again.", no_args_is_help=True)


@app.command("list")
def list_(
    queue: Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.", show_default=False)] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the dead letters, newest first."""
    dead = with_database(
        lambda db: list_jobs(db, None, state=State.DEAD, queue=queue, limit=limit), database_url, home, schema
    )
    show_jobs(dead, as_json)


@app.command("redrive")
def redrive_(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]…", help="Ids of dead or cancelled jobs.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead letter, up to --limit.")] = False,
    queue: Annotated[
        str | None, typer.Option("--queue", help="With --all: only of this queue.", show_default=False)
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Give dead jobs a fresh budget of attempts and run them."""
    ids = [parsed_id(job) for job in jobs or []]
    if bool(ids) == every:
        raise InvalidInputError("name the jobs to redrive, or say --all")

    async def do(db: Database) -> int:
        if every:
            wanted = [view.id for view in await list_jobs(db, None, state=State.DEAD, queue=queue, limit=limit)]
            return [await _redriven(db, job_id) for job_id in wanted].count("redriven")
        for job_id in ids:
            match await _redriven(db, job_id):
                case "expired":
                    raise ExpiredJobError(job_id)
                case "key_taken":
                    unique = (await found_job(db, job_id)).unique
                    raise UniqueKeyTakenError(unique.key if unique else "", None)
                case "wrong_state":
                    raise WrongStateError(job_id, (await found_job(db, job_id)).state, "redrive", "dead and cancelled")
        return len(ids)

    number = with_database(do, database_url, home, schema)
    say_done(f"redriven: {number}", as_json, result="redriven", jobs=number)


async def _redriven(db: Database, job_id: UUID) -> str:
    view = await found_job(db, job_id)
    owner = Owner(view.account_id, view.project_id)
    return await redrive(db, owner, job_id, by=f"{_me()} (command line)")


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as containers have
        return f"uid {os.getuid()}"
