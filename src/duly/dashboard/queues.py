"""Queues: what waits and runs in them, what is set for them; pause, resume, set, unset."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http.client import SEE_OTHER
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.problems import Problem, not_found
from duly.api.queue_inputs import read_queue
from duly.api.queues import checked_name
from duly.dashboard.figures import LIMIT
from duly.dashboard.forms import as_body, listed, number, text
from duly.dashboard.guarding import HOME
from duly.dashboard.lines import Line, lines_of, names_for
from duly.dashboard.parts import Parts, parts_of, reader, writer
from duly.dashboard.reach import project_asked, project_for
from duly.dashboard.refusals import said
from duly.model.errors import InvalidInputError
from duly.model.jobs import QUEUE_NAME
from duly.queue import Owner, QueueSettings, get_queue, list_queues, pause_queue, queue_is_known, set_queue, unset_queue
from duly.queue.overview import project_names, quick
from duly.service import Project, get_project
from duly.service.durations import show_duration
from duly.service.sessions import Viewer

MOST_SHOWN: Final = 200
MOST_PROJECTS: Final = 50
KINDS: Final = ("exponential", "linear", "fixed", "steps")


async def show(request: Request) -> Response:
    """Every queue that has settings, jobs that wait or run, or has ever had one; `project` narrows an operator's."""
    viewer = await reader(request)
    parts = parts_of(request)
    asked = project_asked(viewer, request.query_params.get("project", ""))
    backlog, in_use = await asyncio.gather(parts.figures.backlog(viewer.owner), parts.figures.in_use(viewer.owner))
    lines = lines_of(backlog.value or (), in_use.value or ())
    async with quick(parts.services.database, LIMIT) as db:
        if viewer.owner is not None:
            owners = [viewer.owner]
        elif asked is not None:
            owners = [(await get_project(db, asked)).owner]
        else:
            numbers = sorted({line.project_id for line in lines})[:MOST_PROJECTS]
            owners = [Owner(one.account_id, one.id) for one in (await project_names(db, numbers)).values()]
        settings = [
            (owner.project_id, name, one)
            for owner in owners
            for name, one in await list_queues(db, owner.account_id, owner.project_id, limit=MOST_SHOWN)
        ]
    lines = lines_of(backlog.value or (), in_use.value or (), settings)
    if asked is not None:
        lines = [line for line in lines if line.project_id == owners[0].project_id]
    return parts.page(
        request,
        "queues.html",
        viewer,
        lines=lines,
        names=await names_for(parts, viewer, lines),
        asked=asked,
        trouble=backlog.trouble or in_use.trouble,
    )


async def show_one(request: Request) -> Response:
    """What is set for a queue, and a form to set it."""
    viewer = await reader(request)
    parts = parts_of(request)
    project = await project_for(parts.services.database, viewer, request.query_params.get("project", ""))
    name = request.query_params.get("name", "")
    if not QUEUE_NAME.fullmatch(name):
        raise not_found()
    return await _shown(request, parts, viewer, project, name)


async def set_one(request: Request) -> Response:
    """Set all of it, as PUT of the API does; what is wrong is said beside the form."""
    viewer, form = await writer(request)
    parts = parts_of(request)
    services = parts.services
    project, name = await _meant(parts, viewer, form)
    try:
        given = read_queue(as_body(members_of(form)))
    except (InvalidInputError, Problem) as error:
        return await _shown(request, parts, viewer, project, name, form, said(error))
    await set_queue(services.database, project.owner.project_id, name, given.settings(), keep_pause=True)
    services.creator.defaults.forget(project.owner, name)
    return _to(viewer, project, name, "queue_set")


async def turn(request: Request) -> Response:
    """Pause or resume a queue, or forget what is set for it."""
    viewer, form = await writer(request)
    parts = parts_of(request)
    services = parts.services
    project, name = await _meant(parts, viewer, form)
    number_ = project.owner.project_id
    match request.path_params["action"]:
        case "pause":
            done = "queue_paused"
            await pause_queue(services.database, number_, name, True)
        case "resume":
            done = "queue_resumed"
            await pause_queue(services.database, number_, name, False)
        case "unset":
            done = "queue_unset"
            if not await unset_queue(services.database, number_, name):
                raise not_found()
            services.creator.defaults.forget(project.owner, name)
        case _:
            raise HTTPException(404)
    return _to(viewer, project, name, done)


