"""The database's figures: read when somebody asks, at most every few seconds, and never waited for long.

Every process that serves metrics tells the same figures: take the max over instances, never the sum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Figures, ScheduleHealth, SnapshotHolder
from duly.queue.noticing import QuotaShares, quota_shares

READ_EVERY = timedelta(seconds=5)
READ_LIMIT = timedelta(seconds=3)
SCHEDULES_EVERY = timedelta(seconds=15)
MOST_QUOTAS = 1_000
_UNREADABLE = (DatabaseUnavailableError, asyncpg.PostgresError, TimeoutError)
_COUNTED = ("scheduled", "ready", "running", "dead")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read, and how long that took."""

    figures: Figures
    holder: SnapshotHolder | None
    took_s: float


class DatabaseMetrics(Collector):
    """Figures of the whole database. `refresh` before a scrape; while the database does not answer, there are none and
    `duly_database_up` is 0.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        every: timedelta = READ_EVERY,
        schedules_every: timedelta = SCHEDULES_EVERY,
        limit: timedelta = READ_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db: Database | None = None
        self._every_s = every.total_seconds()
        self._schedules_every_s = schedules_every.total_seconds()
        self._limit_s = limit.total_seconds()
        self._clock = clock
        self._last: Reading | None = None
        self._looked_at: float | None = None
        self._schedules: ScheduleHealth | None = None
        self._schedules_at: float | None = None
        self._quotas: QuotaShares | None = None
        self._looking = asyncio.Lock()
        registry.register(self)

    def watch(self, db: Database) -> None:
        """Read from this database."""
        self._db = db

    async def refresh(self) -> None:
        """Read again unless that was done a moment ago; who asks meanwhile waits for the same answer. It never raises
        for a database that is away, and never takes longer than the limit.
        """
        async with self._looking:
            if self._db is None or (self._looked_at is not None and self._clock() - self._looked_at < self._every_s):
                return
            began = self._clock()
            try:
                async with asyncio.timeout(self._limit_s):
                    found = await queue.figures(self._db)
                    holders = await queue.snapshot_holders(self._db, 1)
            except _UNREADABLE as error:
                self._last = self._schedules = self._schedules_at = self._quotas = None
                self._db.trouble.failed("metrics", error)
            else:
                self._last = Reading(found, holders[0] if holders else None, self._clock() - began)
                await self._look_at_schedules(self._db)
                self._db.trouble.fine("metrics")
            self._looked_at = self._clock()

    async def _look_at_schedules(self, db: Database) -> None:
        """More rarely, since that reads all of them; the other figures do without if it takes too long."""
        if self._schedules_at is not None and self._clock() - self._schedules_at < self._schedules_every_s:
            return
        try:
            async with asyncio.timeout(self._limit_s):
                self._schedules = await queue.schedule_health(db)
        except _UNREADABLE as error:
            self._schedules = None
            db.trouble.failed("metrics of schedules", error)
        else:
            db.trouble.fine("metrics of schedules")
        await self._look_at_quotas(db)
        self._schedules_at = self._clock()

    async def _look_at_quotas(self, db: Database) -> None:
        """As rarely as at the schedules."""
        try:
            async with asyncio.timeout(self._limit_s):
                self._quotas = await quota_shares(db, MOST_QUOTAS)
        except _UNREADABLE as error:
            self._quotas = None
            db.trouble.failed("metrics of quotas", error)
        else:
            db.trouble.fine("metrics of quotas")

    def collect(self) -> Iterable[Metric]:
        last = self._last
        yield GaugeMetricFamily(
            "duly_database_up",
            "1: the database answered the last look, within its time limit.",
            0 if last is None else 1,
        )
        trouble = 0 if self._db is None else len(self._db.trouble.failing)
        yield GaugeMetricFamily("duly_parts_in_trouble", "Loops of this process whose last statement failed.", trouble)
        yield from _families(last)
        yield from _of_schedules(self._schedules)
        yield from _of_quotas(self._quotas)


_PLAIN: tuple[tuple[str, str, Callable[[Reading], float | None]], ...] = (
    ("duly_database_read_seconds", "How long reading these figures took.", lambda r: r.took_s),
    (
        "duly_oldest_due_seconds",
        "How long the job that is due the longest has waited; 0: nothing is due. Paused queues are left out. A lower "
        "bound while the number of ready jobs is an estimate.",
        lambda r: r.figures.oldest_due_seconds,
    ),
    (
        "duly_promote_late_seconds",
        "For how long due jobs should have been promoted, and nobody looked.",
        lambda r: r.figures.promote_late_seconds,
    ),
    ("duly_breakers_open", "Breakers open.", lambda r: r.figures.breakers),
    ("duly_workers", "Workers whose lease is good.", lambda r: r.figures.workers),
    ("duly_slots", "Jobs that those workers may hold at once.", lambda r: r.figures.slots),
    (
        "duly_notification_queue_usage_ratio",
        "How full the server's queue of notifications is.",
        lambda r: r.figures.notification_queue_usage,
    ),
)


def _families(last: Reading | None) -> Iterable[Metric]:
    """All families, empty ones if there is nothing to tell: their names and meanings stand."""
    figures, holder = (None, None) if last is None else (last.figures, last.holder)
    yield from _jobs(figures)
    yield from _snapshot(figures, holder)
    for name, what, value in _PLAIN:
        yield _gauge(name, what, [] if last is None else [((), float(value(last) or 0.0))])
    segments = [] if figures is None else [(("ready",), figures.ready_segments), (("lease",), figures.lease_segments)]
    yield _gauge("duly_live_segments", "Segments that claims look at.", segments, "line")
    dead_rows = [] if figures is None else [
        (("ready",), figures.ready_dead_rows),
        (("lease",), figures.lease_dead_rows),
        (("scheduled",), figures.scheduled_dead_rows),
    ]  # fmt: skip
    yield _gauge(
        "duly_dead_rows", "Dead rows that vacuum has not taken, by the server's statistics.", dead_rows, "table"
    )


def _jobs(figures: Figures | None) -> Iterable[Metric]:
    states = [] if figures is None else [((state,), float(getattr(figures, state))) for state in _COUNTED]
    estimates = (
        [] if figures is None else [((state,), float(state in figures.estimated)) for state in (*_COUNTED, "finished")]
    )
    yield _gauge("duly_jobs", "Jobs by state; exact up to 10,000 each, the server's estimate above.", states, "state")
    finished = [] if figures is None else [((), float(figures.finished))]
    yield _gauge("duly_jobs_finished_estimate", "Jobs kept that are over, by the server's estimate.", finished)
    yield _gauge("duly_jobs_are_estimated", "1: this number of jobs is an estimate.", estimates, "state")


def _of_schedules(seen: ScheduleHealth | None) -> Iterable[Metric]:
    states = [] if seen is None else [
        (("active",), seen.active), (("paused",), seen.paused), (("parked",), seen.parked)
    ]  # fmt: skip
    yield _gauge("duly_schedules", "Schedules by state; parked: it cannot fire as it is.", states, "state")
    yield _gauge(
        "duly_schedules_overdue",
        "Schedules that should have fired more than a minute ago.",
        [] if seen is None else [((), seen.overdue)],
    )
    yield _gauge(
        "duly_schedule_late_seconds",
        "For how long the latest of those should have fired; 0: there is none.",
        [] if seen is None else [((), seen.most_late.total_seconds())],
    )


def _of_quotas(seen: QuotaShares | None) -> Iterable[Metric]:
    """Numbers of accounts, never their names: there are too many, and they come and go."""
    accounts = [] if seen is None else [(("any",), seen.limited), (("near",), seen.near), (("met",), seen.met)]
    yield _gauge(
        "duly_quota_accounts",
        "Accounts with a monthly quota; near: 80 percent of it or more are taken; met: all of it.",
        accounts,
        "use",
    )
    yield _gauge(
        "duly_quota_highest_ratio",
        "The largest part of its monthly quota that an account has taken; 0: none has one.",
        [] if seen is None else [((), seen.highest)],
    )


def _snapshot(figures: Figures | None, holder: SnapshotHolder | None) -> Iterable[Metric]:
    """Of one holder only, the worst: its name changes, the number of series does not grow with the sessions."""
    labels = ("kind", "name", "role")
    who = () if holder is None else (holder.kind, holder.name, holder.role or "")
    seconds = None if holder is None else holder.seconds
    yield _gauge(
        "duly_oldest_snapshot_seconds",
        "For how long vacuum has been held back, and by whom; 0: by nobody. Absent where the server does not know.",
        [] if figures is None or (holder and seconds is None) else [(who or ("", "", ""), seconds or 0.0)],
        *labels,
    )
    yield _gauge(
        "duly_oldest_snapshot_transactions",
        "Transactions begun since then.",
        [] if figures is None else [(who or ("", "", ""), 0.0 if holder is None else float(holder.transactions))],
        *labels,
    )
    yield _gauge(
        "duly_oldest_snapshot_pid",
        "The server process that holds it; 0: none.",
        [] if figures is None else [((), float((holder and holder.pid) or 0))],
    )


def _gauge(name: str, what: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
