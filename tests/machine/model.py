"""What must be: a pure model of jobs, workers and open transactions.

Times are seconds from now and move by whole hours only, so that the seconds a run takes decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple
from uuid import UUID

from duly.model import NewJob, Settlement
from duly.queue import Owner

HOUR_S = 3600.0
WINDOW_S = 60.0  # how far back a promote looks without a sweep
FORGOTTEN_S = 24 * HOUR_S  # how long after its lease a worker that holds nothing is forgotten
INTERRUPTIONS = 10  # how many are not counted against the budget

Place = Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]


class Entry(NamedTuple):
    """One row of a job's ledger."""

    number: int
    trigger: str
    outcome: str
    worker: int


@dataclass(frozen=True, slots=True)
class Job:
    """A job, where it is, and all that ever happened to it.

    `attempt` is the attempt to come (scheduled, ready), the one that runs, or the last that ran (final). `row` counts
    the rows that held the job: a statement that waited for one does not find the next.
    """

    owner: Owner
    spec: NewJob
    place: Place
    attempt: int
    final_attempt: int
    trigger: str = "schedule"
    due_in_s: float = 0.0  # scheduled
    deadline_in_s: float = 0.0  # running
    age_s: float = 0.0  # since it was first due, or redriven
    worker: int | None = None
    cancel_requested: bool = False
    abort_requested: bool = False
    reason: str | None = None
    ledger: tuple[Entry, ...] = ()
    claims: tuple[int, ...] = ()  # attempt numbers, once per claim
    releases: tuple[int, ...] = ()  # those that never started, whose number is given out again
    redrives: frozenset[int] = frozenset()
    row: int = 0

    @property
    def id(self) -> UUID:
        return self.spec.id

    @property
    def final(self) -> bool:
        return self.place in ("succeeded", "dead", "cancelled")

    @property
    def started(self) -> int:
        """How many attempts were started."""
        return self.attempt - 1 if self.place in ("scheduled", "ready") else self.attempt

    @property
    def lane(self) -> tuple[int, int, str, str, str]:
        spec = self.spec
        return self.owner.account_id, self.owner.project_id, spec.queue, spec.kind, spec.concurrency_key or ""

    def holds(self, worker: int, attempt: int) -> bool:
        """The fencing token of this job, and whose it is."""
        return self.place == "running" and (self.worker, self.attempt) == (worker, attempt)


def enqueued(owner: Owner, spec: NewJob, run_in_s: float) -> Job:
    place: Place = "scheduled" if run_in_s > 0 else "ready"
    return Job(owner, spec, place, 1, spec.retry.max_attempts, due_in_s=run_in_s, age_s=-run_in_s)


def claimed(job: Job, worker: int) -> Job:
    return _to(job, "running", worker=worker, deadline_in_s=HOUR_S, claims=(*job.claims, job.attempt))


def promoted(job: Job) -> Job:
    return _to(job, "ready")


def run_now(job: Job) -> Job:
    return _to(job, "ready", trigger="manual")


def cancelled(job: Job, abort: bool) -> Job:
    """Scheduled or ready: it ends. Running: asked to go no further, and with `abort` to stop."""
    if job.place == "running":
        return replace(job, cancel_requested=True, abort_requested=job.abort_requested or abort)
    return _to(job, "cancelled", attempt=job.attempt - 1)


def redriven(job: Job) -> Job:
    """A fresh budget; numbers go on."""
    return _to(
        job,
        "ready",
        attempt=job.attempt + 1,
        final_attempt=job.attempt + job.spec.retry.max_attempts,
        trigger="redrive",
        reason=None,
        age_s=0.0,
        redrives=job.redrives | {job.attempt},
    )


def rescued(job: Job, outcome: str) -> Job:
    """The attempt counts: back after a while, or the end if it was the last or nobody wants it any more."""
    job = _recorded(job, outcome)
    if job.cancel_requested:
        return _to(job, "cancelled")
    if job.attempt >= job.final_attempt:
        return _to(job, "dead", reason="worker_lost" if outcome == "worker_lost" else "attempts_exhausted")
    return _to(job, "scheduled", attempt=job.attempt + 1, trigger="recovery", due_in_s=HOUR_S)


