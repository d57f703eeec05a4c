"""Does the journal agree with the database? Pure: `judge` takes what both say and returns what cannot be explained.

An execution is *extra* when its attempt did not end with an outcome of its own: the ledger says worker_lost,
interrupted or timeout. Every extra one is a run that a job had because a lease was lost, and must have a cause: its
process died, was stopped, or fenced itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from bench.soaking.journal import Entry
from bench.soaking.orders import LATE_QUEUE, LEASE, may_end

OWN_OUTCOMES = frozenset({"success", "error", "snoozed", "cancelled"})
LOST_OUTCOMES = frozenset({"worker_lost", "interrupted", "timeout"})

_EARLY_S = 0.1  # the two clocks are compared once, at the end
_RESCUE_SLACK_S = 10.0  # a worker that drains takes its row away before it ends
_EXAMPLES = 5
_FOREVER = float("inf")


class Job(NamedTuple):
    """A job as stored. Times are in seconds of the machine's monotonic clock, as in the journal."""

    do: str
    queue: str
    run_at_s: float
    created_at_s: float


class Attempt(NamedTuple):
    """A row of the ledger."""

    worker_id: int
    outcome: str
    finished_at_s: float
    next_run_at_s: float | None


class End(NamedTuple):
    """A final state; `attempt`: the last one that ran."""

    state: str
    reason: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database says after the drain. `elsewhere`: jobs that are not final."""

    jobs: Mapping[UUID, Job]
    attempts: Mapping[tuple[UUID, int], Attempt]
    ends: Mapping[UUID, End]
    faults: Mapping[str, int]
    elsewhere: int


class Execution(NamedTuple):
    """One run of a handler. `how`: its outcome's name, aborted, or died."""

    process: int
    start_s: float
    end_s: float
    how: str


@dataclass(slots=True)
class History:
    """What happened to one process."""

    died_s: float = _FOREVER
    fences: list[float] = field(default_factory=list)
    stops: list[list[float]] = field(default_factory=list)

    def troubled(self, since_s: float, until_s: float) -> bool:
        """Whether it was stopped or fenced itself in that time."""
        return any(since_s <= at_s <= until_s for at_s in self.fences) or any(
            begin <= until_s and end >= since_s for begin, end in self.stops
        )


@dataclass(slots=True)
class Audit:
    """`violations`: name → how often; empty on a sound run. `examples`: some of each, for the person who looks."""

    violations: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: int = 0
    executions: int = 0
    extra: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    overlaps: int = 0
    lateness_s: list[float] = field(default_factory=list)

    def fault(self, name: str, example: object) -> None:
        self.violations[name] += 1
        if len(self.examples[name]) < _EXAMPLES:
            self.examples[name].append(str(example))


class Journals:
    """The journal, sorted by what it is about."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.acknowledged: set[UUID] = set()
        self.cancels: set[UUID] = set()
        self.starts: dict[tuple[UUID, int], list[tuple[int, float]]] = defaultdict(list)
        self.ends: dict[tuple[UUID, int, int], tuple[float, str]] = {}
        self.refused: set[tuple[UUID, int]] = set()
        self.processes: dict[int, History] = defaultdict(History)
        self.registered: dict[int, int] = {}
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        history = self.processes[entry.process]
        match entry.what:
            case "acknowledged":
                self.acknowledged.add(entry.job_id)
            case "cancel":
                self.cancels.add(entry.job_id)
            case "start":
                self.starts[entry.job_id, entry.attempt].append((entry.process, entry.at_s))
            case "end":
                self.ends[entry.job_id, entry.attempt, entry.process] = (entry.at_s, entry.note)
            case "dying" | "gone":
                history.died_s = min(history.died_s, entry.at_s)
            case "registered":
                self.registered[int(entry.note)] = entry.process
            case "fenced":
                history.fences.append(entry.at_s)
            case "refused":
                self.refused.add((entry.job_id, entry.process))
            case "stopped":
                history.stops.append([entry.at_s, _FOREVER])
            case "continued":
                history.stops[-1][1] = entry.at_s

    def execution(self, job_id: UUID, attempt: int, process: int, start_s: float) -> Execution:
        """With its end: as journaled, or its process's."""
        died_s = self.processes[process].died_s
        end_s, how = self.ends.get((job_id, attempt, process), (died_s, "died" if died_s < _FOREVER else "never ended"))
        return Execution(process, start_s, end_s, how)


