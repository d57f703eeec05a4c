"""`duly doctor`: does the ledger add up, and is the database in good health?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import typer

from duly.cli.console import print_json, say
from duly.cli.keyrings import keyring_if_needed
from duly.cli.options import AsJson, DatabaseUrl, EncryptionKeys, Home, NoEncryption, Schema, found_database_url
from duly.cli.parts import open_database
from duly.cli.stopping import run_loop
from duly.queue import (
    Conservation,
    Health,
    ScheduleHealth,
    WorkerView,
    conservation,
    health,
    list_workers,
    schedule_health,
    unfinished_by_key,
)
from duly.schema import DEFAULT_SCHEMA


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor saw, and each finding with what to do. `keys`: unfinished jobs by the key that they need."""

    health: Health
    conservation: Conservation
    workers: list[WorkerView]
    schedules: ScheduleHealth
    keys: dict[str, int]
    findings: list[str]


def doctor(
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    as_json: AsJson = False,
) -> None:
    """Check the conservation of jobs and the database's health. Exits with 1 if something is wrong."""
    url = found_database_url(database_url, home)
    keyring = keyring_if_needed(encryption_keys, no_encryption, home)
    known = keyring.ids if keyring.ids or no_encryption else None

    async def main() -> Examination:
        async with open_database(url, schema, max_size=2, name="duly-doctor") as db:
            state, ledger, workers = await health(db), await conservation(db), await list_workers(db)
            schedules, keys = await schedule_health(db), await unfinished_by_key(db)
        found = findings(state, ledger, workers) + schedule_findings(schedules)
        found += [] if known is None else missing_keys(keys, known)
        return Examination(state, ledger, workers, schedules, keys, found)

    seen = run_loop(main)
    if as_json:
        print_json(seen)
    else:
        _show(seen)
    if seen.findings:
        raise typer.Exit(1)


def findings(state: Health, ledger: Conservation, workers: list[WorkerView]) -> list[str]:
    """One sentence for each thing that is wrong: what, which, what to do."""
    found = [
        f"{name.replace('_', ' ')}: {count} (the ledger does not add up: keep the database as it is, and report this)"
        for name, count in ledger.faults.items()
    ]
    if state.oldest_snapshot_seconds > 600:
        found.append(
            f"a snapshot has been held for {state.oldest_snapshot_seconds:.0f} s by {state.oldest_snapshot_holder}: "
            "vacuum cannot clean up behind it; end it if nobody needs it"
        )
    if not any(worker.alive for worker in workers):
        found.append("no worker is alive: jobs wait; start `duly worker`")
    if state.days_ahead < 1:
        found.append("tomorrow's partitions are missing: no upkeep runs; start a worker or run `duly migrate`")
    return found


def schedule_findings(schedules: ScheduleHealth) -> list[str]:
    """One sentence for schedules that should have fired and did not, one for those that cannot."""
    found = []
    if schedules.overdue:
        found.append(
            f"{schedules.overdue} schedules should have fired and did not, one of them for "
            f"{schedules.most_late.total_seconds():.0f} s: see that workers run, and what they log"
        )
    if schedules.parked:
        found.append(
            f"{schedules.parked} schedules are parked, since they cannot fire as they are: "
            "`duly schedules list` says why; mend them, then `duly schedules resume`"
        )
    return found


def missing_keys(keys: Mapping[str, int], known: Collection[str]) -> list[str]:
    """One sentence for each key that jobs wait for and the ring does not have."""
    return [
        f"encryption key {key_id} is missing: {jobs} unfinished jobs need it; add it behind the first"
        for key_id, jobs in keys.items()
        if key_id not in known
    ]


def _show(seen: Examination) -> None:
    ledger = seen.conservation
    say(f"PostgreSQL {seen.health.server_version}, up {seen.health.up_seconds:.0f} s")
    say(
        f"jobs {ledger.jobs}: scheduled {ledger.scheduled}, ready {ledger.ready}, running {ledger.running}, "
        f"succeeded {ledger.succeeded}, dead {ledger.dead}, cancelled {ledger.cancelled}"
    )
    say(f"live segments: ready {seen.health.ready_segments}, lease {seen.health.lease_segments}")
    say(f"dead rows: ready {seen.health.ready_dead_rows}, lease {seen.health.lease_dead_rows}")
    say(f"oldest snapshot: {seen.health.oldest_snapshot_seconds:.0f} s")
    say(f"workers alive: {sum(worker.alive for worker in seen.workers)}")
    say(f"schedules: active {seen.schedules.active}, paused {seen.schedules.paused}, parked {seen.schedules.parked}")
    say("the ledger adds up" if ledger.holds else "the ledger does not add up")
    for finding in seen.findings:
        say(f"! {finding}")
