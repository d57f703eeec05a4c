"""`duly doctor`: is everything well, and if not, what does it mean and what is to be done?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import typer

from duly.cli.console import print_json, say
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import AsJson, DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema, found_database_url
from duly.cli.stopping import run_loop
from duly.observe.examining import LEDGER_LIMIT, Examination, examine
from duly.observe.finding import Finding, counted, worst
from duly.observe.findings import findings
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA, verify

_CODES = {"critical": 1, "warning": 3, "note": 0, None: 0}


@dataclass(frozen=True, slots=True)
class Report:
    """What the doctor found, and what it saw. `accepted`: codes of findings that do not count."""

    findings: list[Finding]
    accepted: list[str]
    seen: Examination


def doctor(
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the ledger, which reads every job.")] = False,
    accept: Annotated[
        list[str],
        typer.Option("--accept", help="A finding, by its code, that does not count. Repeatable.", show_default=False),
    ] = [],  # noqa: B006  typer reads the default, nobody changes it
    as_json: AsJson = False,
) -> None:
    """Check the ledger, the database, the workers and what lies between them.

    Exits with 0 if all is well (notes may stand), 1 if something is critical or cannot be examined at all, 3 for
    warnings.
    """
    url = found_database_url(database_url, home)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)
    known = keyring.ids if keyring.ids or no_encryption else None

    async def main() -> Report:
        async with await Database.open(url, schema=schema, max_size=2, name="duly-doctor", limit=LEDGER_LIMIT) as db:
            async with db.session() as session:
                await verify(session.connection, schema)
            seen = await examine(db, url, with_ledger=not quick)
        return Report(findings(seen, known), sorted(accept), seen)

    report = run_loop(main)
    if as_json:
        print_json(report)
    else:
        _show(report.seen)
        _tell(report.findings, accept)
    code = _CODES[worst(report.findings, accept)]
    if code:
        raise typer.Exit(code)


def _show(seen: Examination) -> None:
    if seen.server is not None:
        server = seen.server
        say(
            f"PostgreSQL {server.version}, up {server.up_seconds:.0f} s, "
            f"{server.connections} of {server.max_connections} connections"
        )
    if seen.conservation is not None:
        ledger = seen.conservation
        say(
            f"jobs {ledger.jobs}: scheduled {ledger.scheduled}, ready {ledger.ready}, running {ledger.running}, "
            f"succeeded {ledger.succeeded}, dead {ledger.dead}, cancelled {ledger.cancelled}"
        )
        say("the ledger adds up" if ledger.holds else "the ledger does not add up")
    if seen.figures is not None:
        figures = seen.figures
        say(f"live segments: ready {figures.ready_segments}, lease {figures.lease_segments}")
        say(f"dead rows: ready {figures.ready_dead_rows}, lease {figures.lease_dead_rows}")
        say(f"oldest due job: {figures.oldest_due_seconds or 0:.0f} s")
    say(f"oldest snapshot: {max((holder.seconds or 0 for holder in seen.holders), default=0):.0f} s")
    say(f"workers alive: {sum(worker.alive for worker in seen.workers)}")
    if seen.schedules is not None:
        it = seen.schedules
        say(f"schedules: active {it.active}, paused {it.paused}, parked {it.parked}")
    for key_id, jobs in seen.keys.items():
        say(f"encryption key {key_id}: {jobs} unfinished jobs")


def _tell(found: Collection[Finding], accepted: Collection[str]) -> None:
    for finding in found:
        say()
        say(f"{_MARKS[finding.severity]} {finding.what}  [{finding.code}]")
        say(f"  {finding.means}")
        say(f"  {finding.do}")
        if finding.code in accepted:
            say("  (accepted)")
    say()
    number = counted(found)
    say(
        f"{number['critical']} critical, {number['warning']} warnings, {number['note']} notes"
        if found
        else "all is well"
    )


_MARKS = {"critical": "!", "warning": "?", "note": "-"}