def settled(job: Job, how: Settlement) -> Job:
    """How the attempt ended, by the worker that holds it."""
    forgiven = sum(entry.outcome == "interrupted" for entry in job.ledger) < INTERRUPTIONS
    outcome = _outcome(how)
    job = replace(job, releases=(*job.releases, job.attempt)) if outcome is None else _recorded(job, outcome)
    last = job.attempt if outcome is not None else job.attempt - 1  # one that never started is not counted
    if how.edge == "succeeded" or how.edge == "cancelled":
        return _to(job, how.edge, attempt=last)
    if job.cancel_requested:
        return _to(job, "cancelled", attempt=last)
    match how.edge:
        case "dead":
            return _to(job, "dead", attempt=last, reason=None if how.reason is None else how.reason.value)
        case "retry":
            delay_s = how.delay.total_seconds()
            return _to(job, "scheduled", attempt=job.attempt + 1, trigger="retry", due_in_s=delay_s)
        case "snooze":
            return _to(
                job,
                "scheduled",
                attempt=job.attempt + 1,
                final_attempt=job.final_attempt + 1,
                trigger="schedule",
                due_in_s=how.delay.total_seconds(),
            )
        case "hold":
            return _to(job, "scheduled", due_in_s=how.delay.total_seconds())
        case "interrupted" if forgiven:
            final = job.final_attempt + 1
            return _to(job, "ready", attempt=job.attempt + 1, final_attempt=final, trigger="recovery")
        case "interrupted" if job.attempt >= job.final_attempt:
            return _to(job, "dead", attempt=last, reason="attempts_exhausted")
        case "interrupted":
            return _to(job, "ready", attempt=job.attempt + 1, trigger="recovery")
        case "release":
            return _to(job, "ready")


_OUTCOMES = {"succeeded": "success", "cancelled": "cancelled", "snooze": "snoozed", "interrupted": "interrupted"}


def _outcome(how: Settlement) -> str | None:
    """What the ledger calls it; None: no row."""
    if how.report is not None and how.edge not in ("snooze", "interrupted"):
        return how.report.result
    return _OUTCOMES.get(how.edge)


def _recorded(job: Job, outcome: str) -> Job:
    assert job.worker is not None
    return replace(job, ledger=(*job.ledger, Entry(job.attempt, job.trigger, outcome, job.worker)))


def _to(job: Job, place: Place, **changes: object) -> Job:
    if place != "running":
        changes |= {"worker": None, "cancel_requested": False, "abort_requested": False}
    return replace(job, place=place, row=job.row + 1, **changes)  # type: ignore[arg-type]


@dataclass
class World:
    """Everything committed, and for each open transaction what it has written and nobody else sees."""

    jobs: dict[UUID, Job] = field(default_factory=dict)
    workers: dict[int, float] = field(default_factory=dict)  # id → seconds until its lease ends
    open: dict[str, dict[UUID, Job]] = field(default_factory=dict)

    def view(self, session: str | None) -> View:
        """As a session sees it; None: one without an open transaction."""
        return View(self, session)

    def commit(self, session: str) -> None:
        self.jobs |= self.open.pop(session)

    def roll_back(self, session: str) -> None:
        del self.open[session]

    def pass_time(self, seconds: float) -> None:
        """Rows that no open transaction holds, and all workers; backwards if negative."""
        for job in list(self.view(None).free()):
            if job.place == "scheduled":
                self.jobs[job.id] = replace(job, due_in_s=job.due_in_s - seconds)
            elif job.place == "running":
                self.jobs[job.id] = replace(job, deadline_in_s=job.deadline_in_s - seconds)
        self.workers = {worker: left - seconds for worker, left in self.workers.items()}


@dataclass(frozen=True)
class View:
    """What a session sees and where it writes: under READ COMMITTED all that is committed and its own."""

    world: World
    session: str | None

    def get(self, job_id: UUID) -> Job | None:
        return self._own.get(job_id) or self.world.jobs.get(job_id)

    def put(self, job: Job) -> None:
        self._own[job.id] = job

    def jobs(self, wanted: Callable[[Job], bool] = lambda job: True) -> list[Job]:
        """In the order of their ids, which is the order in which they were made."""
        return [job for _, job in sorted({**self.world.jobs, **self._own}.items()) if wanted(job)]

    def free(self) -> Iterator[Job]:
        """Jobs whose rows no other transaction holds."""
        return (job for job in self.jobs() if self.holder(job.id) is None)

    def holder(self, job_id: UUID) -> str | None:
        """The other session whose transaction holds the job's row. Whatever it wrote, it took the row for it."""
        return next((s for s, own in self.world.open.items() if s != self.session and job_id in own), None)

    @property
    def _own(self) -> dict[UUID, Job]:
        return self.world.jobs if self.session is None else self.world.open.get(self.session, {})

    def alive(self, worker: int) -> bool:
        return self.world.workers.get(worker, -1.0) > 0
