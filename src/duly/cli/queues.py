"""`duly queues list | show | set | unset | pause | resume`: what applies to the queues of a project."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import with_database
from duly.cli.options import AsJson, DatabaseUrl, Home, Schema
from duly.cli.owners import Project, named_owner
from duly.model.errors import InvalidInputError, NotFoundError
from duly.model.jobs import QUEUE_NAME
from duly.queue import (
    Database,
    Owner,
    QueueSettings,
    get_queue,
    list_queues,
    pause_queue,
    queue_is_known,
    set_queue,
    task_owner,
    unset_queue,
)
from duly.schema import DEFAULT_SCHEMA
from duly.service.durations import parse_duration, show_duration
from duly.service.faults import FieldError
from duly.service.queues import parse_rate

app = typer.Typer(help="Limits, rates, defaults and pauses of queues.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Account = Annotated[str, typer.Option("--account", help="The account.")]
Tasks = Annotated[
    bool, typer.Option("--tasks", help="Of the project in which Python tasks live (default/tasks).", show_default=False)
]
_CODE = re.compile(r"[1-5](?:\d\d|xx)", re.ASCII)
_PAGE = 1000


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=f"{text} none: unset.", show_default=False)


@app.command("list")
def list_(
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the queues for which something is set, and those that have ever had a job."""

    async def ask(db: Database) -> list[tuple[str, QueueSettings]]:
        owner = await _owner(db, account, project, tasks)
        found: list[tuple[str, QueueSettings]] = []
        while len(found) % _PAGE == 0:
            after = found[-1][0] if found else ""
            page = await list_queues(db, owner.account_id, owner.project_id, after=after, limit=_PAGE)
            if not page:
                break
            found += page
        return found

    _show_all(with_database(ask, database_url, home, schema), as_json)


