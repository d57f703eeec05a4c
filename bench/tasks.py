"""Python functions as jobs: no-op tasks a second by one worker process, and enqueues a second, beside Procrastinate
and PGQueuer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from bench.draining import DULY, Drain, Line, check_all_succeeded, drained
from bench.figures import Spread, ratio
from bench.finding import Finding, Row
from bench.pgqueuer_process import BEGAN, LEFT
from bench.processes import Child, child
from bench.setting import Place, Setting, analyze
from bench.tally import Tally
from bench.task_process import SYSTEMS, installed
from duly.queue import Database

ROUNDS = 3
WAYS = ("async", "sync")
GOAL = 1.0

_LINES = {
    "duly": DULY,
    "procrastinate": Line(
        "select clock_timestamp() where not exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        "select $1::timestamptz",  # its jobs are deleted with their events as they end: from the worker's start on
    ),
    "pgqueuer": Line(LEFT, BEGAN),
}
_DRAINED = {"duly": 60_000, "procrastinate": 5_000, "pgqueuer": 60_000}
_SINGLE = {"duly": 3_000, "procrastinate": 3_000, "pgqueuer": 3_000}
_BULK = 60_000


async def run(setting: Setting) -> Finding:
    """Round by round, each system on a fresh database: enqueue one by one, in bulk, drain async tasks, drain sync
    ones.
    """
    share = 10 if setting.quick else 1
    systems = [system for system in SYSTEMS if installed(system)]
    rounds: list[dict[str, Any]] = []
    for _ in range(1 if setting.quick else ROUNDS):
        for system in systems:
            measured: dict[str, Any] = {"system": system}
            measured["single_per_second"] = await _enqueued(setting, system, "single", _SINGLE[system] // share)
            measured["bulk_per_second"] = await _enqueued(setting, system, "bulk", _BULK // share)
            for way in WAYS:
                drain = await _drained(setting, system, way, _DRAINED[system] // share)
                measured[f"{way}_per_second"], measured[f"{way}_client_us"] = drain.rate, drain.client_us
            rounds.append(measured)
    return _finding(rounds, systems)


async def _enqueued(setting: Setting, system: str, step: str, count: int) -> float:
    async with setting.database(migrated=system == "duly") as place:
        await _step(setting, place, system, "install")
        with Tally.make(setting.file("tally")) as tally:
            await _step(setting, place, system, step, count=count, tally=str(tally.file))
            return count / (tally.count / 1_000_000)


async def _drained(setting: Setting, system: str, way: str, count: int) -> Drain:
    async with setting.database(migrated=system == "duly") as place:
        await _step(setting, place, system, "install")
        await _step(setting, place, system, "fill", way=way, count=count)
        await analyze(place.dsn)
        drain = await drained(setting, place, count, _LINES[system], partial(_worker, system, way))
        if system == "duly":
            async with await Database.open(place.dsn) as db:
                await check_all_succeeded(db, count)
        return drain


async def _step(setting: Setting, place: Place, system: str, step: str, way: str = "async", **more: Any) -> None:
    argument = {"dsn": place.dsn, "system": system, "way": way, "step": step, **more}
    async with child("bench.task_process", argument, setting.file(f"{system}-{step}.log")) as process:
        await process.ended(300)


def _worker(system: str, way: str, setting: Setting, place: Place, tally: Tally) -> AbstractAsyncContextManager[Child]:
    argument = {"dsn": place.dsn, "system": system, "way": way, "step": "work", "tally": str(tally.file)}
    return child("bench.task_process", argument, setting.file(f"{system}-{way}.log"))


def _finding(rounds: list[dict[str, Any]], systems: list[str]) -> Finding:
    figures: dict[str, Spread | float] = {}
    for system in systems:
        for name in ("async_per_second", "sync_per_second", "single_per_second", "bulk_per_second"):
            figures[f"{system}_{name}"] = Spread.of(_of(rounds, system, name))
    missing = [system for system in SYSTEMS if system not in systems]
    ratios = {
        peer: ratio(_of(rounds, "duly", "async_per_second"), _of(rounds, peer, "async_per_second"))
        for peer in systems
        if peer != "duly"
    }
    return Finding(
        program="tasks",
        measured="no-op tasks drained by one worker process on a fresh database (jobs ÷ the database's time from the"
        " first claim until nothing was left; Procrastinate from its worker's start, without history), async and sync,"
        " and enqueues by one connection: one a transaction, and 1,000 a statement; the systems alternate.",
        rows=list(_rows(figures, systems)),
        rounds=rounds,
        figures=figures | {f"times_{peer}": value for peer, value in ratios.items()},
        goal=f"at least {GOAL:g} times the async tasks of every peer in the same run",
        met=all(value.median >= GOAL for value in ratios.values()) if ratios else None,
        remarks=[f"{system} is not installed (pip install {system})" for system in missing],
    )


def _of(rounds: list[dict[str, Any]], system: str, name: str) -> list[float]:
    return [measured[name] for measured in rounds if measured["system"] == system]


def _rows(figures: dict[str, Spread | float], systems: list[str]) -> Iterator[Row]:
    for system in systems:
        shown = {}
        for name in ("async", "sync", "single", "bulk"):
            spread = figures[f"{system}_{name}_per_second"]
            assert isinstance(spread, Spread)
            shown[name] = spread.shown()
        yield Row(
            system,
            f"tasks/s: async {shown['async']}, sync {shown['sync']}; "
            f"enqueues/s: single {shown['single']}, bulk {shown['bulk']}",
        )
