"""`duly jobs list | show | cancel`: an operator's look at all jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from duly.cli.console import print_json, print_table, say, say_done
from duly.cli.opening import open_database
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema, found_database_url
from duly.cli.stopping import run_loop
from duly.model.errors import InvalidInputError, NotFoundError, WrongStateError
from duly.model.states import State
from duly.queue import AttemptView, Database, JobView, Owner, cancel, get_job, list_attempts, list_jobs
from duly.schema import DEFAULT_SCHEMA
from duly.service.jobs import KIND
from duly.service.redaction import Redaction
from duly.service.sealing import closed_excerpt, closed_view

app = typer.Typer(help="Look at jobs and cancel them.", no_args_is_help=True)

T = TypeVar("T")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many to show.")]


@app.command("list")
def list_(
    state: Annotated[State | None, typer.Option("--state", help="Only jobs in this state.", show_default=False)] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.", show_default=False)] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List jobs, newest first."""
    jobs = with_database(
        lambda db: list_jobs(db, None, state=state, queue=queue, limit=limit), database_url, home, schema
    )
    show_jobs(jobs, as_json)


@app.command()
def show(
    job: JobId,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Show one job and its attempts."""
    job_id = parsed_id(job)

    async def look(db: Database) -> tuple[JobView, list[AttemptView]]:
        view = await found_job(db, job_id)
        return view, await list_attempts(db, None, job_id) or []

    view, attempts = with_database(look, database_url, home, schema)
    if as_json:
        print_json({"job": masked(view), "attempts": [closed_excerpt(attempt) for attempt in attempts]})
        return
    say(f"job {view.id}  {view.state}" + (f" ({view.reason})" if view.reason else ""))
    say(f"queue {view.queue}, priority {view.priority}, attempts {view.attempts} of {view.final_attempt}")
    if view.kind != KIND:
        say(f"{view.kind} {json.dumps(view.payload, ensure_ascii=False)}")
    elif isinstance(view.payload, dict) and "url" in view.payload:
        say(f"{view.payload.get('method', '')} {view.payload['url']}")
    print_table(
        ("#", "trigger", "started", "ms", "outcome", "status", "error"),
        [
            (a.number, a.trigger, a.started_at, a.detail.get("duration_ms"), a.outcome, a.status_code, a.error)
            for a in attempts
        ],
    )


@app.command("cancel")
def cancel_(
    job: JobId,
    abort: Annotated[bool, typer.Option("--abort", help="Stop the attempt that runs, too.")] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Cancel a job. One that runs gets no further attempt."""
    job_id = parsed_id(job)

    async def do(db: Database) -> str:
        view = await found_job(db, job_id)
        answer = await cancel(db, Owner(view.account_id, view.project_id), job_id, abort=abort)
        if answer == "final":
            raise WrongStateError(job_id, (await found_job(db, job_id)).state, "cancel", "scheduled, ready and running")
        return answer

    answer = with_database(do, database_url, home, schema)
    words = "cancelled" if answer == "cancelled" else "it runs: no further attempt will be made"
    say_done(words, as_json, job=job, result=answer)


def show_jobs(jobs: list[JobView], as_json: bool) -> None:
    """Print jobs as a table or as JSON."""
    if as_json:
        print_json([masked(job) for job in jobs])
        return
    print_table(
        ("id", "state", "queue", "attempts", "next run", "last", "error or reason", "created"),
        [
            (
                job.id,
                job.state,
                job.queue,
                f"{job.attempts}/{job.final_attempt}",
                job.next_run_at,
                job.last_status_code or job.last_outcome,
                job.reason or job.last_error,
                job.created_at,
            )
            for job in jobs
        ],
    )


def masked(job: JobView) -> JobView:
    """The job with the values of secret headers hidden; of a sealed job, of all headers: this command opens nothing."""
    job = closed_view(job)
    if job.kind == KIND and isinstance(job.payload, dict) and isinstance(job.payload.get("headers"), list):
        shown = Redaction.of(job.payload).masked(job.payload["headers"])
        return replace(job, payload={**job.payload, "headers": shown})
    return job


def with_database(
    ask: Callable[[Database], Awaitable[T]], database_url: str | None, home: Path | None, schema: str
) -> T:
    """Open the database, ask it something, close it."""
    url = found_database_url(database_url, home)

    async def main() -> T:
        async with open_database(url, schema, max_size=2, name="duly-cli") as db:
            return await ask(db)

    return run_loop(main)


async def found_job(db: Database, job_id: UUID) -> JobView:
    """The job, or NotFoundError."""
    view = await get_job(db, None, job_id)
    if view is None:
        raise NotFoundError("job", job_id)
    return view


def parsed_id(text: str, what: str = "job") -> UUID:
    """An id as typed, or InvalidInputError."""
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a {what} id: copy it from `duly {what}s list`") from error