def members_of(form: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API's QueueInput."""
    on = listed(form.get("on", ""))
    return {
        "concurrency": number(form.get("concurrency", "")),
        "key_concurrency": number(form.get("key_concurrency", "")),
        "rate": text(form.get("rate", "")),
        "timeout": number(form.get("timeout", "")),
        "retry": {
            "max_attempts": number(form.get("max_attempts", "")),
            "max_age": number(form.get("max_age", "")),
            "on": on[0] if on in (["default"], ["all_non_2xx"]) else [number(one) for one in on] or None,
            "backoff": {
                "kind": text(form.get("kind", "")),
                "base": number(form.get("base", "")),
                "factor": number(form.get("factor", "")),
                "max": number(form.get("max", "")),
                "jitter": number(form.get("jitter", "")),
                "steps": [number(one) for one in listed(form.get("steps", ""))] or None,
            },
        },
    }


def fields_of(settings: QueueSettings) -> dict[str, str]:
    """What is set, as the form has it."""
    rate, defaults = settings.rate, settings.defaults
    backoff = defaults.backoff
    on = defaults.on
    fields: dict[str, object] = {
        "concurrency": settings.concurrency,
        "key_concurrency": settings.key_concurrency,
        "rate": rate and f"{rate.limit}/{show_duration(rate.per)}",
        "timeout": defaults.timeout and show_duration(defaults.timeout),
        "max_attempts": defaults.max_attempts,
        "max_age": defaults.max_age and show_duration(defaults.max_age),
        "on": on if isinstance(on, str) else ", ".join(map(str, on or ())),
        "kind": backoff and backoff.kind,
        "base": backoff and backoff.kind != "steps" and show_duration(backoff.base),
        "factor": backoff and backoff.kind == "exponential" and f"{backoff.factor:g}",
        "max": backoff and show_duration(backoff.max),
        "jitter": backoff and f"{backoff.jitter:g}",
        "steps": backoff and ", ".join(map(show_duration, backoff.steps)),
    }
    return {name: "" if value is None or value is False else str(value) for name, value in fields.items()}


async def _meant(parts: Parts, viewer: Viewer, form: Mapping[str, str]) -> tuple[Project, str]:
    """The queue that a form is about. Raises 404 for somebody else's project, 422 for what can be no name."""
    project = await project_for(parts.services.database, viewer, form.get("project", ""))
    return project, checked_name(form.get("name", ""))


async def _shown(
    request: Request,
    parts: Parts,
    viewer: Viewer,
    project: Project,
    name: str,
    fields: Mapping[str, str] | None = None,
    errors: list[str] | None = None,
) -> Response:
    backlog, in_use = await asyncio.gather(parts.figures.backlog(viewer.owner), parts.figures.in_use(viewer.owner))
    async with quick(parts.services.database, LIMIT) as db:
        settings = await get_queue(db, project.owner.project_id, name)
        known = await queue_is_known(db, project.owner.account_id, project.owner.project_id, name)
    number_ = project.owner.project_id
    lines = lines_of(backlog.value or (), in_use.value or (), [(number_, name, settings)])
    line = next((one for one in lines if (one.project_id, one.queue) == (number_, name)), Line(number_, name))
    return parts.page(
        request,
        "queue.html",
        viewer,
        200 if errors is None else 422,
        project=project,
        line=line,
        names=await names_for(parts, viewer, [line]),
        settings=settings,
        fields=fields_of(settings) | dict(fields or {}),
        known=known,
        kinds=KINDS,
        errors=errors or [],
        may="write" in viewer.scopes,
        trouble=backlog.trouble or in_use.trouble,
        live=errors is None,
    )


def _to(viewer: Viewer, project: Project, name: str, done: str) -> Response:
    asked = {"project": str(project.id)} if viewer.is_operator else {}
    return RedirectResponse(f"{HOME}/queues/one?{urlencode({'name': name, **asked, 'said': done})}", SEE_OTHER)


ROUTES = [
    Route("/queues", show),
    Route("/queues/one", show_one, methods=["GET"]),
    Route("/queues/one", set_one, methods=["POST"]),
    Route("/queues/{action}", turn, methods=["POST"]),
]
