"""`duly notices list | set | remove | test`: who is told when something needs a person."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Annotated

import typer

from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import parsed_id, with_database
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
    read_duration,
)
from duly.http import EgressPolicy
from duly.model.errors import InvalidInputError, NotFoundError
from duly.model.jobs import QUEUE_NAME
from duly.model.states import FINAL
from duly.queue import Database, JobView, get_job, server_now
from duly.schema import DEFAULT_SCHEMA
from duly.service import Account, Creator, Project, list_accounts, list_projects
from duly.service.accounts import ALL
from duly.service.notices import (
    DEAD_LETTERS,
    LONGEST_WINDOW,
    MOST_DEAD_LETTERS,
    QUEUE,
    TYPES,
    About,
    Notice,
    NoticeSettings,
    check_notice_url,
    find_notices,
    get_notice,
    notice_job,
    put_notice,
    remove_notice,
    trial_message,
)

app = typer.Typer(help="Who is told when something needs a person.", no_args_is_help=True)

_ABOUT: tuple[About, ...] = ("project", "account", "everything")
_LOOK_AGAIN_S = 0.1

NoticeId = Annotated[str, typer.Argument(metavar="NOTICE", help="The notice's id, from `duly notices list`.")]
OfAccount = Annotated[str, typer.Option("--account", help="The account whose jobs tell it.")]
OfProject = Annotated[
    str | None, typer.Option("--project", help="Its project. Default: that of the same name.", show_default=False)
]


@app.command("list")
def list_(
    as_json: AsJson = False, database_url: DatabaseUrl = None, home: Home = None, schema: Schema = DEFAULT_SCHEMA
) -> None:
    """List the notices of all accounts, the oldest first."""
    _show(with_database(lambda db: find_notices(db, limit=ALL), database_url, home, schema), as_json)


@app.command("set")
def set_(
    url: Annotated[str, typer.Argument(help="Told by POST, signed as every delivery of the project is.")],
    about: Annotated[str, typer.Option("--about", help=f"What it is told of: {', '.join(_ABOUT)}.")] = "project",
    of: Annotated[
        str | None,
        typer.Option(
            "--of", help="With --about account: which one. Default: the account that tells.", show_default=False
        ),
    ] = None,
    tell: Annotated[
        list[str], typer.Option("--tell", help=f"One of {', '.join(TYPES)}. Repeatable. Default: all of them.")
    ] = [],  # noqa: B006  typer reads the default, nobody changes it
    dead_letters: Annotated[
        int, typer.Option("--dead-letters", min=1, max=MOST_DEAD_LETTERS, help="Tell of so many dead letters ...")
    ] = DEAD_LETTERS,
    dead_within: Annotated[str, typer.Option("--dead-within", help="... within so long, such as 10m.")] = "10m",
    queue: Annotated[str, typer.Option("--queue", help="Of the jobs that tell it.")] = QUEUE,
    account: OfAccount = "default",
    project: OfProject = None,
    allow: Allow = [],  # noqa: B006
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Have a URL told, or change what it is told of."""
    scope = _about(about, of)
    checked = check_notice_url(url, EgressPolicy.parse(allow, deny, allow_port))
    settings = _settings(checked, tell, dead_letters, dead_within, queue)

    async def do(db: Database) -> Notice:
        owner = await _project(db, account, project)
        told_of = None if of is None else (await _account(db, of)).id
        notice, is_new = await put_notice(db, owner.id, scope, told_of, settings, within=None)
        note("it is told from now on" if is_new else "changed")
        return notice

    _show([with_database(do, database_url, home, schema)], as_json)


