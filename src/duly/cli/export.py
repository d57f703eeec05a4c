"""`duly export`: jobs as lines of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from duly.cli.console import note, progress
from duly.cli.jobs import with_database
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema
from duly.cli.owners import AccountOfAll, Project, owner_if_named
from duly.model.errors import InvalidInputError
from duly.model.states import State
from duly.queue import Database, JobFilter, JobView, find_ids, look_at, server_now
from duly.queue.overview import project_names
from duly.queue.transfer import read_bodies
from duly.schema import DEFAULT_SCHEMA
from duly.service import FieldError, Keyring, list_projects
from duly.service import Project as ProjectView
from duly.service.durations import parse_duration
from duly.service.moments import parse_moment

_PAGE = 100
"""Jobs in memory at a time; their bodies may have 256 KB each."""


def export(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write to this file, with mode 0600, whole or not at all.", show_default="stdout"
        ),
    ] = None,
    state: Annotated[
        list[State], typer.Option("--state", help="Only jobs in this state. Repeatable.", show_default=False)
    ] = [],  # noqa: B006  typer reads the default, nobody changes it
    queue: Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.", show_default=False)] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only jobs of this kind.", show_default=False)] = None,
    account: AccountOfAll = None,
    project: Project = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only jobs made since then: a time, or how long ago (24h).", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only jobs made before then, in the same way.", show_default=False)
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="So many at most.", show_default=False)] = None,
    secrets: Annotated[
        bool,
        typer.Option("--secrets", help="Write secret header values and sealed bodies IN THE CLEAR. Else: masked."),
    ] = False,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Write jobs as NDJSON, one per line, the newest first: what makes them again, and what became of them.

    `duly import` reads it. Without --secrets the values of secret headers and what is sealed are masked, and such jobs
    cannot be imported. Exits with 1 if --secrets could not open everything.
    """
    keyring = keyring_if_needed(encryption_keys, no_encryption, home) if secrets else None
    counts = {"jobs": 0, "masked": 0}

    async def do(db: Database) -> None:
        now = await server_now(db)
        wanted = JobFilter(
            states=tuple(state),
            queue=queue,
            created_from=_moment("--since", since, now),
            created_to=_moment("--until", until, now),
        )
        owner = await owner_if_named(db, account, project)
        projects = [one for one in await list_projects(db) if owner in (None, one.owner)]
        with written(output) as file, progress("jobs", shows=output is not None or not sys.stdout.isatty()) as advance:
            async for line in _lines(db, projects, wanted, kind, keyring, limit):
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                counts["jobs"] += 1
                counts["masked"] += "masked" in line["was"]
                advance(1)

    with_database(do, database_url, home, schema)
    note(f"exported {counts['jobs']} jobs" + (f", {counts['masked']} of them masked" if counts["masked"] else ""))
    if secrets:
        note("they hold secrets in the clear: keep the file where your other secrets are, and delete it after use")
    elif counts["masked"]:
        note("masked jobs cannot be imported; --secrets writes them whole")
    if secrets and counts["masked"]:
        raise InvalidInputError(
            f"{counts['masked']} jobs could not be opened and are masked: give the keys that they were sealed with"
        )


async def _lines(
    db: Database,
    projects: Sequence[ProjectView],
    wanted: JobFilter,
    kind: str | None,
    keyring: Keyring | None,
    limit: int | None,
) -> AsyncIterator[dict[str, Any]]:
    """Project by project, in pages by key: what changes meanwhile shifts nothing."""
    from duly.cli.job_lines import line_of  # not at the top: other commands need no web framework

    left = limit
    for project in projects:
        names = (await project_names(db, [project.owner.project_id]))[project.owner.project_id]
        async for job in _jobs(db, project, wanted):
            if kind is not None and job.kind != kind:
                continue
            if left == 0:
                return
            left = None if left is None else left - 1
            yield line_of(job, names.account, names.project, keyring)


async def _jobs(db: Database, project: ProjectView, wanted: JobFilter) -> AsyncIterator[JobView]:
    place = None
    while True:
        page = await find_ids(db, project.owner, wanted, before=place, limit=_PAGE)
        if page.ids:
            bodies = await read_bodies(db, project.owner, page.ids)
            for job in await look_at(db, project.owner, page.ids):
                yield replace(job, body=bodies.get(job.id))
        place = page.place
        if place is None:
            return


@contextmanager
def written(path: Path | None) -> Iterator[BinaryIO]:
    """Where the lines go: stdout, or a file that takes its name when the block has ended well."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInputError(f"--output: {path} cannot be written ({error.strerror or error})") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(aside, path)
    except OSError as error:
        raise InvalidInputError(f"--output: {path} cannot be written ({error.strerror or error})") from error
    finally:
        aside.unlink(missing_ok=True)


def _moment(option: str, text: str | None, now: datetime) -> datetime | None:
    """A time, or how long ago."""
    if text is None:
        return None
    try:
        return parse_moment(text) if "T" in text or "t" in text else now - parse_duration(text)
    except (FieldError, OverflowError) as error:
        raise InvalidInputError(
            f"{option} must be a time such as 2030-01-31T09:00:00Z, or how long ago, such as 24h: it {error}"
        ) from error
