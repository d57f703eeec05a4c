"""`duly top`: the dashboard's first page in a terminal, live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from duly.cli.console import print_json, print_line_of_json, screen, shown, table_of
from duly.cli.opening import open_database
from duly.cli.options import DatabaseUrl, Home, Schema, found_database_url
from duly.cli.owners import AccountOfAll, Project, owner_if_named
from duly.cli.stopping import Stop, run_loop
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, DatabaseClock, Owner
from duly.queue.overview import ProjectName, project_names
from duly.schema import DEFAULT_SCHEMA
from duly.worker.waiting import first_of

if TYPE_CHECKING:
    from duly.dashboard.figures import Figures
    from duly.dashboard.looking import Look

Names = Mapping[int, ProjectName]

_PATIENT_S = 30.0
"""Who looks once waits until everything is known."""
_LINES = 12


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: with --once one document, else one line for each look.")
    ] = False,
    account: AccountOfAll = None,
    project: Project = None,
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
) -> None:
    """Watch it: is it keeping up, what is failing, what to do about it. Ctrl-C leaves."""
    url = found_database_url(database_url, home)
    from duly.dashboard.figures import PATIENCE_S, Figures  # not at the top: other commands need no web framework

    async def main() -> None:
        stop = Stop()
        async with open_database(url, schema, max_size=3, name="duly-top") as db:
            owner = await owner_if_named(db, account, project)
            figures = Figures(db, patience_s=_PATIENT_S if once else PATIENCE_S)
            watch = _Watch(db, figures, owner)
            if once:
                found = await watch.look()
                if as_json:
                    print_json(as_plain(found, watch.names))
                else:
                    screen().print(*frame(found, watch.names), sep="\n")
                return
            await _watch(watch, stop, every, as_json)

    run_loop(main)


class _Watch:
    """Looks again and again, also while the database is away."""

    def __init__(self, db: Database, figures: Figures, owner: Owner | None) -> None:
        self._db = db
        self._figures = figures
        self._owner = owner
        self._clock = DatabaseClock(db)
        self.names: Names = {}

    async def look(self) -> Look:
        from duly.dashboard.looking import look

        await self._clock.look()
        found = await look(self._figures, self._owner, self._clock.now())
        with suppress(DatabaseUnavailableError):
            self.names = await project_names(self._db, (line.project_id for line in found.lines))
        return found


async def _watch(watch: _Watch, stop: Stop, every_s: float, as_json: bool) -> None:
    console = screen()
    if as_json or not console.is_terminal:
        while not stop.draining.is_set():
            found = await watch.look()
            if as_json:
                print_line_of_json(as_plain(found, watch.names))
            else:
                console.print(*frame(found, watch.names), sep="\n")
            await first_of(stop.draining, limit_s=every_s)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not stop.draining.is_set():
            found = await watch.look()
            live.update(Group(*frame(found, watch.names)), refresh=True)
            await first_of(stop.draining, limit_s=every_s)


def frame(found: Look, names: Names) -> Iterator[RenderableType]:
    """What a person sees: what was found, the figures, queues, failures, dead letters, workers."""
    from duly.dashboard.words import age, count, outcome, percent, rate, reason

    seen, recent = found.seen, found.recent
    yield Text(f"{shown(seen.now)}", style="dim")
    yield from _verdict(found)
    capped = "+" if any(line.is_capped for line in found.lines) else ""
    running = count(found.running) + (f" of {count(seen.slots[1])} slots" if seen.slots else "")
    figures = [
        ("waiting", count(seen.waiting) + capped),
        ("oldest due", "-" if seen.oldest is None else f"{age(seen.oldest)} ago"),
        ("running", running),
        ("in, out", f"{rate(found.pace[0])}, {rate(found.pace[1])}" if found.pace else "-"),
    ]
    if found.sizes is not None:
        figures.insert(1, ("for later", count(found.sizes.scheduled)))
    if recent is not None:
        whole = recent.whole
        window = age(recent.every * len(recent.spans))
        share = percent(whole.succeeded / whole.ended if whole.ended else None)
        about = "about " if recent.weight > 1 else ""
        figures += [
            (f"success, {window}", f"{share} of {about}{count(whole.ended)} attempts"),
            ("start delay", f"p50 {age(whole.waited[0])}, p95 {age(whole.waited[1])}" if whole.waited else "-"),
            ("duration", f"p50 {age(whole.took[0])}, p95 {age(whole.took[1])}" if whole.took else "-"),
        ]
    by_reason = ", ".join(f"{reason(name)} {count(number)}" for name, number in found.reasons)
    figures.append(
        ("dead", count(found.letters) + ("+" if found.more_dead else "") + (f": {by_reason}" if by_reason else ""))
    )
    yield table_of(("", ""), figures)
    if found.lines:
        yield Text()
        yield table_of(
            ("queue", "project", "waiting", "oldest due", "running"),
            [
                (
                    line.queue,
                    _named(names, line.project_id),
                    count(line.waiting) + ("+" if line.is_capped else ""),
                    None if line.oldest_at is None else age(seen.now - line.oldest_at),
                    count(line.running),
                )
                for line in found.lines[:_LINES]
            ],
        )
    if recent is not None and recent.failing:
        yield Text()
        yield table_of(
            ("failing at", "how", "attempts"),
            [
                (one.host, f"{outcome(one.outcome)} {one.status_code or ''}".rstrip(), count(one.failed))
                for one in recent.failing[:_LINES]
            ],
        )
    if found.workers:
        yield Text()
        yield table_of(
            ("worker", "alive", "slots", "seen"),
            [
                (one.name, "yes" if one.alive else "silent", one.concurrency, f"{age(seen.now - one.heartbeat_at)} ago")
                for one in sorted(found.workers, key=lambda worker: (not worker.alive, worker.name))[:_LINES]
            ],
        )


def _verdict(found: Look) -> Iterator[RenderableType]:
    for finding in found.findings:
        mark, style = ("✕", "bold red") if finding.level == "bad" else ("!", "yellow")
        yield Text(f"{mark} {shown(finding.what)} ", style=style).append(shown(finding.do), style="not bold default")
    if not found.findings:
        yield Text("✓ All is well." if found.known else "Looking…", style="green" if found.known else "dim")
    for text in found.trouble:
        yield Text(f"Not all of it is of this moment: {text}.", style="yellow")


def as_plain(found: Look, names: Names) -> dict[str, Any]:
    """The same for scripts: durations in seconds, counts as numbers, `…_is_more` where there are at least so many."""
    seen, recent = found.seen, found.recent
    whole = None if recent is None else recent.whole
    return {
        "at": seen.now,
        "known": found.known,
        "findings": [{"level": one.level, "what": one.what, "do": one.do} for one in found.findings],
        "trouble": list(found.trouble),
        "waiting": seen.waiting,
        "waiting_is_more": any(line.is_capped for line in found.lines),
        "scheduled": None if found.sizes is None else found.sizes.scheduled,
        "oldest_due_seconds": seen.oldest,
        "running": found.running,
        "slots": seen.slots[1] if seen.slots else None,
        "arrived_per_second": found.pace[0] if found.pace else None,
        "ended_per_second": found.pace[1] if found.pace else None,
        "window_seconds": None if recent is None else recent.every * len(recent.spans),
        "attempts": None if whole is None else whole.ended,
        "attempts_are_estimated": recent is not None and recent.weight > 1,
        "success_rate": whole.succeeded / whole.ended if whole and whole.ended else None,
        "start_delay_seconds": _quantiles(whole.waited if whole else None),
        "duration_seconds": _quantiles(whole.took if whole else None),
        "queues": [
            {
                "account": names[line.project_id].account if line.project_id in names else None,
                "project": names[line.project_id].project if line.project_id in names else None,
                "queue": line.queue,
                "waiting": line.waiting,
                "oldest_due_seconds": _since(seen.now, line.oldest_at),
                "running": line.running,
            }
            for line in found.lines
        ],
        "failing": [
            {"host": one.host, "outcome": one.outcome, "status_code": one.status_code, "attempts": one.failed}
            for one in (recent.failing if recent else ())
        ],
        "dead": found.letters,
        "dead_is_more": found.more_dead,
        "dead_by_reason": {name or "none": number for name, number in found.reasons},
        "workers": None if found.workers is None else [asdict(worker) for worker in found.workers],
    }


def _quantiles(pair: tuple[float, float] | None) -> dict[str, float] | None:
    return None if pair is None else {"p50": pair[0], "p95": pair[1]}


def _since(now: datetime, at: datetime | None) -> float | None:
    return None if at is None else max((now - at).total_seconds(), 0.0)


def _named(names: Names, project_id: int) -> str:
    if project_id not in names:
        return f"#{project_id}"
    one = names[project_id]
    return one.account if one.account == one.project else f"{one.account}/{one.project}"
