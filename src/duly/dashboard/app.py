"""The dashboard as an application of its own, hung under /dashboard of the API's."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from duly.api.problems import Problem
from duly.api.services import Services
from duly.dashboard import (
    accounts,
    dead,
    entry,
    job,
    jobs,
    keys,
    machinery,
    operations,
    overview,
    queues,
    schedules,
    secrets,
)
from duly.dashboard.guarding import HOME, SafeHeaders
from duly.dashboard.parts import Parts, parts_of
from duly.dashboard.refusals import refusal_of
from duly.model.errors import DatabaseUnavailableError, DulyError

_STATIC = Path(__file__).parent / "static"


def install_dashboard(api: FastAPI) -> None:
    """Serve the dashboard under /dashboard of an API's application."""
    services: Services = api.state.services
    api.mount(HOME, SafeHeaders(create_dashboard(Parts.of(services))))

    async def to_dashboard(_: Request) -> Response:
        return RedirectResponse(f"{HOME}/", 307)

    api.router.routes.append(Route(HOME, to_dashboard, include_in_schema=False))


def create_dashboard(parts: Parts) -> Starlette:
    """The pages on the services of an API."""
    app = Starlette(
        routes=[
            Route("/", overview.show),
            *entry.ROUTES,
            *jobs.ROUTES,
            *job.ROUTES,
            *dead.ROUTES,
            *schedules.ROUTES,
            *queues.ROUTES,
            *machinery.ROUTES,
            *operations.ROUTES,
            *accounts.ROUTES,
            *keys.ROUTES,
            *secrets.ROUTES,
            Mount("/static", StaticFiles(directory=_STATIC), name="static"),
        ],
        exception_handlers={
            HTTPException: _from_http,
            DatabaseUnavailableError: _from_database,
            DulyError: _from_refusal,
            Problem: _from_refusal,
            Exception: _from_anything,
        },
    )
    app.state.parts = parts
    return app


async def _from_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 303:
        return RedirectResponse((error.headers or {})["location"], 303)
    titles = {403: "Not allowed", 404: "Not found", 413: "Too large", 429: "Too many"}
    texts = {404: "There is no such thing here, or it belongs to another project."}
    text = texts.get(error.status_code, error.detail)
    title = titles.get(error.status_code, "Not possible")
    answer = parts_of(request).trouble_page(request, error.status_code, title, text)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _from_database(request: Request, _: Exception) -> Response:
    text = "The database is away or busy. Whether anything was changed shows once it answers: then look again."
    return parts_of(request).trouble_page(request, 503, "The database does not answer", text)


async def _from_refusal(request: Request, error: Exception) -> Response:
    """What the API would answer, as a page."""
    refusal = refusal_of(error)
    if refusal is None:
        return await _from_anything(request, error)
    return await _from_http(request, HTTPException(*refusal))


async def _from_anything(request: Request, _: Exception) -> Response:
    text = "The fault is on our side; the log has more."
    return parts_of(request).trouble_page(request, 500, "Something went wrong", text)
