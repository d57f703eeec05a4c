"""`duly send`: one HTTP job, as curl would send the request."""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Annotated, Any

import typer

from duly.cli.console import note, print_json, say
from duly.cli.following import told
from duly.cli.keyrings import keyring_if_needed
from duly.cli.making import Egress, Maker
from duly.cli.opening import open_database
from duly.cli.options import (
    Allow,
    AllowPort,
    DatabaseUrl,
    Deny,
    EncryptionKeys,
    Home,
    NoEncryption,
    Schema,
    found_database_url,
    read_duration,
)
from duly.cli.owners import Project
from duly.cli.stopping import run_loop
from duly.model.errors import InvalidInputError
from duly.queue import get_job
from duly.schema import DEFAULT_SCHEMA
from duly.service import BodyTooLargeError, InvalidJobError, Limits

_OPTIONS = {
    "url": "URL",
    "headers": "--header",
    "json": "--json-data",
    "body_base64": "--data",
    "run_at": "--at",
    "retry": "--max-attempts",
    "tags": "--tag",
}


def send(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send the request.")],
    method: Annotated[
        str, typer.Option("--method", "-X", help="GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS.")
    ] = "POST",
    header: Annotated[
        list[str], typer.Option("--header", "-H", help="A header, as 'Name: value'. Repeatable.", show_default=False)
    ] = [],  # noqa: B006  typer reads the default, nobody changes it
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", help="The body, sent byte for byte; @FILE: a file's bytes; -: stdin's.", show_default=False
        ),
    ] = None,
    json_data: Annotated[
        str | None,
        typer.Option(
            "--json-data", help="The body as JSON (@FILE, - as above), with its Content-Type.", show_default=False
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Its queue.", show_default="default")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="0 first, 9 last.", show_default="5")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="Run it after this time: 30s, 2h.", show_default=False)
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Run it at this time: 2030-01-31T09:00:00Z.", show_default=False)
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Time limit of an attempt: 30s.", show_default=False)
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, max=50, help="How often it is tried.", show_default=False)
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option("--unique-key", help="Only one job of the project holds it at a time.", show_default=False),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option("--on-conflict", help="If another one does: error, keep or replace.", show_default=False),
    ] = None,
    tag: Annotated[list[str], typer.Option("--tag", help="A tag. Repeatable.", show_default=False)] = [],  # noqa: B006
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it has ended, and tell how.")] = False,
    wait_limit: Annotated[
        str | None, typer.Option("--wait-limit", help="With --wait: leave after this time.", show_default=False)
    ] = None,
    account: Annotated[str, typer.Option("--account", help="The account.")] = "default",
    project: Project = None,
    allow: Allow = [],  # noqa: B006
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON; with --wait one line for each thing that happens.")
    ] = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Store one HTTP job and print its id. It is checked as the API checks it, and stored when this returns.

    With --wait it exits with 0 if the job succeeded, 3 if it is dead, 4 if it was cancelled, 124 after --wait-limit.
    """
    members: dict[str, Any] = {
        "url": url,
        "method": method.upper(),
        "headers": [_header(text) for text in header],
        "queue": queue,
        "priority": priority,
        "delay": _duration(delay),
        "run_at": at,
        "timeout": _duration(timeout),
        "retry": None if max_attempts is None else {"max_attempts": max_attempts},
        "unique_key": unique_key,
        "on_conflict": on_conflict,
        "tags": tag,
    }
    if data is not None:
        members["body_base64"] = base64.b64encode(_bytes("--data", data)).decode("ascii")
    text = json.dumps({name: value for name, value in members.items() if value not in (None, [])})
    if json_data is not None:
        text = f'{text[:-1]}, "json": {_json("--json-data", json_data)}}}'
    limit = None if wait_limit is None else read_duration("--wait-limit", wait_limit)
    egress = Egress(allow, deny, allow_port)
    database = found_database_url(database_url, home)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)
    from duly.api.creation import read_job  # not at the top: other commands need no web framework
    from duly.api.problems import Problem
    from duly.api.render import job_json

    async def main() -> int:
        async with (
            open_database(database, schema, max_size=3, name="duly-cli") as db,
            Maker.opened(db, await egress.policy(db, database), keyring) as maker,
        ):
            owner = await maker.owner(account, project)
            try:
                job = read_job(text, now=await maker.now(), policy=maker.policy, limits=await maker.limits(owner))
            except InvalidJobError as error:
                raise InvalidInputError(_in_options(error)) from error
            except BodyTooLargeError as error:
                raise InvalidInputError(f"{'--data' if json_data is None else '--json-data'}: {error}") from error
            except Problem as error:
                raise InvalidInputError(error.detail) from error
            created = await maker.make(owner, job)
            job_id = created.other if created.result == "kept" and created.other else created.job_id
            if created.result == "kept":
                note(f"its unique key is held by job {job_id}: no other was made")
            if as_json and not wait:
                from duly.service.sealing import closed_view

                stored = await get_job(db, owner, job_id)
                print_json({"id": str(job_id)} if stored is None else job_json(closed_view(stored)))
            elif not as_json:
                say(str(job_id))
            return await told(db, job_id, limit, as_json) if wait else 0

    code = run_loop(main)
    if code:
        raise typer.Exit(code)


def _header(text: str) -> list[str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise InvalidInputError("--header has no colon: write it as 'Name: value'")
    return [name.strip(), value.strip()]


def _duration(text: str | None) -> str | float | None:
    """As the API reads it; a bare number is seconds."""
    if text is None or not text.replace(".", "", 1).isdecimal() or not text.isascii():
        return text
    return float(text)


def _bytes(option: str, text: str) -> bytes:
    """What an option gives as a body. Raises InvalidInputError if the file cannot be read."""
    most = Limits().body_bytes + 1  # one that is longer is refused by its length
    if text in ("-", "@-"):
        return sys.stdin.buffer.read(most)
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        with open(text[1:], "rb") as file:
            return file.read(most)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no file name"
        raise InvalidInputError(f"{option}: {text[1:]} cannot be read ({why})") from error


def _json(option: str, text: str) -> str:
    """The same as one JSON value, its text as it was written."""
    body = _bytes(option, text)
    if len(body) > Limits().body_bytes:
        raise InvalidInputError(f"{option}: {BodyTooLargeError(Limits().body_bytes)}")
    try:
        found = body.decode("utf-8").strip()
        json.loads(found)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(f"{option} is not JSON: {why}; other bytes are sent by --data") from error
    return found


def _in_options(error: InvalidJobError) -> str:
    """Every fault at the option that it came from."""
    return "; ".join(f"{_option(fault.pointer)}: {fault.detail}" for fault in error.faults)


def _option(pointer: str) -> str:
    name = pointer.split("/")[1] if pointer else "URL"
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")