@app.command()
def show(
    name: Name,
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Show what applies to a queue."""

    async def ask(db: Database) -> QueueSettings:
        owner = await _owner(db, account, project, tasks)
        if not await queue_is_known(db, owner.account_id, owner.project_id, _checked(name)):
            raise NotFoundError("queue", name)
        return await get_queue(db, owner.project_id, name)

    _show(name, with_database(ask, database_url, home, schema), as_json)


@app.command("set")
def set_(
    name: Name,
    concurrency: Annotated[str | None, _option("--concurrency", "How many of its jobs may run at once.")] = None,
    key_concurrency: Annotated[str | None, _option("--key-concurrency", "And how many with one key.")] = None,
    rate: Annotated[str | None, _option("--rate", "How many attempts may start: 100/1s, 5/1m.")] = None,
    timeout: Annotated[str | None, _option("--timeout", "Time limit of new jobs that have none: 30s.")] = None,
    max_attempts: Annotated[str | None, _option("--max-attempts", "Attempts of new jobs that say nothing.")] = None,
    max_age: Annotated[str | None, _option("--max-age", "How long those are tried: 24h.")] = None,
    retry_on: Annotated[
        str | None, _option("--retry-on", "What those are retried on: default, all_non_2xx, or 404,5xx.")
    ] = None,
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Change what is given, and leave the rest as it is."""
    limits = _given(
        concurrency=_read("--concurrency", concurrency, lambda text: _count(text, 1_000_000)),
        key_concurrency=_read("--key-concurrency", key_concurrency, lambda text: _count(text, 1_000_000)),
        rate=_read("--rate", rate, parse_rate),
    )
    defaults = _given(
        timeout=_read("--timeout", timeout, lambda text: _between(text, "1s", "15m")),
        max_attempts=_read("--max-attempts", max_attempts, lambda text: _count(text, 50)),
        max_age=_read("--max-age", max_age, lambda text: _between(text, "1s", "366d")),
        on=_read("--retry-on", retry_on, _retry_on),
    )
    if not limits and not defaults:
        raise InvalidInputError("nothing to set: see `duly queues set --help`")

    if defaults and (tasks or (account, project) == ("default", "tasks")):
        raise InvalidInputError(
            "tasks take no defaults from their queue: say them with @duly.task(timeout=…, max_attempts=…), "
            "and here --concurrency, --key-concurrency, --rate"
        )

    async def do(db: Database) -> QueueSettings:
        owner = await _owner(db, account, project, tasks)
        before = await get_queue(db, owner.project_id, _checked(name))
        await _tell_if_of_tasks(db, owner, name)
        after = replace(before, **limits, defaults=replace(before.defaults, **defaults))
        await set_queue(db, owner.project_id, name, after, keep_pause=True)
        return await get_queue(db, owner.project_id, name)

    _show(name, with_database(do, database_url, home, schema), as_json)


@app.command()
def unset(
    name: Name,
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Forget all that was set for a queue, its pause too. Its jobs stay."""

    async def do(db: Database) -> bool:
        owner = await _owner(db, account, project, tasks)
        return await unset_queue(db, owner.project_id, _checked(name))

    if not with_database(do, database_url, home, schema):
        raise NotFoundError("a setting of queue", name)
    say_done(f"queue {name} has no settings any more", as_json, queue=name, result="unset")


@app.command()
def pause(
    name: Name,
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Start no more jobs of a queue; what runs goes on."""
    _pause(name, True, account, project, tasks, as_json, database_url, home, schema)


@app.command()
def resume(
    name: Name,
    account: Account = "default",
    project: Project = None,
    tasks: Tasks = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Start jobs of a queue again."""
    _pause(name, False, account, project, tasks, as_json, database_url, home, schema)


def _pause(
    name: str,
    paused: bool,
    account: str,
    project: str | None,
    tasks: bool,
    as_json: bool,
    database_url: DatabaseUrl,
    home: Home,
    schema: str,
) -> None:
    async def do(db: Database) -> QueueSettings:
        owner = await _owner(db, account, project, tasks)
        await pause_queue(db, owner.project_id, _checked(name), paused)
        await _tell_if_of_tasks(db, owner, name)
        return await get_queue(db, owner.project_id, name)

    settings = with_database(do, database_url, home, schema)
    if as_json:
        print_json({"name": name, "settings": settings})
    else:
        say(f"queue {name} {'is paused' if paused else 'goes on'}")


async def _owner(db: Database, account: str, project: str | None, tasks: bool) -> Owner:
    """The project as typed; that of tasks is made, if nobody has enqueued one yet. Raises NotFoundError."""
    if tasks and (account, project) != ("default", None):
        raise InvalidInputError("--tasks names account and project: leave out --account and --project")
    if tasks or (account, project) == ("default", "tasks"):
        return await task_owner(db)
    return await named_owner(db, account, project)


async def _tell_if_of_tasks(db: Database, owner: Owner, name: str) -> None:
    """Settings of the wrong project limit nothing: say so where a queue has tasks, and no job of this project."""
    with contextlib.suppress(NotFoundError):
        of_tasks = await named_owner(db, "default", "tasks")
        if of_tasks != owner and await queue_is_known(db, of_tasks.account_id, of_tasks.project_id, name):
            note(f"queue {name} has tasks too, in a project of their own: for those, say it again with --tasks")


def _show_all(queues: list[tuple[str, QueueSettings]], as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "settings": settings} for name, settings in queues])
        return
    print_table(
        ("queue", "paused", "at once", "per key", "rate", "timeout", "attempts", "max age", "retry on"),
        [
            (
                name,
                "paused" if one.paused else None,
                one.concurrency,
                one.key_concurrency,
                None if one.rate is None else f"{one.rate.limit}/{show_duration(one.rate.per)}",
                one.defaults.timeout,
                one.defaults.max_attempts,
                None if one.defaults.max_age is None else show_duration(one.defaults.max_age),
                ",".join(map(str, one.defaults.on)) if isinstance(one.defaults.on, tuple) else one.defaults.on,
            )
            for name, one in queues
        ],
    )


def _show(name: str, settings: QueueSettings, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "settings": settings})
    else:
        _show_all([(name, settings)], as_json=False)


def _checked(name: str) -> str:
    if not QUEUE_NAME.fullmatch(name):
        raise InvalidInputError(
            "a queue's name is 1 to 100 letters, digits and . _ : / -, starting with a letter or a digit"
        )
    return name


def _read(option: str, text: str | None, parse: Callable[[str], Any]) -> tuple[Any] | None:
    """What an option says: None if it was not given, (None,) to unset. Raises InvalidInputError."""
    if text is None:
        return None
    if text == "none":
        return (None,)
    try:
        return (parse(text),)
    except FieldError as error:
        raise InvalidInputError(f"{option} {error}; or none") from error


def _given(**options: tuple[Any] | None) -> dict[str, Any]:
    return {field: value[0] for field, value in options.items() if value is not None}


def _count(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise FieldError(f"must be a whole number from 1 to {most}")
    return int(text)


def _between(text: str, low: str, high: str) -> Any:
    duration = parse_duration(text)
    if not parse_duration(low) <= duration <= parse_duration(high):
        raise FieldError(f"must be from {low} to {high}")
    return duration


def _retry_on(text: str) -> str | tuple[int | str, ...]:
    if text in ("default", "all_non_2xx"):
        return text
    parts = text.split(",")
    if len(parts) > 50 or not all(_CODE.fullmatch(part) for part in parts):
        raise FieldError("must be default, all_non_2xx, or codes and classes such as 404,5xx")
    return tuple(int(part) if part.isdigit() else part for part in parts)
