"""The first page: is it keeping up, what is failing, what do I do about it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from duly.dashboard.lines import names_for
from duly.dashboard.looking import look
from duly.dashboard.parts import parts_of, reader


async def show(request: Request) -> Response:
    viewer = await reader(request)
    parts = parts_of(request)
    found = await look(parts.figures, viewer.owner, parts.services.clock.now())
    return parts.page(
        request,
        "overview.html",
        viewer,
        seen=found.seen,
        findings=found.findings,
        recent=found.recent,
        pace=found.pace,
        lines=found.lines,
        names=await names_for(parts, viewer, found.lines),
        groups=found.groups,
        letters=found.letters,
        looked_at=found.looked_at,
        more_dead=found.more_dead,
        reasons=found.reasons,
        running=found.running,
        sizes=found.sizes,
        trouble=found.trouble,
        known=found.known,
    )
