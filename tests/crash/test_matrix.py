"""The crash matrix, shortened: every kind of fault, where most can go wrong. `make crash` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from duly.embedded import EmbeddedPostgres
from matrix.cells import CELLS, RESTARTS, Cell, Fault
from matrix.judging import problems
from matrix.running import run_cell

_SHORT = (
    "enqueue-inside-cut",
    "enqueue-after-answer_lost",
    "promote-inside-kill",
    "claim-after-kill",
    "claim-after-answer_lost",
    "claim-after-crash",
    "execution-inside-away",
    "settle-before-stop",
    "settle-inside-fast",
    "settle-inside-disk_full",
    "heartbeat-before-question_lost",
    "rescue-inside-kill",
    "retire-before-stop",
    "raise-floor-inside-kill",
    "redrive-after-kill",
    "drain-deregister-after-kill",
)
_CELLS = {cell.name: cell for cell in CELLS}
_RESTARTING = [name for name in _SHORT if _CELLS[name].restarts]
_OTHERS = [name for name in _SHORT if not _CELLS[name].restarts]


@pytest.mark.parametrize("name", _OTHERS)
async def test_a_fault_at_this_step_loses_nothing(name: str, database_url: str, tmp_path: Path) -> None:
    """The cell's expectation holds: final state, executions, ledger, conservation, late writes refused."""
    await _passes(_CELLS[name], database_url, tmp_path)


@pytest.mark.parametrize("name", _RESTARTING)
async def test_a_server_restarted_at_this_step_loses_nothing(
    name: str, mortal_cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The same, on a server that is killed or stopped, and started again."""
    await _passes(_CELLS[name], mortal_cluster.dsn(), tmp_path, mortal_cluster)


def test_the_short_matrix_has_every_kind_of_fault() -> None:
    """And the long one has every step of an engine call for SIGKILL, in every path that has them."""
    assert {_CELLS[name].fault for name in _SHORT} == set(Fault)
    assert set(RESTARTS) <= {cell.fault for cell in CELLS}
    whole = {cell.path for cell in CELLS} - {"drain, job runs"}
    assert all(len({c.step for c in CELLS if c.path == path and c.fault is Fault.KILL}) == 3 for path in whole)
    assert len(_CELLS) == len(CELLS), "two cells have the same name"


async def _passes(cell: Cell, dsn: str, folder: Path, server: EmbeddedPostgres | None = None) -> None:
    seen = await run_cell(cell, dsn, folder, server)
    assert problems(cell, seen) == [], seen.log
