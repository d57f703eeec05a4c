"""`duly keys encryption make | used | reseal`: the keys that seal secrets at rest."""

from __future__ import annotations

from collections import Counter

import typer

from duly.cli.console import note, print_json, print_table, say, say_done
from duly.cli.jobs import with_database
from duly.cli.keyrings import found_keyring
from duly.cli.options import AsJson, DatabaseUrl, EncryptionKeys, Home, Schema
from duly.queue import Database, KeyUse, keys_in_use
from duly.schema import DEFAULT_SCHEMA
from duly.service import reseal_secrets, secrets_by_key
from duly.service.keyring import new_key
from duly.service.resealing import reseal_schedules, schedules_by_key

app = typer.Typer(help="The keys that seal secrets at rest.", no_args_is_help=True)


@app.command()
def make(as_json: AsJson = False) -> None:
    """Make a key and print it, as id:base64. It is kept nowhere: put it where your other secrets are."""
    note("put it first in DULY_ENCRYPTION_KEYS, or in the file of --encryption-keys; keep it with your backups")
    key = new_key()
    say_done(key, as_json, result="made", key=key)


@app.command()
def used(
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """List the ids of the keys that something stored is sealed with. Reads all jobs; needs no key."""

    async def ask(db: Database) -> tuple[list[KeyUse], Counter[str | None], Counter[str]]:
        return await keys_in_use(db), await secrets_by_key(db), await schedules_by_key(db)

    uses, secrets, schedules = with_database(ask, database_url, home, schema)
    known = {use.key_id: use for use in uses}
    rows = [
        {
            "key": key_id,
            "unfinished_jobs": known.get(key_id, KeyUse(key_id)).unfinished,
            "finished_jobs": known.get(key_id, KeyUse(key_id)).finished,
            "answers": known.get(key_id, KeyUse(key_id)).answers,
            "signing_secrets": secrets[key_id],
            "schedules": schedules[key_id],
        }
        for key_id in sorted({*known, *schedules, *(key_id for key_id in secrets if key_id)})
    ]
    if as_json:
        print_json({"keys": rows, "signing_secrets_in_the_clear": secrets[None]})
        return
    print_table(
        ("key", "unfinished jobs", "finished jobs", "answers", "signing secrets", "schedules"),
        [tuple(row.values()) for row in rows],
    )
    if secrets[None]:
        say(f"signing secrets in the clear: {secrets[None]} (`duly keys encryption reseal` seals them)")


@app.command()
def reseal(
    encryption_keys: EncryptionKeys = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Seal every signing secret and schedule with the first key: those of older keys, and those in the clear."""
    keyring = found_keyring(encryption_keys, False, home)

    async def do(db: Database) -> tuple[int, int]:
        return await reseal_secrets(db, keyring), await reseal_schedules(db, keyring)

    secrets, schedules = with_database(do, database_url, home, schema)
    if as_json:
        print_json({"key": keyring.first, "signing_secrets": secrets, "schedules": schedules})
        return
    say(f"signing secrets sealed with {keyring.first}: {secrets}")
    if schedules:
        say(f"schedules sealed with {keyring.first}: {schedules}")
