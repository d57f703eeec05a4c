"""The verdict of the crash matrix bites: each kind of wrong is told, and a right run has no problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest

from matrix.cells import LOST, Cell, Fault, Step
from matrix.judging import Seen, problems

_JOB = UUID(int=7)
_CELL = Cell(
    "settle", Step.BEFORE, Fault.STOP, "rescued and run elsewhere", ledgers=(LOST,), runs=(2, 2), says="refused"
)


def seen_right() -> Seen:
    """A run of the cell as it must be."""
    return Seen(
        jobs=[_JOB],
        acknowledged={_JOB},
        states={_JOB: "succeeded"},
        ledger={_JOB: [(1, "worker_lost"), (2, "success")]},
        starts=Counter({(_JOB, 1): 1, (_JOB, 2): 1}),
        committed=False,
        looks=10,
    )


def _set(name: str, value: object) -> Callable[[Seen], None]:
    return lambda seen: setattr(seen, name, value)


def test_a_right_run_has_no_problem() -> None:
    """So that the other tests here see one thing wrong each."""
    assert problems(_CELL, seen_right()) == []


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (_set("states", {}), "jobs lost"),
        (_set("states", {_JOB: "dead"}), "is dead, not succeeded"),
        (_set("acknowledged", {_JOB, UUID(int=8)}), "1 jobs lost"),
        (_set("ledger", {_JOB: [(1, "success")]}), "has the attempts"),
        (_set("ledger", {_JOB: [(1, "worker_lost"), (3, "success")]}), "attempt numbers"),
        (_set("ledger", {_JOB: [(1, "error"), (2, "success")]}), "does not say why"),
        (_set("starts", Counter({(_JOB, 1): 1, (_JOB, 2): 2})), "started 2 times"),
        (_set("starts", Counter({(_JOB, 2): 1})), "ran 1 times"),
        (_set("starts", Counter({(_JOB, 1): 1, (_JOB, 3): 1})), "attempt 3"),
        (_set("committed", True), "it was committed"),
        (_set("faults", ["conservation: {'jobs_nowhere': 1}"]), "jobs_nowhere"),
        (_set("changed", True), "changed afterwards"),
        (_set("said", False), "never said"),
        (_set("exit_code", 1), "exit code"),
        (_set("answers", {"conflict"}), "were told"),
        (_set("looks", 0), "looked at 0 times"),
        (_set("trouble", "TimeoutError"), "TimeoutError"),
    ],
)
def test_each_wrong_is_told(wrong: Callable[[Seen], None], word: str) -> None:
    """One thing is changed in a right run."""
    seen = seen_right()
    wrong(seen)
    assert any(word in problem for problem in problems(_CELL, seen))
