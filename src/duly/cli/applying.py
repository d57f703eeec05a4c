"""`duly schedules apply`: schedules declared in a file, or beside an app's tasks, shown and then made so."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Coroutine, Iterable
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any

import typer

from duly.cli.apps import found_apps
from duly.cli.console import note, print_json, say
from duly.cli.jobs import with_database
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import (
    Allow,
    AllowPort,
    AsJson,
    DatabaseUrl,
    Deny,
    EncryptionKeys,
    Home,
    NoEncryption,
    Schema,
)
from duly.http import EgressPolicy
from duly.model.errors import InvalidInputError
from duly.queue import Database, server_now
from duly.schema import DEFAULT_SCHEMA
from duly.service import Limits, ensure_default
from duly.service.declaring import Change, Declared, ForeignScheduleError, reconcile
from duly.service.faults import Fault, InvalidScheduleError
from duly.service.task_schedules import reconcile_apps
from duly.tasks.app import App

_MOST = 1000
_SIGNS = {"added": "+", "changed": "~", "removed": "-", "passed": "."}


def apply_(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="TOML with tables in an array named schedule, or JSON: a list of schedules.", show_default=False
        ),
    ] = None,
    app: Annotated[
        list[str],
        typer.Option(
            "--app",
            help="Instead of a file, what is declared beside the tasks of this app: package.module, or "
            "package.module:app. Repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer reads the default, nobody changes it
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make the changes without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes and make none.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="Name of the set: only its schedules are changed and removed. [default: file, or app:NAMES]",
            show_default=False,
        ),
    ] = None,
    account: Annotated[str, typer.Option("--account", help="Of a file's: the account, and its project.")] = "default",
    allow: Allow = [],  # noqa: B006
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Show what it changes to make the schedules of a set those that are declared, and make it so."""
    if (file is None) == (not app):
        raise InvalidInputError("give a file, or --app" if file is None else "a file excludes --app: give one of them")
    reconciled: Callable[[Database, bool], Coroutine[Any, Any, list[Change]]]
    if file is None:
        apps = found_apps(app)
        schema = schema_of(apps, schema)
        declared_by = name or set_of(app)

        async def reconciled(db: Database, dry: bool) -> list[Change]:
            return await reconcile_apps(db, apps, declared_by=declared_by, dry_run=dry)
    else:
        policy = EgressPolicy.parse(allow, deny, allow_port)
        keyring = keyring_if_needed(encryption_keys, no_encryption, home)
        entries = read_file(file)

        async def reconciled(db: Database, dry: bool) -> list[Change]:
            declared = declared_in(entries, await server_now(db), policy)
            owner = (await ensure_default(db, account, keyring=keyring)).owner
            return await reconcile(db, owner, declared, declared_by=name or "file", keyring=keyring, dry_run=dry)

    def run(dry: bool) -> list[Change]:
        try:
            return with_database(lambda db: reconciled(db, dry), database_url, home, schema)
        except InvalidScheduleError as error:
            raise InvalidInputError(f"{file or ', '.join(app)}: {error}") from error

    changes = run(True)
    if not as_json:
        _show(changes)
    if _count(changes) and not dry_run:
        _agree(_count(changes), yes)
        changes = run(False)
    if as_json:
        print_json({"applied": not dry_run, "changes": changes})
    else:
        note(f"{_count(changes)} changes{', none made: --dry-run' if dry_run else ' made'}")


async def apply_or_tell(db: Database, apps: tuple[App, ...], references: Iterable[str], *, told_to: bool) -> None:
    """What a worker does with the schedules of its apps: it makes them so if it was told to, and otherwise says what
    differs, and what stands against making them so.
    """
    if not told_to and not any(app.schedules for app in apps):
        return
    references = list(references)
    try:
        changes = await reconcile_apps(db, apps, declared_by=set_of(references), dry_run=not told_to)
    except (ForeignScheduleError, InvalidScheduleError) as error:
        if told_to:
            raise InvalidInputError(f"{', '.join(references)}: {error}") from error
        note(f"schedules are not as declared, and cannot be made so: {error}")
        return
    if told_to:
        _show(changes)
    elif _count(changes):
        options = " ".join(f"--app {reference}" for reference in references)
        what = ", ".join(_line(change) for change in changes if change.what != "passed")
        note(f"schedules are not as declared ({what}): duly schedules apply {options}, or --apply-schedules here")


def set_of(references: Iterable[str]) -> str:
    """The set that the schedules of these apps belong to."""
    return f"app:{','.join(sorted(set(references)))}"


def schema_of(apps: tuple[App, ...], schema: str) -> str:
    """The apps' where they name one, or else as typed."""
    return apps[0].schema if apps and apps[0].schema != DEFAULT_SCHEMA else schema


def read_file(file: Path) -> list[dict[str, Any]]:
    """The entries of a file, TOML or JSON by its ending. Raises InvalidInputError."""
    try:
        text = file.read_text("utf-8")
        content = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise InvalidInputError(
            f"{file} is not valid {'TOML' if file.suffix == '.toml' else 'JSON'}: {error}"
        ) from error
    if isinstance(content, dict) and set(content) <= {"schedule", "schedules"} and len(content) <= 1:
        content = next(iter(content.values()), [])
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise InvalidInputError(f"{file} must hold schedules and nothing else: [[schedule]] tables, or a JSON array")
    if len(content) > _MOST:
        raise InvalidInputError(f"{file} declares {len(content)} schedules: {_MOST} at most in one set")
    return content


def declared_in(entries: list[dict[str, Any]], now: datetime, policy: EgressPolicy) -> list[Declared]:
    """The entries read as the API reads schedules. Raises InvalidScheduleError with every fault of every entry."""
    from duly.api.schedule_inputs import Reading, read_declared  # not at the top: other commands need no web framework

    reading = Reading(now, policy, Limits())
    declared: list[Declared] = []
    faults: list[Fault] = []
    for place, entry in enumerate(entries):
        try:
            declared.append(read_declared(json.dumps(entry, default=_moment), reading))
        except InvalidScheduleError as error:
            where = entry.get("name") if isinstance(entry.get("name"), str) else place
            faults.extend(Fault(f"{where}{fault.pointer}", fault.detail) for fault in error.faults)
    if faults:
        raise InvalidScheduleError(faults)
    return declared


def _agree(count: int, yes: bool) -> None:
    """Ask, where there is somebody to ask. Raises typer.Exit."""
    if yes:
        return
    if not sys.stdin.isatty():
        note("nothing was changed: say --yes to make these changes")
        raise typer.Exit(1)
    if not typer.confirm(f"Make {count} changes?", err=True):
        note("nothing was changed")
        raise typer.Exit(1)


def _show(changes: Iterable[Change]) -> None:
    for change in changes:
        say(_line(change))


def _count(changes: Iterable[Change]) -> int:
    return sum(change.what != "passed" for change in changes)


def _line(change: Change) -> str:
    if change.what == "passed":
        return f"{_SIGNS['passed']} {change.name} (its time has passed: left out)"
    return f"{_SIGNS[change.what]} {change.name}" + (f" ({', '.join(change.parts)})" if change.parts else "")


def _moment(value: object) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    raise InvalidInputError(f"a schedule cannot hold {value!r}")
