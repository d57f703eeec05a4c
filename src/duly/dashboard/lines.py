"""Queues with what waits and what runs in them, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from duly.dashboard.parts import Parts
from duly.queue import QueueSettings
from duly.queue.overview import MOST_WAITING, Backlog, InUse, ProjectName, project_names
from duly.service.sessions import Viewer


@dataclass(frozen=True, slots=True)
class Line:
    """One queue of one project."""

    project_id: int
    queue: str
    waiting: int = 0
    oldest_at: datetime | None = None
    running: int = 0
    settings: QueueSettings | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many run as may."""
        return bool(self.settings and self.settings.concurrency and self.running >= self.settings.concurrency)

    @property
    def is_capped(self) -> bool:
        """Whether more wait than were counted."""
        return self.waiting >= MOST_WAITING


def lines_of(
    backlog: Iterable[Backlog], in_use: Iterable[InUse], settings: Iterable[tuple[int, str, QueueSettings]] = ()
) -> list[Line]:
    """Every queue that is known from one of them: those with the oldest job first, then by name."""
    waits = {(line.project_id, line.queue): line for line in backlog}
    runs: dict[tuple[int, str], int] = {}
    for use in in_use:
        runs[use.project_id, use.queue] = runs.get((use.project_id, use.queue), 0) + use.running
    rules = {(project_id, name): one for project_id, name, one in settings}
    lines = []
    for key in {*waits, *runs, *rules}:
        line = waits.get(key)
        lines.append(
            Line(
                *key,
                waiting=line.waiting if line else 0,
                oldest_at=line.oldest_at if line else None,
                running=runs.get(key, 0),
                settings=rules.get(key),
            )
        )
    return sorted(lines, key=_order)


def _order(line: Line) -> tuple[bool, float, int, str]:
    oldest_s = 0.0 if line.oldest_at is None else line.oldest_at.timestamp()
    return line.oldest_at is None, oldest_s, line.project_id, line.queue


async def names_for(parts: Parts, viewer: Viewer, lines: Sequence[Line]) -> dict[int, ProjectName]:
    """For operators: what the lines' projects are called."""
    if not viewer.is_operator or not lines:
        return {}
    return await project_names(parts.services.database, (line.project_id for line in lines))
