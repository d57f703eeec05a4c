"""`duly keys signing`: the signing secrets that a receiver of deliveries verifies with, and changing them."""

from __future__ import annotations

from typing import Annotated

import typer

from duly.cli.console import note, print_json, say
from duly.cli.jobs import with_database
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import Account, AsJson, DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema, read_duration
from duly.http import encode_secret
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA
from duly.service import ensure_default, list_secrets, rotate_secret
from duly.service.secrets import SigningSecret


def signing(
    account: Account = "default",
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make a new one; the others go on signing beside it for --overlap.")
    ] = False,
    overlap: Annotated[str, typer.Option("--overlap", help="For how long, such as 24h; 0s ends them at once.")] = "24h",
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Print the signing secrets of an account's project, the newest first: give them to receivers of its deliveries."""
    lasts = read_duration("--overlap", overlap)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def look(db: Database) -> list[SigningSecret]:
        project_id = (await ensure_default(db, account, keyring=keyring)).owner.project_id
        if rotate:
            await rotate_secret(db, project_id, overlap=lasts, keyring=keyring)
        return await list_secrets(db, project_id, keyring=keyring)

    secrets = with_database(look, database_url, home, schema)
    if as_json:
        shown = [{"secret": encode_secret(one.secret), "expires_at": one.expires_at} for one in secrets]
        print_json(shown)
        return
    note(f"{len(secrets)} of account {account}; whoever has one can forge its deliveries")
    for secret in secrets:
        ends = "" if secret.expires_at is None else f"  signs until {secret.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        say(encode_secret(secret.secret) + ends)