@app.command()
def remove(
    notice: NoticeId,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Tell a URL no more. What is on its way still arrives."""
    notice_id = parsed_id(notice, "notice")
    with_database(lambda db: remove_notice(db, notice_id), database_url, home, schema)
    say_done("removed", as_json, notice=notice_id)


@app.command("test")
def try_(
    notice: NoticeId,
    wait: Annotated[str, typer.Option("--wait", help="For how long to wait for a worker to deliver it.")] = "10s",
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
    """Send a test notice now and say what came of it; exit code 1 if it was not delivered."""
    notice_id = parsed_id(notice, "notice")
    longest = read_duration("--wait", wait)
    policy = EgressPolicy.parse(allow, deny, allow_port)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def do(db: Database) -> JobView:
        found = await get_notice(db, notice_id)
        now = await server_now(db)
        job = notice_job(found, trial_message(found, now), now=now, policy=policy)
        creator = Creator(db, keyring=keyring)
        await creator.create(found.owner, job)
        await creator.close()
        give_up_at = time.monotonic() + longest.total_seconds()
        while True:
            view = await get_job(db, found.owner, job.id)
            if view is None:
                raise NotFoundError("job", job.id)
            if view.state in FINAL or view.last_outcome is not None or time.monotonic() > give_up_at:
                return view
            await asyncio.sleep(_LOOK_AGAIN_S)

    view = with_database(do, database_url, home, schema)
    if as_json:
        say_done(_came_of(view), as_json, job=view.id, state=view.state)
    else:
        say(f"job {view.id}: {_came_of(view)}")
    if view.state != "succeeded":
        raise typer.Exit(1)


def _came_of(view: JobView) -> str:
    if view.state == "succeeded":
        return f"delivered, the answer was {view.last_status_code}"
    if view.last_outcome is None:
        return f"it is still {view.state}: is there a worker that delivers HTTP jobs of queue {view.queue}?"
    return f"not delivered, {view.last_error or view.reason or view.last_outcome}"


def _about(text: str, of: str | None) -> About:
    found = next((about for about in _ABOUT if about == text), None)
    if found is None:
        raise InvalidInputError(f"--about {text!r} is not known: {', '.join(_ABOUT)}")
    if of is not None and found != "account":
        raise InvalidInputError("--of goes together with --about account: leave it out")
    return found


def _settings(url: str, tell: list[str], dead_letters: int, dead_within: str, queue: str) -> NoticeSettings:
    unknown = set(tell) - set(TYPES)
    if unknown:
        raise InvalidInputError(f"--tell {min(unknown)!r} is not known: {', '.join(TYPES)}")
    within = read_duration("--dead-within", dead_within)
    if not timedelta(seconds=1) <= within <= LONGEST_WINDOW:
        raise InvalidInputError("--dead-within is from 1s to 1d")
    if not QUEUE_NAME.fullmatch(queue):
        raise InvalidInputError("--queue is 1 to 100 letters, digits and . _ : / -, starting with a letter or digit")
    return NoticeSettings(url, tuple(one for one in TYPES if not tell or one in tell), dead_letters, within, queue)


async def _account(db: Database, name: str) -> Account:
    for one in await list_accounts(db):
        if one.name == name:
            return one
    raise NotFoundError("account", name)


async def _project(db: Database, account: str, project: str | None) -> Project:
    for one in await list_projects(db, (await _account(db, account)).id):
        if one.name == (project or account):
            return one
    raise NotFoundError(f"in account {account} a project", project or account)


def _show(notices: list[Notice], as_json: bool) -> None:
    if as_json:
        print_json([_plain(notice) for notice in notices])
        return
    print_table(
        ("id", "url", "about", "of", "project", "dead letters", "queue", "tells"),
        [
            (
                one.id,
                one.settings.url,
                one.about,
                one.project_name if one.about == "project" else one.account_name,
                one.project_name,
                f"{one.settings.dead_letters} in {one.settings.dead_within.total_seconds():g} s",
                one.settings.queue,
                ", ".join(one.settings.types),
            )
            for one in notices
        ],
    )


def _plain(notice: Notice) -> dict[str, object]:
    return {
        "id": notice.id,
        "url": notice.settings.url,
        "about": notice.about,
        "project_id": notice.project_id,
        "account_id": notice.account_id,
        "types": notice.settings.types,
        "dead_letters": notice.settings.dead_letters,
        "dead_within": notice.settings.dead_within,
        "queue": notice.settings.queue,
    }
