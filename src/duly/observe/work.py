"""What a worker process does: claims, attempts, settles, rescues, slots."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from duly.model.jobs import ClaimedJob
from duly.model.settlement import Settlement
from duly.model.states import DeadReason
from duly.observe.labels import Bounded
from duly.queue import Rescued

QUEUES_AT_MOST = 30
OUTCOMES_AT_MOST = 30
_REFUSED = "target_not_allowed"

_STATEMENT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_DELAY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
_ATTEMPT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_BATCH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class WorkMetrics:
    """The observer of one worker process (see `duly.worker.Observer`) and of its rescues."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queue = Bounded(QUEUES_AT_MOST)
        self._outcome = Bounded(OUTCOMES_AT_MOST)
        self._claim_seconds = Histogram(
            "duly_claim_seconds", "How long a claim took to be answered.", registry=registry, buckets=_STATEMENT_S
        )
        self._claimed = Counter("duly_jobs_claimed", "Jobs claimed.", ["queue"], registry=registry)
        self._start_delay = Histogram(
            "duly_start_delay_seconds",
            "From a job's time to its first claim, by the database's clock.",
            ["queue"],
            registry=registry,
            buckets=_DELAY_S,
        )
        self._attempts = Counter(
            "duly_attempts", "Attempts settled, by how they ended.", ["outcome"], registry=registry
        )
        self._attempt_seconds = Histogram(
            "duly_attempt_seconds", "How long an attempt of an HTTP job took.", registry=registry, buckets=_ATTEMPT_S
        )
        self._ways = Counter("duly_jobs_settled", "Jobs settled, by the way they went.", ["way"], registry=registry)
        self._dead = Counter("duly_jobs_dead", "Jobs that became dead letters.", ["reason"], registry=registry)
        self._refused_targets = Counter(
            "duly_targets_refused", "Attempts whose target the egress policy does not allow.", registry=registry
        )
        self._settle_seconds = Histogram(
            "duly_settle_seconds", "How long a settle took.", registry=registry, buckets=_STATEMENT_S
        )
        self._settle_batch = Histogram(
            "duly_settle_batch_size", "Outcomes written by one settle.", registry=registry, buckets=_BATCH
        )
        self._refused = Counter(
            "duly_settles_refused", "Outcomes refused because the lease was lost.", registry=registry
        )
        self._expired = Counter(
            "duly_leases_expired",
            "Leases that ended without a settle: the worker was lost, or held the job past its deadline.",
            ["outcome"],
            registry=registry,
        )
        self._slots = Gauge("duly_worker_slots", "Jobs that this worker may hold at once.", registry=registry)
        self._slots_used = Gauge(
            "duly_worker_slots_used",
            "Slots in use: jobs that run, and outcomes on their way to the database.",
            registry=registry,
        )
        for reason in DeadReason:
            self._dead.labels(reason.value)
        for outcome in ("worker_lost", "timeout"):
            self._expired.labels(outcome)

    def watch_slots(self, total: int, used: Callable[[], int]) -> None:
        """`used` is asked at each scrape."""
        self._slots.set(total)
        self._slots_used.set_function(used)

    def claimed(self, jobs: Sequence[ClaimedJob], took_s: float) -> None:
        self._claim_seconds.observe(took_s)
        delays = {}  # a look-up of a label costs as much as what is noted under it
        for queue, number in Tally(job.queue for job in jobs).items():
            name = self._queue(queue)
            self._claimed.labels(name).inc(number)
            delays[queue] = self._start_delay.labels(name)
        for job in jobs:
            if job.attempt == 1:
                delays[job.queue].observe(max(0.0, job.age.total_seconds()))

    def settled(self, batch: Sequence[Settlement], refused: frozenset[UUID], took_s: float) -> None:
        self._settle_seconds.observe(took_s)
        self._settle_batch.observe(len(batch))
        written = [one for one in batch if one.job_id not in refused] if refused else batch
        for way, number in Tally(one.edge for one in written).items():
            self._ways.labels(way).inc(number)
        for outcome, number in Tally(_outcome(one) for one in written).items():
            if outcome is not None:
                self._attempts.labels(self._outcome(outcome)).inc(number)
                if outcome == _REFUSED:
                    self._refused_targets.inc(number)
        for reason, number in Tally(
            one.reason or DeadReason.ATTEMPTS_EXHAUSTED for one in written if one.edge == "dead"
        ).items():
            self._dead.labels(reason.value).inc(number)
        for one in written:
            if one.report is not None and one.report.duration is not None:
                self._attempt_seconds.observe(one.report.duration.total_seconds())
        if refused:
            self._refused.inc(len(refused))

    def rescued(self, lost: Sequence[Rescued]) -> None:
        """Leases that upkeep found expired."""
        for outcome, number in Tally(one.outcome for one in lost).items():
            self._expired.labels(outcome).inc(number)
            self._attempts.labels(self._outcome(outcome)).inc(number)
        for one in lost:
            if one.way == "dead":
                is_lost = one.outcome == "worker_lost"
                self._dead.labels((DeadReason.WORKER_LOST if is_lost else DeadReason.ATTEMPTS_EXHAUSTED).value).inc()


def _outcome(one: Settlement) -> str | None:
    """As the ledger has it; None: no attempt was made."""
    if one.report is not None:
        return one.report.result
    return "success" if one.edge == "succeeded" else None
