"""What the jobs go through: queues, workers, breakers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.dashboard.figures import LIMIT
from duly.dashboard.lines import lines_of, names_for
from duly.dashboard.parts import parts_of, reader
from duly.queue.overview import RunningJob, list_queues, quick


async def show_queues(request: Request) -> Response:
    """Every queue that has settings, waiting jobs or running ones."""
    viewer = await reader(request)
    parts = parts_of(request)
    backlog, in_use = await asyncio.gather(parts.figures.backlog(viewer.owner), parts.figures.in_use(viewer.owner))
    lines = lines_of(backlog.value or (), in_use.value or ())
    projects = {line.project_id for line in lines} if viewer.owner is None else {viewer.owner.project_id}
    async with quick(parts.services.database, LIMIT) as db:
        settings = [(project, row) for project in sorted(projects)[:50] for row in await list_queues(db, project)]
    lines = lines_of(backlog.value or (), in_use.value or (), settings)
    return parts.page(
        request,
        "queues.html",
        viewer,
        lines=lines,
        names=await names_for(parts, viewer, lines),
        trouble=backlog.trouble or in_use.trouble,
    )


async def show_workers(request: Request) -> Response:
    """Every worker process, for operators: they serve all projects."""
    viewer = await reader(request)
    if not viewer.is_operator:
        raise HTTPException(403, "Workers serve every project: only operators see them.")
    parts = parts_of(request)
    workers, in_use, running = await asyncio.gather(
        parts.figures.workers(), parts.figures.in_use(None), parts.figures.running(None)
    )
    slots: Counter[int] = Counter()
    for use in in_use.value or ():
        slots[use.worker_id] += use.running
    jobs: defaultdict[int, list[RunningJob]] = defaultdict(list)
    for job in running.value or ():
        jobs[job.worker_id].append(job)
    return parts.page(
        request,
        "workers.html",
        viewer,
        workers=sorted(workers.value or (), key=lambda worker: (not worker.alive, worker.name, worker.id)),
        slots=slots,
        jobs=jobs,
        trouble=workers.trouble or in_use.trouble or running.trouble,
    )


async def show_breakers(request: Request) -> Response:
    """Targets whose deliveries are held."""
    viewer = await reader(request)
    figure = await parts_of(request).figures.breakers(viewer.owner)
    return parts_of(request).page(
        request, "breakers.html", viewer, breakers=(figure.value or [])[:500], trouble=figure.trouble
    )


ROUTES = [
    Route("/queues", show_queues),
    Route("/workers", show_workers),
    Route("/breakers", show_breakers),
]
