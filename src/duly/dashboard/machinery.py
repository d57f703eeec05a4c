"""What the jobs go through: workers, breakers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duly.dashboard.parts import operator_only, parts_of, reader
from duly.queue.overview import RunningJob


async def show_workers(request: Request) -> Response:
    """Every worker process, for operators: they serve all projects."""
    viewer = operator_only(await reader(request), "Workers serve every project: only operators see them.")
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
    Route("/workers", show_workers),
    Route("/breakers", show_breakers),
]
