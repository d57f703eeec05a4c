"""`duly admin …`: accounts, plans, projects, keys, signing secrets and usage, by whoever can reach the database.

What the API's admin calls do, by the same functions; an operator needs no key for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import parsed_id, with_database
from duly.cli.keyrings import found_keyring, keyring_if_needed
from duly.cli.options import AsJson, DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema
from duly.model.errors import InvalidInputError
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA
from duly.service import (
    SCOPES,
    Account,
    CreatedKey,
    KeyInfo,
    Plan,
    Project,
    Scope,
    SigningSecret,
    add_secret,
    change_account,
    checked_limits,
    create_account,
    create_key,
    create_key_of,
    delete_account,
    delete_plan,
    delete_project,
    disable_account,
    enable_account,
    end_key,
    end_secret,
    ensure_operator,
    find_keys,
    find_secrets,
    get_account,
    get_project,
    list_accounts,
    list_plans,
    list_projects,
    put_plan,
    read_usage,
    rotate_key,
    rotate_secret,
)
from duly.service.accounts import ALL, create_project_with_secret
from duly.service.durations import parse_duration
from duly.service.faults import FieldError
from duly.service.plans import LIMIT_RULES, LimitsJson

app = typer.Typer(help="Administer accounts, plans, projects, keys and signing secrets.", no_args_is_help=True)
accounts = typer.Typer(help="Customers, and what they may do.", no_args_is_help=True)
plans = typer.Typer(help="Named sets of limits.", no_args_is_help=True)
projects = typer.Typer(help="The environments of an account.", no_args_is_help=True)
keys = typer.Typer(help="API keys of any project.", no_args_is_help=True)
secrets = typer.Typer(help="What deliveries are signed with.", no_args_is_help=True)
for _name, _part in (
    ("accounts", accounts),
    ("plans", plans),
    ("projects", projects),
    ("keys", keys),
    ("secrets", secrets),
):
    app.add_typer(_part, name=_name)

AccountName = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's name or id.")]
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's id.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")]
SecretId = Annotated[str, typer.Argument(metavar="SECRET", help="The signing secret's id.")]
Name = Annotated[str, typer.Argument(help="Its name.")]
OfProject = Annotated[str | None, typer.Option("--project", help="Only of this project.", show_default=False)]
LimitOption = Annotated[
    list[str],
    typer.Option(
        "--limit", help=f"name=value, or name=none for no limit. Repeatable: {', '.join(LIMIT_RULES)}.", metavar="LIMIT"
    ),
]
PlanOption = Annotated[str | None, typer.Option("--plan", help="Its plan; none: without.", show_default=False)]
ScopeOption = Annotated[
    list[str], typer.Option("--scope", help=f"One of {', '.join(sorted(SCOPES))}. Repeatable. Default: read, write.")
]
Days = Annotated[
    int | None, typer.Option("--days", min=1, max=3650, help="Ends after so many days.", show_default=False)
]
OverlapOption = Annotated[str, typer.Option("--overlap", help="How long the old one is good beside the new one.")]


@app.command()
def bootstrap(
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "operator",
    as_json: AsJson = False,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make an admin key of the operator's account, and that account if it is not there: it administers all accounts."""
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def do(db: Database) -> CreatedKey:
        tenant = await ensure_operator(db, keyring=keyring)
        return await create_key(db, tenant.owner.project_id, name, scopes=["admin"])

    _show_key(with_database(do, database_url, home, schema), as_json)


