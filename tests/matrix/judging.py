"""The verdict on a cell: what was seen against what must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from matrix.cells import Cell, Fault, Step

_EXPLAINS = ("worker_lost", "interrupted")


@dataclass
class Seen:
    """What one run of a cell left behind.

    `starts`: how often each attempt's handler was started, in whichever process. `committed`: what the database showed
    while the fault was on. `faults`: conservation faults, with the moment at which they were seen. `changed`: what was
    final changed afterwards.
    """

    jobs: list[UUID] = field(default_factory=list)
    acknowledged: set[UUID] = field(default_factory=set)
    states: dict[UUID, str] = field(default_factory=dict)
    ledger: dict[UUID, list[tuple[int, str]]] = field(default_factory=dict)
    starts: Counter[tuple[UUID, int]] = field(default_factory=Counter)
    committed: bool | None = None
    faults: list[str] = field(default_factory=list)
    looks: int = 0
    answers: set[str] = field(default_factory=set)
    said: bool = True
    exit_code: int = 0
    changed: bool = False
    trouble: str | None = None
    log: str = ""

    def runs(self, job: UUID) -> int:
        return sum(n for (started, _), n in self.starts.items() if started == job)

    @property
    def executions(self) -> int:
        return sum(self.starts.values())

    @property
    def duplicates(self) -> int:
        """Executions beyond each job's first."""
        return sum(max(self.runs(job) - 1, 0) for job in self.jobs)

    @property
    def lost(self) -> int:
        """Jobs that somebody was told of and that are not final."""
        return len((self.acknowledged | set(self.jobs)) - self.states.keys())


def problems(cell: Cell, seen: Seen) -> list[str]:
    """Everything that is not as it must be; none: the cell passed."""
    if seen.trouble is not None:
        return [seen.trouble, *seen.faults]
    return [
        *seen.faults,
        *_of_the_fault(cell, seen),
        *(problem for job in seen.jobs for problem in _of_a_job(cell, seen, job)),
        *([f"{seen.lost} jobs lost"] if seen.lost else []),
        *([f"conservation was looked at {seen.looks} times only"] if seen.looks < 3 else []),
        *(["what was final changed afterwards"] if seen.changed else []),
    ]


def _of_the_fault(cell: Cell, seen: Seen) -> Iterator[str]:
    expected = cell.step is Step.AFTER or (cell.step is Step.INSIDE and cell.at_once)
    if seen.committed is not None and seen.committed != expected:
        yield f"at the fault it was{'' if seen.committed else ' not'} committed"
    if seen.answers != cell.answers:
        yield f"clients were told {sorted(seen.answers)}, not {sorted(cell.answers)}"
    if not seen.said:
        yield f"the victim never said {cell.says!r}"
    if cell.fault is not Fault.KILL and seen.exit_code not in cell.exits:
        yield f"the victim's exit code is {seen.exit_code}, not {cell.exits}"


def _of_a_job(cell: Cell, seen: Seen, job: UUID) -> Iterator[str]:
    rows = seen.ledger.get(job, [])
    outcomes = tuple(outcome for _, outcome in rows)
    if seen.states.get(job) != cell.state:
        yield f"{job} is {seen.states.get(job, 'not final')}, not {cell.state}"
    if outcomes not in cell.ledgers:
        yield f"{job} has the attempts {outcomes}, not {' or '.join(map(str, cell.ledgers))}"
    if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
        yield f"{job} has the attempt numbers {[number for number, _ in rows]}"
    runs = seen.runs(job)
    if not cell.runs[0] <= runs <= cell.runs[1]:
        yield f"{job} ran {runs} times, not {cell.runs[0]} to {cell.runs[1]}"
    if runs > 1 + sum(outcome in _EXPLAINS for outcome in outcomes):
        yield f"{job} ran {runs} times, and the ledger {outcomes} does not say why"
    known = {(job, number) for number, _ in rows}
    for (started, number), times in seen.starts.items():
        if started == job and (times > 1 or (started, number) not in known):
            yield f"attempt {number} of {job} started {times} times; the ledger has {rows}"
