"""The first page: is it keeping up, what is failing, what do I do about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from duly.dashboard.figures import LOOKED_AT, LOOKED_AT_FOR_ONE, Figure
from duly.dashboard.findings import Seen, findings
from duly.dashboard.grouping import grouped
from duly.dashboard.lines import lines_of, names_for
from duly.dashboard.parts import parts_of, reader
from duly.queue.overview import Recent, Sizes

_NOW = 4
"""Spans that count as now: two minutes."""


async def show(request: Request) -> Response:
    viewer = await reader(request)
    parts = parts_of(request)
    figures, owner = parts.figures, viewer.owner

    async def nothing() -> Figure[Sizes]:
        return Figure(None)

    (recent, backlog, in_use), (dead, breakers, workers, sizes) = await asyncio.gather(
        asyncio.gather(figures.recent(owner), figures.backlog(owner), figures.in_use(owner)),
        asyncio.gather(
            figures.dead(owner),
            figures.breakers(owner),
            figures.workers(),
            figures.sizes() if viewer.is_operator else nothing(),
        ),
    )
    groups = grouped(dead.value.letters) if dead.value else []
    seen = Seen(
        now=parts.services.clock.now(),
        backlog=backlog.value,
        in_use=in_use.value,
        workers=workers.value if viewer.is_operator else None,
        breakers=breakers.value,
        recent=recent.value,
        dead=groups,
    )
    lines = lines_of(backlog.value or (), in_use.value or ())
    return parts.page(
        request,
        "overview.html",
        viewer,
        seen=seen,
        findings=findings(seen),
        recent=recent.value,
        pace=_pace(recent.value),
        lines=lines,
        names=await names_for(parts, viewer, lines),
        groups=groups,
        letters=len(dead.value.letters) if dead.value else 0,
        looked_at=LOOKED_AT if viewer.is_operator else LOOKED_AT_FOR_ONE,
        more_dead=bool(dead.value and dead.value.looked_to),
        reasons=Counter(letter.reason for letter in dead.value.letters).most_common() if dead.value else [],
        running=sum(use.running for use in in_use.value or ()),
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