@app.command()
def usage(
    account: AccountName,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Show what an account uses and what is left to it."""

    async def ask(db: Database) -> Any:
        found = await _account(db, account)
        number = await db.fetchval("select id from duly.account where public_id = $1", found.id)
        return await read_usage(db, number, found.effective)

    found = with_database(ask, database_url, home, schema)
    if as_json:
        print_json(found)
        return
    print_table(
        ("running", "due", "oldest due (s)", "not ended", "quota used", "quota left"),
        [
            (
                found.slots_in_use,
                found.due_backlog,
                found.oldest_due_age_s,
                found.stored,
                found.quota_used,
                found.quota_left,
            )
        ],
    )


@accounts.command("list")
def list_all_accounts(
    as_json: AsJson = False, database_url: DatabaseUrl = None, home: Home = None, schema: Schema = DEFAULT_SCHEMA
) -> None:
    """List all accounts."""
    _show_accounts(with_database(list_accounts, database_url, home, schema), as_json)


@accounts.command("create")
def create_one_account(
    name: Name,
    plan: PlanOption = None,
    limit: LimitOption = [],  # noqa: B006  typer reads the default, nobody changes it
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make an account; a project and a key come next."""
    limits = read_limit_options(limit)
    found = with_database(
        lambda db: create_account(db, name, plan=_no_plan(plan), limits=limits), database_url, home, schema
    )
    _show_accounts([found], as_json)


@accounts.command("set")
def set_account(
    account: AccountName,
    name: Annotated[str | None, typer.Option("--name", help="Another name.", show_default=False)] = None,
    plan: PlanOption = None,
    limit: LimitOption = [],  # noqa: B006
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Change an account's name, plan or limits; its other limits of its own stay. name=plan: as the plan has it."""
    to_plan = {one.partition("=")[0] for one in limit if one.endswith("=plan")}
    limits = read_limit_options([one for one in limit if not one.endswith("=plan")])

    async def do(db: Database) -> Account:
        found = await _account(db, account)
        changes: dict[str, Any] = {"limits": {**found.limits, **limits}} if limit else {}
        for one in to_plan:
            changes["limits"].pop(one, None)
        if name is not None:
            changes["name"] = name
        if plan is not None:
            changes["plan"] = _no_plan(plan)
        return await change_account(db, found.id, changes)

    _show_accounts([with_database(do, database_url, home, schema)], as_json)


@accounts.command("disable")
def disable_one_account(
    account: AccountName,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Refuse its keys and start none of its jobs; what runs ends, and nothing is lost."""

    async def do(db: Database) -> Account:
        return await disable_account(db, (await _account(db, account)).id)

    _show_accounts([with_database(do, database_url, home, schema)], as_json)


@accounts.command("enable")
def enable_one_account(
    account: AccountName,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Let it go on."""

    async def do(db: Database) -> Account:
        return await enable_account(db, (await _account(db, account)).id)

    _show_accounts([with_database(do, database_url, home, schema)], as_json)


@accounts.command("delete")
def delete_one_account(
    account: AccountName,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Delete an account that has been disabled for a minute and has no job that has not ended."""

    async def do(db: Database) -> None:
        await delete_account(db, (await _account(db, account)).id)

    with_database(do, database_url, home, schema)
    say_done("deleted", as_json, account=account)


@plans.command("list")
def list_all_plans(
    as_json: AsJson = False, database_url: DatabaseUrl = None, home: Home = None, schema: Schema = DEFAULT_SCHEMA
) -> None:
    """List all plans."""
    _show_plans(with_database(list_plans, database_url, home, schema), as_json)


@plans.command("set")
def set_plan(
    name: Name,
    limit: LimitOption = [],  # noqa: B006
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make a plan, or replace its limits, for all its accounts at once."""
    limits = read_limit_options(limit)
    _show_plans([with_database(lambda db: put_plan(db, name, limits), database_url, home, schema)], as_json)


@plans.command("delete")
def delete_one_plan(
    name: Name,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Delete a plan that no account has."""
    with_database(lambda db: delete_plan(db, name), database_url, home, schema)
    say_done("deleted", as_json, plan=name)


@projects.command("list")
def list_all_projects(
    account: Annotated[str | None, typer.Option("--account", help="Only of this account.", show_default=False)] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List projects."""

    async def ask(db: Database) -> list[Project]:
        return await list_projects(db, None if account is None else (await _account(db, account)).id)

    found = with_database(ask, database_url, home, schema)
    if as_json:
        print_json([_project_json(project) for project in found])
        return
    print_table(("id", "name", "account", "created"), [(p.id, p.name, p.account_id, p.created_at) for p in found])


@projects.command("create")
def create_one_project(
    account: AccountName,
    name: Name,
    as_json: AsJson = False,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make a project with its first signing secret, which is shown now and never again."""
    keyring = found_keyring(encryption_keys, no_encryption, home)

    async def do(db: Database) -> tuple[Project, SigningSecret]:
        return await create_project_with_secret(db, (await _account(db, account)).id, name, keyring=keyring)

    project, secret = with_database(do, database_url, home, schema)
    if as_json:
        print_json(_project_json(project) | {"signing_secret": _secret_json(secret)})
        return
    note("the project's id, and its signing secret, which is not shown again")
    say(str(project.id))
    say(secret.text)


@projects.command("delete")
def delete_one_project(
    project: ProjectId,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Delete a project that has no job that has not ended."""
    project_id = parsed_id(project, "project")
    with_database(lambda db: delete_project(db, project_id), database_url, home, schema)
    say_done("deleted", as_json, project=project)


@keys.command("list")
def list_all_keys(
    project: OfProject = None,
    scope: Annotated[
        str | None, typer.Option("--scope", help="Only keys with this scope: admin shows who administers.")
    ] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List keys, revoked and expired ones too, never the keys themselves."""
    project_id = None if project is None else parsed_id(project, "project")
    if scope is not None:
        read_scopes([scope])
    found = with_database(lambda db: find_keys(db, project_id=project_id, scope=scope), database_url, home, schema)
    _show_keys(found, as_json)


@keys.command("create")
def create_one_key(
    project: ProjectId,
    name: Name = "key",
    scope: ScopeOption = [],  # noqa: B006
    days: Days = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make a key of a project and print it: the only time that it is shown."""
    project_id, scopes = parsed_id(project, "project"), read_scopes(scope or ["read", "write"])
    ends = None if days is None else datetime.now(UTC) + timedelta(days=days)
    made = with_database(
        lambda db: create_key_of(db, project_id, name, scopes=scopes, expires_at=ends), database_url, home, schema
    )
    _show_key(made, as_json)


@keys.command("rotate")
def rotate_one_key(
    key: KeyId,
    overlap: OverlapOption = "24h",
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make a key in the place of another, which is refused after the overlap."""
    key_id, lasts = parsed_id(key, "key"), read_overlap(overlap)
    made = with_database(lambda db: rotate_key(db, key_id, overlap=lasts), database_url, home, schema)
    _show_key(made, as_json)


@keys.command("revoke")
def revoke_one_key(
    key: KeyId,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Refuse a key from now on."""
    key_id = parsed_id(key, "key")
    _show_keys([with_database(lambda db: end_key(db, key_id), database_url, home, schema)], as_json)


@secrets.command("list")
def list_all_secrets(
    project: OfProject = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the living signing secrets, never the secrets themselves."""
    project_id = None if project is None else parsed_id(project, "project")
    found = with_database(lambda db: find_secrets(db, project_id=project_id, limit=ALL), database_url, home, schema)
    if as_json:
        print_json(found)
        return
    print_table(("id", "project", "created", "ends"), [(s.id, s.project_id, s.created_at, s.expires_at) for s in found])


@secrets.command("create")
def create_one_secret(
    project: ProjectId,
    as_json: AsJson = False,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Add a signing secret: deliveries carry a signature of each."""
    project_id = parsed_id(project, "project")
    keyring = found_keyring(encryption_keys, no_encryption, home)

    async def do(db: Database) -> SigningSecret:
        return await add_secret(db, (await get_project(db, project_id)).owner.project_id, keyring=keyring)

    _show_secret(with_database(do, database_url, home, schema), as_json)


@secrets.command("rotate")
def rotate_one_secret(
    project: ProjectId,
    overlap: OverlapOption = "24h",
    as_json: AsJson = False,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make a new signing secret; all the others go on signing beside it for the overlap."""
    project_id, lasts = parsed_id(project, "project"), read_overlap(overlap)
    keyring = found_keyring(encryption_keys, no_encryption, home)

    async def do(db: Database) -> SigningSecret:
        number = (await get_project(db, project_id)).owner.project_id
        return await rotate_secret(db, number, overlap=lasts, keyring=keyring)

    _show_secret(with_database(do, database_url, home, schema), as_json)


@secrets.command("revoke")
def revoke_one_secret(
    secret: SecretId,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Let a signing secret sign no more; not a project's last one."""
    secret_id = parsed_id(secret, "secret")
    with_database(lambda db: end_secret(db, secret_id), database_url, home, schema)
    say_done("revoked", as_json, secret=secret)


def read_limit_options(given: Sequence[str]) -> LimitsJson:
    """Limits as typed, name=value. Raises InvalidInputError, or InvalidFieldsError with all that is wrong."""
    limits: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise InvalidInputError(f"--limit {one!r} is not name=value, such as running=50")
        if name in limits:
            raise InvalidInputError(f"--limit {name} is given twice: leave one out")
        limits[name] = _limit_value(text)
    return checked_limits(limits, "--limit")


def read_scopes(given: Sequence[str]) -> list[Scope]:
    """Scopes as typed. Raises InvalidInputError for an unknown one."""
    unknown = set(given) - set(SCOPES)
    if unknown:
        raise InvalidInputError(f"scope {min(unknown)!r} is not known: {', '.join(sorted(SCOPES))}")
    return [scope for scope in SCOPES if scope in given]


def read_overlap(text: str) -> timedelta:
    """An overlap as typed. Raises InvalidInputError."""
    try:
        return parse_duration(text)
    except FieldError as error:
        raise InvalidInputError(f"--overlap {error}") from error


def _limit_value(text: str) -> Any:
    if text == "none":
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) else text


def _no_plan(plan: str | None) -> str | None:
    return None if plan == "none" else plan


async def _account(db: Database, given: str) -> Account:
    """By name, or by id: names are unique, and one that looks like an id goes first."""
    for account in await list_accounts(db):
        if account.name == given:
            return account
    return await get_account(db, parsed_id(given, "account"))


def _show_accounts(found: Sequence[Account], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ("id", "name", "plan", "limits of its own", "created", "disabled"),
        [(a.id, a.name, a.plan, _shown_limits(a.limits), a.created_at, a.disabled_at) for a in found],
    )


def _show_plans(found: Sequence[Plan], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(("name", "limits", "changed"), [(p.name, _shown_limits(p.limits), p.updated_at) for p in found])


def _show_keys(found: Sequence[KeyInfo], as_json: bool) -> None:
    if as_json:
        print_json([_key_json(key) for key in found])
        return
    columns = ("id", "project", "name", "begins", "scopes", "created", "ends", "revoked", "last used")
    print_table(
        columns,
        [
            (
                *(k.id, k.project_id, k.name, k.hint, ", ".join(sorted(k.scopes))),
                *(k.created_at, k.expires_at, k.revoked_at, k.last_used_at),
            )
            for k in found
        ],
    )


def _show_key(made: CreatedKey, as_json: bool) -> None:
    if as_json:
        print_json(_key_json(made.info) | {"key": made.key})
        return
    note(f"key {made.info.id}, scopes {', '.join(sorted(made.info.scopes))}; it is not shown again")
    say(made.key)


def _show_secret(secret: SigningSecret, as_json: bool) -> None:
    if as_json:
        print_json(_secret_json(secret))
        return
    note(f"signing secret {secret.id}; it is not shown again")
    say(secret.text)


def _shown_limits(limits: LimitsJson) -> str:
    return ", ".join(f"{name}={'none' if value is None else value}" for name, value in limits.items())


def _key_json(key: KeyInfo) -> dict[str, Any]:
    return {
        "id": key.id,
        "project_id": key.project_id,
        "name": key.name,
        "hint": key.hint,
        "scopes": sorted(key.scopes),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
    }


def _project_json(project: Project) -> dict[str, Any]:
    return {
        "id": project.id,
        "account_id": project.account_id,
        "name": project.name,
        "created_at": project.created_at,
    }


def _secret_json(secret: SigningSecret) -> dict[str, Any]:
    return {
        "id": secret.id,
        "secret": secret.text,
        "created_at": secret.created_at,
        "expires_at": secret.expires_at,
    }
