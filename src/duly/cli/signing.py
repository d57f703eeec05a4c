"""`duly keys signing`: the signing secrets that a receiver of deliveries verifies with."""

from __future__ import annotations

from duly.cli.console import note, say
from duly.cli.jobs import with_database
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema
from duly.http import encode_secret
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA
from duly.service import ensure_default, list_secrets


def signing(
    account: str = "default",
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Print the signing secrets of an account's first project, the newest first: give them to receivers of its
    deliveries.
    """
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)

    async def look(db: Database) -> list[str]:
        tenant = await ensure_default(db, account, keyring=keyring)
        secrets = await list_secrets(db, tenant.owner.project_id, keyring=keyring)
        return [encode_secret(secret.secret) for secret in secrets]

    secrets = with_database(look, database_url, home, schema)
    note(f"{len(secrets)} of account {account}; whoever has one can forge its deliveries")
    for secret in secrets:
        say(secret)
