"""Schedules: which there are, when they fire next, what became of their fires; pause, resume, run now."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from http.client import SEE_OTHER
from typing import Final, get_args
from urllib.parse import urlencode
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.accounts import path_id
from duly.api.problems import not_found
from duly.api.schedules import described
from duly.dashboard.guarding import HOME
from duly.dashboard.jobs import QUICK_S
from duly.dashboard.parts import parts_of, reader, writer
from duly.dashboard.reach import project_asked
from duly.queue import Executor, JobView, Owner, look_at
from duly.queue.overview import project_names, quick
from duly.service import get_project
from duly.service.faults import FieldError
from duly.service.schedules import (
    FireView,
    Schedule,
    State,
    get_schedule,
    last_fires,
    list_fires,
    list_schedules,
    next_fires,
)
from duly.service.sessions import Viewer
from duly.service.steering import pause, resume, run

LIMIT: Final = timedelta(seconds=2)
LATE: Final = timedelta(seconds=30)
"""A fire that is due for longer, and waits for nothing, is late: workers look every second."""
PAGE: Final = 50
PREVIEWED: Final = 10
MOST_PREVIEWED: Final = 100
_STATES: tuple[State, ...] = get_args(State)


async def show(request: Request) -> Response:
    """A page of schedules, the newest first."""
    viewer = await reader(request)
    parts = parts_of(request)
    given = {name: request.query_params.get(name, "") for name in ("state", "project", "before")}
    state = next((state for state in _STATES if state == given["state"]), None)
    before = path_id(given["before"]) if given["before"] else None
    project_id = project_asked(viewer, given["project"])
    began_s = time.monotonic()
    async with quick(parts.services.database, LIMIT) as db:
        owner = viewer.owner
        if owner is None and project_id is not None:
            owner = (await get_project(db, project_id)).owner
        found = await list_schedules(db, owner, state=state, before=before, limit=PAGE + 1)
        page = found[:PAGE]
        fires = await last_fires(db, [schedule.id for schedule in page])
        jobs = await _jobs_of(db, ((schedule.owner, fires[schedule.id]) for schedule in page if schedule.id in fires))
        projects = {schedule.owner.project_id for schedule in page} if viewer.is_operator else set()
        names = await project_names(db, projects)
    following = None
    if len(found) > PAGE:
        following = urlencode({**{k: v for k, v in given.items() if v}, "before": str(page[-1].id)})
    return parts.page(
        request,
        "schedules.html",
        viewer,
        schedules=page,
        fires=fires,
        jobs=jobs,
        names=names,
        is_late=is_late,
        given=given,
        states=_STATES,
        following=following,
        live=time.monotonic() - began_s < QUICK_S and not given["before"],
    )


async def show_one(request: Request) -> Response:
    """One schedule: how it stands, its next fires, its ledger; `before` looks further back, `count` ahead."""
    viewer = await reader(request)
    parts = parts_of(request)
    schedule = await _found(request, viewer)
    before = _moment(request.query_params.get("before", ""))
    async with quick(parts.services.database, LIMIT) as db:
        ledger = await list_fires(db, schedule.id, before=before, limit=PAGE + 1)
        jobs = await _jobs_of(db, ((schedule.owner, fire) for fire in ledger[:PAGE]))
        names = await project_names(db, [schedule.owner.project_id] if viewer.is_operator else [])
    count = _count(request.query_params.get("count", ""))
    return parts.page(
        request,
        "schedule.html",
        viewer,
        schedule=schedule,
        told=described(parts.services, schedule),
        names=names,
        is_late=is_late,
        coming=_coming(schedule, count),
        count=count,
        most=MOST_PREVIEWED,
        fires=ledger[:PAGE],
        jobs=jobs,
        before=before,
        following=ledger[PAGE - 1].fire_at.isoformat() if len(ledger) > PAGE else None,
        may="write" in viewer.scopes,
    )


async def act(request: Request) -> Response:
    """Do what the form's button says, then show the schedule again."""
    viewer, _ = await writer(request)
    services = parts_of(request).services
    schedule = await _found(request, viewer)
    db, owner = services.database, schedule.owner
    match request.path_params["action"]:
        case "pause":
            said = "schedule_paused"
            await pause(db, owner, schedule.id)
        case "resume":
            said = "schedule_resumed"
            await resume(db, owner, schedule.id, keyring=services.keyring, policy=services.policy)
        case "run":
            said = "schedule_ran"
            await run(db, owner, schedule.id, keyring=services.keyring, policy=services.policy, by=viewer.by)
        case _:
            raise HTTPException(404)
    return RedirectResponse(f"{HOME}/schedules/{schedule.id}?said={said}", SEE_OTHER)


def is_late(schedule: Schedule, now: datetime) -> bool:
    """Whether a fire is due, and nobody makes it."""
    return (
        schedule.state == "active"
        and schedule.waiting_since is None
        and schedule.next_fire_at is not None
        and now - schedule.next_fire_at > LATE
    )


async def _found(request: Request, viewer: Viewer) -> Schedule:
    """The schedule of the address. Raises Problem 404 for what is none, and for somebody else's."""
    project = None if viewer.owner is None else viewer.owner.project_id
    database = parts_of(request).services.database
    schedule = await get_schedule(database, path_id(request.path_params["id"]), project)
    if schedule is None:
        raise not_found()
    return schedule


async def _jobs_of(db: Executor, made: Iterable[tuple[Owner, FireView]]) -> dict[UUID, JobView]:
    """The jobs of fires as they stand now; those that are gone are left out."""
    ids: defaultdict[Owner, list[UUID]] = defaultdict(list)
    for owner, fire in made:
        if fire.job_id is not None:
            ids[owner].append(fire.job_id)
    return {job.id: job for owner, some in ids.items() for job in await look_at(db, owner, some)}


def _coming(schedule: Schedule, count: int) -> list[datetime] | None:
    """Its next fires; None if its rule cannot be read."""
    try:
        return next_fires(schedule, count)
    except FieldError:
        return None


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise not_found() from None
    if moment.tzinfo is None:
        raise not_found()
    return moment


def _count(text: str) -> int:
    return MOST_PREVIEWED if text == "all" else PREVIEWED


ROUTES = [
    Route("/schedules", show),
    Route("/schedules/{id}", show_one),
    Route("/schedules/{id}/{action}", act, methods=["POST"]),
]
