"""`duly keys create | list | revoke`: API keys, made by whoever can reach the database. `duly keys encryption`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from duly.cli import encryption, signing
from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import parsed_id, with_database
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import Account, AsJson, DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA
from duly.service import SCOPES, CreatedKey, KeyInfo, create_key, ensure_default, list_keys, revoke_key

app = typer.Typer(help="Make and revoke API keys; the keys that seal secrets at rest.", no_args_is_help=True)
app.add_typer(encryption.app, name="encryption")
app.command("signing")(signing.signing)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")] = "key",
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help=f"One of {', '.join(sorted(SCOPES))}. Repeatable. Default: read, write."),
    ] = None,
    days: Annotated[
        int | None, typer.Option("--days", min=1, max=3650, help="Ends after so many days.", show_default=False)
    ] = None,
    account: Account = "default",
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Make an API key and print it: the only time that it is shown."""
    unknown = set(scope or ()) - set(SCOPES)
    if unknown:
        raise InvalidInputError(f"scope {min(unknown)!r} is not known: {', '.join(sorted(SCOPES))}")
    scopes = [s for s in SCOPES if s in (scope or ("read", "write"))]

    keyring = keyring_if_needed(encryption_keys, no_encryption, home)  # a new account gets a signing secret

    async def do(db: Database) -> CreatedKey:
        tenant = await ensure_default(db, account, keyring=keyring)
        ends = None if days is None else datetime.now(UTC) + timedelta(days=days)
        return await create_key(db, tenant.owner.project_id, name, scopes=scopes, expires_at=ends)

    made = with_database(do, database_url, home, schema)
    if as_json:
        print_json({**asdict(made.info), "scopes": sorted(made.info.scopes), "key": made.key})
        return
    note(f"key {made.info.id}, scopes {', '.join(sorted(made.info.scopes))}; it is not shown again")
    say(made.key)


@app.command("list")
def list_(
    account: Account = "default",
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the keys of an account's project, never the keys themselves."""
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def ask(db: Database) -> list[KeyInfo]:
        return await list_keys(db, (await ensure_default(db, account, keyring=keyring)).owner.project_id)

    keys = with_database(ask, database_url, home, schema)
    if as_json:
        print_json(keys)
        return
    print_table(
        ("id", "name", "begins", "scopes", "created", "ends", "revoked", "last used"),
        [
            (
                k.id,
                k.name,
                k.hint,
                ", ".join(sorted(k.scopes)),
                k.created_at,
                k.expires_at,
                k.revoked_at,
                k.last_used_at,
            )
            for k in keys
        ],
    )


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id, from `duly keys list`.")],
    account: Account = "default",
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Revoke a key: it is refused from now on."""
    key_id = parsed_id(key, "key")
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def do(db: Database) -> bool:
        tenant = await ensure_default(db, account, keyring=keyring)
        return await revoke_key(db, tenant.owner.project_id, key_id)

    if not with_database(do, database_url, home, schema):
        raise NotFoundError("a living key", key_id)
    say_done("revoked", as_json, key=key)
