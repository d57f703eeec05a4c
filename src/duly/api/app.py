"""The application: routes, problems, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

import duly
from duly.api import health, jobs
from duly.api.documents import ProblemDocument
from duly.api.inputs import JobInput
from duly.api.problems import install_problems
from duly.api.services import Services
from duly.api.settings import ApiSettings
from duly.http import EgressPolicy
from duly.queue import Database, DatabaseClock
from duly.service import NO_KEYRING, Creator, Gatekeeper, Keyring
from duly.service.creating import Carry
from duly.upkeep.running import every


def create_app(
    database: Database,
    policy: EgressPolicy,
    settings: ApiSettings,
    *,
    keyring: Keyring = NO_KEYRING,
    carry: Carry | None = None,
) -> FastAPI:
    """Build the API on an open database. Whoever serves it runs its lifespan: its end answers what is in flight.

    With a keyring, header values and bodies are stored sealed. `carry` has jobs belong to the trace of their request.
    """
    creator = Creator(database, keyring=keyring, carry=carry)
    clock = DatabaseClock(database)
    services = Services(database, policy, settings, creator, Gatekeeper(database), keyring, clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await clock.look()
        stopping = asyncio.Event()
        looking = asyncio.create_task(every(clock.step, stopping, database.trouble, "clock"))
        try:
            yield
        finally:
            stopping.set()
            looking.cancel()  # a question that gets no answer
            await asyncio.wait({looking})
            await services.gatekeeper.close()
            await services.creator.close()

    # No docs page: FastAPI's would load scripts from elsewhere.
    app = FastAPI(
        title="Duly",
        version=duly.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.services = services
    install_problems(app, settings.retry_after_s)
    app.include_router(jobs.router)
    app.include_router(health.router)
    _document(app)
    return app


def _document(app: FastAPI) -> None:
    """Serve a document that also holds what the routes read and answer by hand."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, routes=app.routes, summary="HTTP requests, run later, reliably"
            )
            _, definitions = models_json_schema(
                [(JobInput, "validation"), (ProblemDocument, "serialization")],
                ref_template="#/components/schemas/{model}",
            )
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
