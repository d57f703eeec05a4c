"""Rules about the server: its version, settings, connections, vacuum, and what this role may do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from duly.observe.examining import Examination
from duly.observe.finding import Finding
from duly.queue import SnapshotHolder

# https://www.postgresql.org/support/versioning/
_UNSUPPORTED_FROM = {
    15: date(2027, 11, 11),
    16: date(2028, 11, 9),
    17: date(2029, 11, 8),
    18: date(2030, 11, 14),
}
_ENDS_SOON = timedelta(days=180)
_CONNECTIONS_OF_A_WORKER = 11  # a pool of 6, the reserve of 2, heartbeat, wake-ups, metrics
_LONG_SNAPSHOT_S = 600.0
_MANY_TRANSACTIONS = 10_000_000
_BLOATED_BYTES = 1 << 30
_SHORT_TIMEOUT_S = 30.0
_WRAPAROUND = 1_000_000_000
_SHOWN = 20


def version(seen: Examination) -> Iterator[Finding]:
    server = seen.server
    if server is None:
        return
    ends = _UNSUPPORTED_FROM.get(server.major)
    if ends is not None and server.now.date() >= ends:
        yield Finding(
            "server.version",
            "warning",
            f"PostgreSQL {server.version} has had no corrections since {ends}",
            "Known faults, of security too, stay open.",
            "Upgrade to a supported major version.",
        )
    elif ends is not None and server.now.date() >= ends - _ENDS_SOON:
        yield Finding(
            "server.version",
            "note",
            f"PostgreSQL {server.major} gets corrections until {ends}",
            "After that, known faults stay open.",
            "Plan the upgrade.",
        )


def durability(seen: Examination) -> Iterator[Finding]:
    settings = {} if seen.server is None else seen.server.settings
    for name, bad, means in (
        ("fsync", "off", "A crash of the machine can destroy the whole database."),
        ("full_page_writes", "off", "A crash of the machine can destroy pages."),
        ("synchronous_commit", "off", "Jobs that were acknowledged in the last moments before a crash are lost."),
    ):  # fmt: skip
        if settings.get(name) == bad:
            yield Finding(
                f"settings.{name}",
                "critical",
                f"{name} is {bad}",
                means,
                f"Set {name} = on in the server's settings, and look whether this role or database sets it.",
            )
    if settings.get("transaction_read_only") == "on":
        yield Finding(
            "server.read_only",
            "critical",
            "the database is read-only",
            "Nothing can be accepted, claimed or settled: this is a standby, or default_transaction_read_only is set.",
            "Point the URL at the primary (target_session_attrs=read-write), or take the setting back.",
        )


def vacuum(seen: Examination) -> Iterator[Finding]:
    server = seen.server
    if server is None:
        return
    if "off" in (server.settings.get("autovacuum"), server.settings.get("track_counts")):
        yield Finding(
            "settings.autovacuum",
            "critical",
            "autovacuum is off",
            "Dead rows are never cleaned up: tables grow without end, and at last the server refuses to write.",
            "Set autovacuum = on and track_counts = on.",
        )
    for table in server.unvacuumed:
        yield Finding(
            "settings.autovacuum",
            "warning",
            f"autovacuum is off for {table}",
            "Its dead rows are never cleaned up.",
            f"alter table {table} reset (autovacuum_enabled)",
        )
    if server.frozen_age > _WRAPAROUND:
        yield Finding(
            "server.wraparound",
            "critical",
            f"the oldest row that is not frozen is {server.frozen_age:,} transactions old",
            "At two thousand million the server refuses to write.",
            "End what holds vacuum back, then run `vacuum freeze`.",
        )


def connections(seen: Examination) -> Iterator[Finding]:
    server = seen.server
    if server is None:
        return
    left = server.max_connections - server.reserved_connections - server.connections
    if left < _CONNECTIONS_OF_A_WORKER:
        yield Finding(
            "connections",
            "warning",
            f"{server.connections} of {server.max_connections} connections are in use",
            f"A worker may need {_CONNECTIONS_OF_A_WORKER}, an API process as many: the next one waits at its start.",
            "Raise max_connections, run fewer processes, or put a pooler in session mode in between.",
        )


def timeouts(seen: Examination) -> Iterator[Finding]:
    for name, seconds in ({} if seen.server is None else seen.server.timeouts).items():
        if 0 < seconds < _SHORT_TIMEOUT_S:
            yield Finding(
                "settings.timeouts",
                "warning",
                f"{name} is {seconds:g} s for this role",
                "The server ends statements that Duly would wait for; each is tried again, and some never get done.",
                f"Raise {name} for this role, or take it back: Duly limits its own statements to 30 s.",
            )


def grants(seen: Examination) -> Iterator[Finding]:
    for lacking in seen.grants[:_SHOWN]:
        yield Finding(
            "grants",
            "critical",
            f"this role may not {lacking}",
            "Statements of the API or of workers that need it fail.",
            "Grant it: docs/how-to/grants.md lists what each role needs.",
        )
    if seen.sees_all_sessions is False:
        yield Finding(
            "grants.monitor",
            "note",
            "this role sees only its own sessions",
            "Who else holds a snapshot, here and in the metrics, is not known.",
            "As a superuser: grant pg_monitor to this role.",
        )


def held(seen: Examination) -> Iterator[Finding]:
    for holder in seen.holders:
        if (holder.seconds or 0) > _LONG_SNAPSHOT_S or holder.transactions > _MANY_TRANSACTIONS:
            yield Finding(
                "snapshot",
                "warning",
                f"{_named(holder)} holds vacuum back, for {_how_long(holder)}",
                "Dead rows pile up behind it. Claims stay fast; the disk fills, and other tables slow down.",
                _end(holder),
            )


def bloat(seen: Examination) -> Iterator[Finding]:
    for table in seen.tables:
        if table.size_bytes > _BLOATED_BYTES and table.dead_rows > 4 * table.live_rows:
            behind = f"; {_named(seen.holders[0])} holds it back" if seen.holders else ""
            yield Finding(
                "bloat",
                "warning",
                f"{table.name} has {table.dead_rows:,} dead rows and {table.live_rows:,} live ones, in "
                f"{table.size_bytes / (1 << 30):.1f} GB{behind}",
                "Vacuum does not keep up.",
                "End what holds it back; then `vacuum` frees the space for new rows.",
            )


def _named(holder: SnapshotHolder) -> str:
    who = f" of {holder.role}" if holder.role else ""
    pid = f", pid {holder.pid}" if holder.pid else ""
    state = f", {holder.state}" if holder.state else ""
    return f"{holder.kind} {holder.name!r}{who}{pid}{state}"


def _how_long(holder: SnapshotHolder) -> str:
    transactions = f"{holder.transactions:,} transactions"
    return transactions if holder.seconds is None else f"{holder.seconds:.0f} s and {transactions}"


def _end(holder: SnapshotHolder) -> str:
    match holder.kind:
        case "session":
            return f"If nobody needs it: select pg_terminate_backend({holder.pid})"
        case "prepared transaction":
            return f"commit prepared '{holder.name}' or rollback prepared '{holder.name}', whichever its owner says."
        case "replication slot":
            return f"Bring the standby back, or: select pg_drop_replication_slot('{holder.name}')"
        case _:
            return "Look at the standby's long queries, or turn hot_standby_feedback off there."
