"""Rules about the work: the ledger, plans, days, workers, wake-ups, and jobs that wait for what is missing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from duly.observe.examining import Examination
from duly.observe.finding import Finding

_SKEW_S = 5.0
_LATE_S = 300.0
_PROMOTER_LATE_S = 60.0
_SILENT_SCHEDULE_S = 600.0
_SHOWN = 20


def unread(seen: Examination) -> Iterator[Finding]:
    for part, why in seen.unread.items():
        yield Finding(
            "unread",
            "warning",
            f"{part} could not be examined: {why}",
            "What is wrong there, if anything, is not known.",
            "Give the role the right that it lacks, or examine when the database is less busy.",
        )


def ledger(seen: Examination) -> Iterator[Finding]:
    for name, count in {} if seen.conservation is None else seen.conservation.faults.items():
        yield Finding(
            "ledger",
            "critical",
            f"{name.replace('_', ' ')}: {count}",
            "The ledger does not add up: a job is lost, or may run twice.",
            "Keep the database as it is (take a backup), and report this.",
        )


def clock(seen: Examination) -> Iterator[Finding]:
    if seen.clock_ahead_s is not None and abs(seen.clock_ahead_s) > _SKEW_S:
        way = "ahead of" if seen.clock_ahead_s > 0 else "behind"
        yield Finding(
            "clock",
            "warning",
            f"this machine's clock is {abs(seen.clock_ahead_s):.1f} s {way} the database's",
            "The database's clock decides. Logs of the two do not fit together, and ids that clients make from a wrong "
            "clock may be refused.",
            "Set the clock, by NTP.",
        )


def plans(seen: Examination) -> Iterator[Finding]:
    for plan in seen.bad_plans:
        yield Finding(
            "plans",
            "critical",
            f"{plan.statement} would use {plan.chosen}, not {plan.expected}",
            "It gets slower with everything that was ever done.",
            "Is the index there and valid (\\d in psql)? Make it again as the schema has it, with reindex or `duly "
            "migrate` on a fresh schema.",
        )


def wake_ups(seen: Examination) -> Iterator[Finding]:
    if seen.is_pooled:
        yield Finding(
            "pooler",
            "warning",
            "between here and the database is a pooler in transaction mode",
            "Wake-ups do not arrive: an idle worker finds a job a quarter of a second later. Heartbeats share the "
            "pool with everybody.",
            "Give workers a URL that goes to the database itself, or to a pooler in session mode.",
        )
    elif seen.listen_works is False:
        yield Finding(
            "listen",
            "warning",
            "a notification did not arrive",
            "Wake-ups do not work: an idle worker finds a job a quarter of a second later.",
            "Connect to the database itself, or through a pooler in session mode.",
        )
    usage = seen.figures.notification_queue_usage if seen.figures else 0.0
    if usage > 0.1:
        yield Finding(
            "notifications",
            "critical" if usage > 0.5 else "warning",
            f"the server's queue of notifications is {usage:.0%} full",
            "Some session listens inside an open transaction. When the queue is full, whoever notifies fails, enqueues "
            "among them.",
            "Find the session in pg_stat_activity by its xact_start, and end it.",
        )


def days(seen: Examination) -> Iterator[Finding]:
    for day in seen.missing_days:
        is_today = seen.server is not None and day <= seen.server.now.date()
        yield Finding(
            "partitions",
            "critical" if is_today else "warning",
            f"the partitions of {day} are missing",
            "Jobs of that day cannot be stored" + (": today's!" if is_today else "."),
            "No upkeep runs, or it fails: start a worker and read its log, or run `duly migrate`.",
        )


def workers(seen: Examination) -> Iterator[Finding]:
    if not any(worker.alive for worker in seen.workers):
        yield Finding("workers", "critical", "no worker is alive", "Jobs wait.", "Start `duly worker`.")
    now = seen.server.now if seen.server else None
    for worker in seen.workers if now else ():
        silent_s = (now - worker.heartbeat_at).total_seconds() if now else 0.0
        lease_s = (worker.lease_expires_at - worker.heartbeat_at).total_seconds()
        if not worker.alive:
            yield Finding(
                "workers.lost",
                "note",
                f"worker {worker.name} (id {worker.id}) has been silent for {silent_s:.0f} s and has not said goodbye",
                "It died or was cut off; its jobs are rescued. A day later it is forgotten.",
                "If that was no deploy: why? Out of memory, killed before its grace was over, the network?",
            )
        elif silent_s > lease_s / 2:
            yield Finding(
                "workers.late",
                "warning",
                f"worker {worker.name} (id {worker.id}) renewed {silent_s:.0f} s ago, of a lease of {lease_s:.0f} s",
                "It renews every quarter of its lease. When that is over, its jobs are given to others.",
                "Is its machine, or the way from there to the database, overloaded?",
            )


def due(seen: Examination) -> Iterator[Finding]:
    for lane in seen.unserved[:_SHOWN]:
        yield Finding(
            "unserved",
            "critical",
            f"{lane.jobs:,} due jobs of kind {lane.kind!r} in queue {lane.queue!r} have no worker, the oldest for "
            f"{lane.oldest_seconds:.0f} s",
            "No living worker serves this kind and queue: they wait until one does.",
            "Start a worker for it (`duly worker --queues`, or a program with the handler), or cancel them.",
        )
    figures = seen.figures
    if figures is None:
        return
    if not seen.unserved and (figures.oldest_due_seconds or 0) > _LATE_S:
        yield Finding(
            "late",
            "warning",
            f"a job has been due for {figures.oldest_due_seconds:.0f} s",
            "More comes in than is done, or a limit of its queue or account holds it.",
            "Look at slots in use and at limits; start more workers.",
        )
    if figures.promote_late_seconds > _PROMOTER_LATE_S and figures.scheduled:
        yield Finding(
            "promoter",
            "critical",
            f"nobody has promoted scheduled jobs for {figures.promote_late_seconds:.0f} s",
            "Scheduled jobs and retries do not start.",
            "The upkeep of no worker runs: start one, or read its log.",
        )


def schedules(seen: Examination) -> Iterator[Finding]:
    it = seen.schedules
    if it is None:
        return
    late_s = it.most_late.total_seconds()
    if it.overdue:
        yield Finding(
            "schedules.overdue",
            "critical" if late_s > _SILENT_SCHEDULE_S else "warning",
            f"{it.overdue:,} schedules should have fired and did not, one of them for {late_s:.0f} s",
            "Their jobs are not made. What becomes of the fires that were missed, each schedule's `missed` says.",
            "See that a worker that delivers HTTP jobs runs: it fires. Its log says what firing failed with.",
        )
    if it.parked:
        yield Finding(
            "schedules.parked",
            "warning",
            f"{it.parked:,} schedules are parked",
            "They cannot fire as they are, and do not until somebody resumes them.",
            "`duly schedules list` says why; mend them, then `duly schedules resume`.",
        )


def breakers(seen: Examination) -> Iterator[Finding]:
    if seen.breakers:
        shown = ", ".join(sorted({row.host for row in seen.breakers})[:5])
        yield Finding(
            "breakers",
            "note",
            f"{len(seen.breakers)} breakers are open ({shown}{', …' if len(seen.breakers) > 5 else ''})",
            "Deliveries to these targets are held, and one probe at a time looks whether they are back.",
            "If the targets are well, look at the way out: DNS, the egress proxy, a firewall.",
        )


def keys(seen: Examination, known: Collection[str]) -> Iterator[Finding]:
    for key_id, jobs in seen.keys.items():
        if key_id not in known:
            yield Finding(
                "keys",
                "critical",
                f"encryption key {key_id} is missing: {jobs} unfinished jobs need it",
                "They wait, and use up no attempts.",
                "Add it behind the first, for the API and for workers.",
            )
