"""`duly schedules list | show | preview | fires | pause | resume | run | delete | apply`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from duly.cli.applying import apply_
from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import Limit, parsed_id, with_database
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
from duly.model.errors import DulyError, InvalidInputError, NotFoundError
from duly.queue import Database, server_now
from duly.schema import DEFAULT_SCHEMA
from duly.service import Keyring
from duly.service.faults import InvalidScheduleError
from duly.service.firing import check_fit, fire_now
from duly.service.moments import show_moment
from duly.service.schedules import (
    Schedule,
    ScheduleChangedError,
    ScheduleStateError,
    delete_schedule,
    get_schedule,
    list_fires,
    list_schedules,
    next_fires,
    pause_schedule,
    resume_schedule,
)
from duly.service.templates import closed_template

app = typer.Typer(help="Look at schedules, stop and start them, declare them in a file.", no_args_is_help=True)

Which = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's id, or its name.")]
Account = Annotated[str, typer.Option("--account", help="The account of a schedule that is given by its name.")]


@app.command("list")
def list_(
    limit: Limit = 50,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the schedules of all accounts, the newest first."""
    found = with_database(lambda db: list_schedules(db, None, limit=limit), database_url, home, schema)
    if as_json:
        print_json([_shown(schedule) for schedule in found])
        return
    print_table(
        ("id", "name", "state", "when", "next fire", "last fire", "made", "why parked"),
        [(s.id, s.name, s.state, _when(s), s.next_fire_at, s.last_fire_at, s.made, s.parked_why) for s in found],
    )


@app.command()
def show(
    schedule: Which,
    account: Account = "default",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Show one schedule; nothing that is sealed in it."""
    found = with_database(lambda db: _found(db, account, schedule), database_url, home, schema)
    if as_json:
        print_json(_shown(found))
        return
    for name, value in _shown(found).items():
        say(f"{name}: {json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value}")


@app.command()
def preview(
    schedule: Which,
    count: Annotated[int, typer.Option("--count", min=1, max=500, help="How many fires.")] = 10,
    account: Account = "default",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """The next fires, in UTC, before jitter."""
    found = with_database(lambda db: _found(db, account, schedule), database_url, home, schema)
    moments = [show_moment(fire) for fire in next_fires(found, count)]
    if as_json:
        print_json(moments)
        return
    for moment in moments:
        say(moment)
    if not moments:
        note(f"it is {found.state}")


@app.command()
def fires(
    schedule: Which,
    limit: Limit = 50,
    account: Account = "default",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """What became of each fire, the latest first."""

    async def look(db: Database) -> list[Any]:
        return await list_fires(db, (await _found(db, account, schedule)).id, limit=limit)

    found = with_database(look, database_url, home, schema)
    if as_json:
        print_json(found)
        return
    print_table(
        ("fire", "trigger", "outcome", "fires", "late s", "job", "why"),
        [
            (
                f.fire_at,
                f.trigger,
                f.outcome,
                f.covers,
                round((f.made_at - f.fire_at).total_seconds(), 3),
                f.job_id,
                f.why,
            )
            for f in found
        ],
    )


@app.command()
def pause(
    schedule: Which,
    account: Account = "default",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """No fires until it is resumed; what falls into the pause is not made up for."""

    async def do(db: Database) -> None:
        found = await _found(db, account, schedule)
        if not await pause_schedule(db, found.owner, found.id):
            raise ScheduleStateError(found.state, "be paused")

    with_database(do, database_url, home, schema)
    say_done("paused", as_json, schedule=schedule)


@app.command()
def resume(
    schedule: Which,
    account: Account = "default",
    allow: Allow = [],  # noqa: B006  typer reads the default, nobody changes it
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """A paused or parked schedule goes on with the next fire from now."""
    policy = EgressPolicy.parse(allow, deny, allow_port)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def do(db: Database) -> Schedule:
        found = await _found(db, account, schedule)
        if found.state not in ("paused", "parked"):
            raise ScheduleStateError(found.state, "be resumed")
        now = await server_now(db)
        _fit(found, keyring, policy, now)
        if not await resume_schedule(db, found, now=now):
            raise ScheduleChangedError
        return await _found(db, account, str(found.id))

    resumed = with_database(do, database_url, home, schema)
    if as_json:
        print_json(_shown(resumed))
        return
    say(f"next fire {show_moment(resumed.next_fire_at)}" if resumed.next_fire_at else "there is no fire left: it ended")


@app.command()
def run(
    schedule: Which,
    account: Account = "default",
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
    """Make a job of it now and print the job's id; its fires go on as they would."""
    policy = EgressPolicy.parse(allow, deny, allow_port)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def do(db: Database) -> str:
        found = await _found(db, account, schedule)
        template = _fit(found, keyring, policy, await server_now(db))
        return str((await fire_now(db, found, template, keyring, "command line")).job_id)

    job = with_database(do, database_url, home, schema)
    say_done(job, as_json, schedule=schedule, job=job, result="made")


@app.command()
def delete(
    schedule: Which,
    account: Account = "default",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """No further fires. The jobs that it made go on."""

    async def do(db: Database) -> None:
        found = await _found(db, account, schedule)
        await delete_schedule(db, found.owner, found.id)

    with_database(do, database_url, home, schema)
    say_done("deleted", as_json, schedule=schedule)


app.command("apply")(apply_)


def _fit(schedule: Schedule, keyring: Keyring, policy: EgressPolicy, now: datetime) -> Any:
    try:
        return check_fit(schedule, keyring, policy, now)
    except InvalidScheduleError as error:
        raise InvalidInputError(f"the schedule cannot fire: {error}") from error


async def _found(db: Database, account: str, which: str) -> Schedule:
    """By its id, of any account; or by its name in the account's projects, where only one of them has it."""
    try:
        schedule_id = parsed_id(which, "schedule")
    except DulyError:
        schedule_id = await _named(db, account, which)
    schedule = await get_schedule(db, schedule_id, None)
    if schedule is None:
        raise NotFoundError("schedule", which)
    return schedule


async def _named(db: Database, account: str, name: str) -> UUID:
    found = await db.fetch(
        """select s.id, p.name from duly.schedule s join duly.project p on p.id = s.project_id
           join duly.account a on a.id = p.account_id
           where a.name = $1 and s.name = $2 and a.deleted_at is null and p.deleted_at is null order by p.name""",
        account,
        name,
    )
    if not found:
        raise NotFoundError("schedule", name)
    if len(found) > 1:
        where = ", ".join(f"{row['id']} of project {row['name']}" for row in found)
        raise InvalidInputError(f"several schedules are named {name!r}: give the id of one: {where}")
    return UUID(str(found[0]["id"]))


def _when(schedule: Schedule) -> str:
    timing = schedule.timing
    if timing.cron is not None:
        return f"{timing.cron} {timing.timezone or 'UTC'}"
    return f"every {timing.every}" if timing.every is not None else f"at {timing.at}"


def _shown(schedule: Schedule) -> dict[str, Any]:
    from duly.api.schedule_documents import schedule_json

    return schedule_json(schedule, closed_template(schedule.template))
