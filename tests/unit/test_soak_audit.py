"""The soak's audit finds what it is there to find: a judge that never convicts proves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest
from bench.soaking.audit import Attempt, End, Facts, Job, judge
from bench.soaking.journal import Entry, What

JOB = UUID(int=7)
OTHER = UUID(int=8)
SUCCEEDED = End("succeeded", None, 1)


def entry(what: What, at_s: float, attempt: int = 1, process: int = 1, note: str = "-", job: UUID = JOB) -> Entry:
    return Entry(what, job, attempt, process, at_s, note)


def attempt(outcome: str, finished_at_s: float, next_run_at_s: float | None = None, worker_id: int = 100) -> Attempt:
    return Attempt(worker_id, outcome, finished_at_s, next_run_at_s)


# one job that ran once, without trouble
WELL = [
    entry("registered", 0.0, note="100"),
    entry("acknowledged", 1.0, process=9),
    entry("start", 2.0),
    entry("end", 3.0, note="Success"),
]
FACTS = Facts(
    jobs={JOB: Job("quick", "default", 1.0, 1.0)},
    attempts={(JOB, 1): attempt("success", 3.1)},
    ends={JOB: SUCCEEDED},
    faults={},
    elsewhere=0,
)
# the same job when its first lease was lost
LOST = replace(
    FACTS,
    attempts={(JOB, 1): attempt("worker_lost", 10.0, 11.0), (JOB, 2): attempt("success", 12.5, worker_id=200)},
    ends={JOB: End("succeeded", None, 2)},
)
AGAIN = [entry("start", 12.0, 2, 2), entry("end", 12.4, 2, 2, "Success")]


def names(entries: Iterable[Entry], facts: Facts = FACTS) -> set[str]:
    """What is wrong."""
    return {name for name, n in judge(entries, facts).violations.items() if n}


def test_a_sound_run_has_no_violation() -> None:
    """One acknowledged job, one execution, one outcome."""
    audit = judge(WELL, FACTS)
    assert audit.violations == {}
    assert (audit.acknowledged, audit.executions, audit.extra.total(), audit.overlaps) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([entry("start", 2.0), entry("gone", 5.0, note="-9")], id="killed in the middle"),
        pytest.param(
            [entry("start", 2.0), entry("end", 3.0, note="Success"), entry("gone", 3.0, note="-9")],
            id="killed before it settled",
        ),
        pytest.param(
            [
                entry("start", 2.0),
                entry("stopped", 2.5),
                entry("continued", 14.0),
                entry("end", 14.5, note="Success"),
                entry("refused", 14.6),
            ],
            id="stopped past its lease, and refused",
        ),
        pytest.param([entry("start", 2.0), entry("fenced", 9.0), entry("end", 9.1, note="aborted")], id="fenced"),
        pytest.param([entry("registered", 0.5, note="100"), entry("gone", 2.0, note="-9")], id="never started"),
    ],
)
def test_a_second_run_after_a_lost_lease_is_explained(before: list[Entry]) -> None:
    """The ledger says worker_lost, and the process had a cause."""
    assert names([WELL[0], WELL[1], *before, *AGAIN], LOST) == set()


def test_an_overlap_is_counted_and_allowed_only_while_the_earlier_one_was_stopped() -> None:
    """Two processes run one job at the same moment: by a stop that is explained, otherwise by nothing."""
    start, end, refused = entry("start", 2.0), entry("end", 14.5, note="Success"), entry("refused", 14.6)
    stop = [entry("stopped", 2.5), entry("continued", 14.0)]
    audit = judge([*WELL[:2], start, *stop, *AGAIN, end, refused], LOST)
    assert (audit.overlaps, audit.violations) == (1, {})
    assert names([*WELL[:2], start, *AGAIN, end, refused], LOST) == {
        "an overlap that nothing explains",
        "a lease lost without a cause",
    }


def test_what_is_wrong_is_found() -> None:
    """Each thing that must never be, one by one."""
    twice = [*WELL, entry("start", 4.0, process=2), entry("end", 5.0, process=2, note="Success")]
    assert "an attempt started more than once" in names(twice)
    assert names([*WELL, entry("acknowledged", 1.0, job=OTHER)]) == {"acknowledged and not final"}
    assert names(WELL, replace(FACTS, faults={"jobs_nowhere": 1}, elsewhere=2)) == {
        "conservation: jobs_nowhere",
        "not final after the drain",
    }
    assert names(WELL, replace(FACTS, ends={JOB: End("cancelled", None, 1)})) == {"a wrong end"}
    assert names([*WELL, entry("cancel", 1.5)], replace(FACTS, ends={JOB: End("cancelled", None, 1)})) == set()
    assert names(WELL, replace(FACTS, ends={JOB: End("succeeded", None, 2)})) == {"a ledger with a gap"}
    assert names(WELL[:2]) == {"an outcome without an execution"}
    assert names(WELL[:3]) == {"an execution that never ended", "an outcome that the handler did not return"}
    assert names([*WELL, *AGAIN]) == {"an execution that no ledger knows"}
    assert names(WELL, replace(FACTS, jobs={JOB: Job("quick", "default", 2.5, 1.0)})) == {"started before it was due"}
    early = [*WELL[:3], entry("gone", 5.0), *(e._replace(at_s=e.at_s - 2.0) for e in AGAIN)]
    assert names(early, LOST) == {"started before it was due"}
    assert names([*WELL, *AGAIN], LOST) == {
        "an extra execution that nothing explains",
        "a lease lost without a cause",
    }
    assert names(WELL, replace(FACTS, attempts={(JOB, 1): attempt("expired", 3.0)})) == {
        "an extra execution that nothing explains"
    }


def test_lateness_is_taken_of_first_runs_that_were_due_in_quiet_times() -> None:
    """From the time it was due to its start."""
    assert judge(WELL, FACTS, [(0.5, 1.5)]).lateness_s == [1.0]
    assert judge(WELL, FACTS, [(1.5, 2.5)]).lateness_s == []
