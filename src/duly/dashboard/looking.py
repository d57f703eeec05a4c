"""What the first page tells, from the figures to the words; `duly top` tells the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from duly.dashboard.figures import LOOKED_AT, LOOKED_AT_FOR_ONE, Figure, Figures
from duly.dashboard.findings import Finding, Seen, findings
from duly.dashboard.grouping import Group, grouped
from duly.dashboard.lines import Line, lines_of
from duly.queue import Owner, WorkerView
from duly.queue.overview import Recent, Sizes

_NOW = 4
"""Spans that count as now: two minutes."""


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was seen at one moment, and what is wrong with it, the worst first.

    `pace`: jobs that came and attempts that ended, a second, over the last two minutes. `letters`: how many dead
    letters were found among the newest `looked_at`; `more_dead`: there are more to look at. `trouble`: what is not of
    this moment, and why. `known`: whether what waits is known at all. `workers`, `sizes`: for operators only.
    """

    seen: Seen
    findings: Sequence[Finding]
    recent: Recent | None
    pace: tuple[float, float] | None
    lines: Sequence[Line]
    groups: Sequence[Group]
    letters: int
    looked_at: int
    more_dead: bool
    reasons: Sequence[tuple[str | None, int]]
    running: int
    workers: Sequence[WorkerView] | None
    sizes: Sizes | None
    trouble: Sequence[str]
    known: bool


async def look(figures: Figures, owner: Owner | None, now: datetime) -> Look:
    """Look for one project, or for an operator, who sees everybody's (None)."""
    is_operator = owner is None

    async def nothing() -> Figure[Sizes]:
        return Figure(None)

    (recent, backlog, in_use), (dead, breakers, workers, sizes) = await asyncio.gather(
        asyncio.gather(figures.recent(owner), figures.backlog(owner), figures.in_use(owner)),
        asyncio.gather(
            figures.dead(owner),
            figures.breakers(owner),
            figures.workers(),
            figures.sizes() if is_operator else nothing(),
        ),
    )
    letters = dead.value.letters if dead.value else ()
    groups = grouped(letters)
    seen = Seen(
        now=now,
        backlog=backlog.value,
        in_use=in_use.value,
        workers=workers.value if is_operator else None,
        breakers=breakers.value,
        recent=recent.value,
        dead=groups,
    )
    return Look(
        seen=seen,
        findings=findings(seen),
        recent=recent.value,
        pace=_pace(recent.value),
        lines=lines_of(backlog.value or (), in_use.value or ()),
        groups=groups,
        letters=len(letters),
        looked_at=LOOKED_AT if is_operator else LOOKED_AT_FOR_ONE,
        more_dead=bool(dead.value and dead.value.looked_to),
        reasons=Counter(letter.reason for letter in letters).most_common(),
        running=sum(use.running for use in in_use.value or ()),
        workers=seen.workers,
        sizes=sizes.value,
        trouble=sorted({f.trouble for f in (recent, backlog, in_use, dead, breakers, workers, sizes) if f.trouble}),
        known=backlog.value is not None,
    )


def _pace(recent: Recent | None) -> tuple[float, float] | None:
    """Jobs that came and attempts that ended, a second, over the last two whole minutes."""
    if recent is None:
        return None
    spans = recent.spans[-_NOW - 1 : -1]
    seconds = (recent.every * len(spans)) / timedelta(seconds=1)
    return sum(s.arrived for s in spans) / seconds, sum(s.ended for s in spans) / seconds
