"""Calls for many jobs that upkeep carries out: how far they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.dashboard.parts import parts_of, reader
from duly.queue import list_operations
from duly.queue.overview import quick

SHOWN: Final = 50
LIMIT: Final = timedelta(seconds=2)


async def show(request: Request) -> Response:
    """Those asked for last, by the API or here: of the project, or of all."""
    viewer = await reader(request)
    parts = parts_of(request)
    async with quick(parts.services.database, LIMIT) as db:
        found = await list_operations(db, viewer.owner, SHOWN)
    return parts.page(request, "operations.html", viewer, operations=found)


ROUTES = [Route("/operations", show)]