def judge(entries: Iterable[Entry], facts: Facts, quiet: Sequence[tuple[float, float]] = ()) -> Audit:
    """Check everything. `quiet`: times without trouble, for the lateness of first runs."""
    journals, audit = Journals(entries), Audit()
    audit.acknowledged, audit.refused = len(journals.acknowledged), len(journals.refused)
    for name, count in facts.faults.items():
        audit.violations[f"conservation: {name}"] += count
    if facts.elsewhere:
        audit.violations["not final after the drain"] += facts.elsewhere
    for job_id in journals.acknowledged - facts.ends.keys():
        audit.fault("acknowledged and not final", job_id)
    _check_ends(audit, journals, facts)
    runs: dict[UUID, list[tuple[int, Execution]]] = defaultdict(list)
    for (job_id, attempt), starts in journals.starts.items():
        if len(starts) > 1:
            audit.fault("an attempt started more than once", f"{job_id} {attempt}: {starts}")
        for process, start_s in starts:
            execution = journals.execution(job_id, attempt, process, start_s)
            runs[job_id].append((attempt, execution))
            _check_execution(audit, journals, facts, job_id, attempt, execution)
    for (job_id, attempt), row in facts.attempts.items():
        _check_row(audit, journals, job_id, attempt, row)
    for job_id, its in runs.items():
        _check_overlaps(audit, journals, job_id, its)
    audit.lateness_s = _lateness(journals, facts, quiet)
    return audit


def _check_ends(audit: Audit, journals: Journals, facts: Facts) -> None:
    """Every end is one that the job's order allows, and the ledger has each of its attempts once."""
    numbers: dict[UUID, int] = Counter(job_id for job_id, _ in facts.attempts)
    for job_id, end in facts.ends.items():
        job = facts.jobs.get(job_id)
        if job is None:
            audit.fault("an end without a job", job_id)
        elif not may_end(job.do, end.state, end.reason, job_id in journals.cancels):
            audit.fault("a wrong end", f"{job_id} {job.do}: {end}")
        if numbers[job_id] != end.attempt or (end.attempt and (job_id, end.attempt) not in facts.attempts):
            audit.fault("a ledger with a gap", f"{job_id}: {end}, {numbers[job_id]} attempts recorded")


def _check_execution(
    audit: Audit, journals: Journals, facts: Facts, job_id: UUID, attempt: int, execution: Execution
) -> None:
    audit.executions += 1
    what = f"{job_id} {attempt}: {execution}"
    if execution.how == "never ended":
        audit.fault("an execution that never ended", what)
    job = facts.jobs.get(job_id)
    before = facts.attempts.get((job_id, attempt - 1))
    due_s = job.run_at_s if job and before is None else before.next_run_at_s if before else None
    if due_s is not None and execution.start_s < due_s - _EARLY_S:
        audit.fault("started before it was due", f"{what}, due {due_s}")

    row = facts.attempts.get((job_id, attempt))
    if row is None:
        audit.fault("an execution that no ledger knows", what)
        return
    if row.outcome in OWN_OUTCOMES:
        if (row.outcome == "success") != (execution.how == "Success"):
            audit.fault("an outcome that the handler did not return", f"{what}, recorded {row.outcome}")
        return
    audit.extra[row.outcome] += 1
    if row.outcome not in LOST_OUTCOMES:
        audit.fault("an extra execution that nothing explains", f"{what}, recorded {row.outcome}")
    elif execution.how not in ("died", "aborted") and not (
        (job_id, execution.process) in journals.refused or journals.processes[execution.process].died_s < _FOREVER
    ):
        audit.fault("an extra execution that nothing explains", f"{what}, recorded {row.outcome}, not refused")


def _check_row(audit: Audit, journals: Journals, job_id: UUID, attempt: int, row: Attempt) -> None:
    starts = journals.starts.get((job_id, attempt), [])
    if row.outcome in ("success", "error", "snoozed") and not starts:
        audit.fault("an outcome without an execution", f"{job_id} {attempt}: {row}")
    if row.outcome != "worker_lost":
        return
    process = starts[0][0] if starts else journals.registered.get(row.worker_id)
    since_s = starts[0][1] if starts else -_FOREVER
    history = journals.processes[process] if process is not None else History()
    died = history.died_s < row.finished_at_s + _RESCUE_SLACK_S
    if not died and not history.troubled(since_s - LEASE.total_seconds(), row.finished_at_s + LEASE.total_seconds()):
        audit.fault("a lease lost without a cause", f"{job_id} {attempt}: {row}, process {process}")


def _check_overlaps(audit: Audit, journals: Journals, job_id: UUID, its: list[tuple[int, Execution]]) -> None:
    its.sort(key=lambda run: run[1].start_s)
    for (number, earlier), (_, later) in pairwise(its):
        if later.start_s < earlier.end_s:
            audit.overlaps += 1
            if not journals.processes[earlier.process].troubled(earlier.start_s, earlier.end_s):
                audit.fault("an overlap that nothing explains", f"{job_id} {number}: {earlier}, {later}")


def _lateness(journals: Journals, facts: Facts, quiet: Sequence[tuple[float, float]]) -> list[float]:
    late = []
    for (job_id, attempt), starts in journals.starts.items():
        job = facts.jobs.get(job_id)
        if attempt == 1 and job is not None and job.queue != LATE_QUEUE:
            due_s = max(job.run_at_s, job.created_at_s)
            if any(begin <= due_s <= end for begin, end in quiet):
                late.append(starts[0][1] - due_s)
    return late
