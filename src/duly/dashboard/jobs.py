"""The list of jobs, with the filters that the API has."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.api.listing import cursor_after, read_listing
from duly.api.problems import Problem
from duly.dashboard.parts import parts_of, reader
from duly.model import State
from duly.model.errors import DatabaseBusyError
from duly.queue import JobView, list_jobs
from duly.queue.overview import quick

LIMIT: Final = timedelta(milliseconds=900)
QUICK_S: Final = 0.15
"""A list that took longer does not fetch itself again: it would keep the database busy for as long as a tab is open."""
FILTERS: Final = ("state", "queue", "tag")


async def show(request: Request) -> Response:
    """A page of jobs. A filter that finds too little in too much is told so, instead of being waited for."""
    viewer = await reader(request)
    parts = parts_of(request)
    given = {name: value for name, value in request.query_params.items() if name in (*FILTERS, "cursor") and value}
    error = ""
    jobs: list[JobView] = []
    began_s = time.monotonic()
    try:
        listing = read_listing(QueryParams(given))
    except Problem as problem:
        error = "; ".join(f"{fault['parameter']} {fault['detail']}" for fault in problem.errors)
    else:
        try:
            async with quick(parts.services.database, LIMIT) as db:
                jobs = await list_jobs(
                    db,
                    viewer.owner,
                    state=next(iter(listing.wanted.states), None),
                    queue=listing.wanted.queue,
                    tag=listing.wanted.tag,
                    before=listing.before,
                    limit=listing.limit + 1,
                )
        except DatabaseBusyError:
            error = "Looking took too long: too many jobs lie between those that match. Leave a filter out, or add one."
    took_s = time.monotonic() - began_s
    page = jobs[:50]
    following = None
    if len(jobs) > len(page):
        filters = {name: value for name, value in given.items() if name != "cursor"}
        following = urlencode({**filters, "cursor": cursor_after(page[-1].id)})
    return parts.page(
        request,
        "jobs.html",
        viewer,
        200 if not error else 422,
        jobs=page,
        given={name: given.get(name, "") for name in (*FILTERS, "cursor")},
        filtered=bool(given),
        states=[str(state) for state in State],
        following=following,
        error=error,
        live=not error and took_s < QUICK_S and "cursor" not in given,
    )


ROUTES = [Route("/jobs", show)]
