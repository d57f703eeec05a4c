"""`python -m matrix [NAME …]`: run all cells, or those whose name begins so, and write the page after a full run."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.console import Console

from matrix.cells import CELLS, Cell
from matrix.page import Result, show, write
from matrix.servers import run_apart, server


def main() -> int:
    """0 when every cell passed."""
    parser = argparse.ArgumentParser(prog="python -m matrix", description="Meet every fault at every step.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of cells' names; none: all, and the page")
    parser.add_argument("--at-once", type=int, default=4, help="how many cells run at the same time")
    told = parser.parse_args()
    cells = [cell for cell in CELLS if not told.names or cell.name.startswith(tuple(told.names))]
    if not cells:
        parser.error(f"no cell's name begins with {' or '.join(told.names)}")

    console, began = Console(width=200), time.monotonic()
    with server(mortal=False) as shared:
        results = sorted(_results(cells, shared.dsn(), told.at_once, console), key=lambda r: cells.index(r.cell))
        version = shared.version
    show(results, time.monotonic() - began, console)
    if not told.names:
        console.print(f"Written: {write(results, version)}", highlight=False)
    return 0 if all(result.passed for result in results) else 1


def _results(cells: list[Cell], dsn: str, at_once: int, console: Console) -> Iterator[Result]:
    """Each cell's result as it comes; restarts first, since they take longest."""
    order = sorted(cells, key=lambda cell: not cell.restarts)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context) as pool:
        for future in as_completed([pool.submit(run_apart, cell, dsn) for cell in order]):
            result = Result(*future.result())
            if not result.passed:
                console.print(f"[red]{result.cell.name}[/red]: {'; '.join(result.problems)}", highlight=False)
                console.print(result.seen.log, markup=False, highlight=False)
            yield result


if __name__ == "__main__":
    sys.exit(main())
