"""The application: routes, problems, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import duly
from duly.api import (
    accounts,
    admin_inputs,
    batch,
    bulk,
    changing,
    docs,
    events,
    health,
    jobs,
    keys,
    notices,
    projects,
    queues,
    schedules,
    signing_secrets,
    usage,
)
from duly.api.batch import BatchInput
from duly.api.bulk import BulkInput
from duly.api.direct import Direct
from duly.api.documents import ProblemDocument
from duly.api.inputs import ChangeInput, JobInput
from duly.api.problems import install_problems
from duly.api.queue_inputs import QueueInput
from duly.api.rate_limit import RateHeaders
from duly.api.schedule_inputs import ScheduleInput
from duly.api.services import Services
from duly.api.settings import ApiSettings
from duly.http import EgressPolicy
from duly.queue import Database, DatabaseClock
from duly.service import NO_KEYRING, Allowances, Creator, Gatekeeper, Keyring
from duly.service.creating import Carry
from duly.service.listening import EventHub
from duly.service.schedule_watch import ScheduleWatch
from duly.upkeep.running import every

_READ_BY_HAND: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
    (JobInput, "validation"),
    (ChangeInput, "validation"),
    (BatchInput, "validation"),
    (BulkInput, "validation"),
    (QueueInput, "validation"),
    (ScheduleInput, "validation"),
    *((model, "validation") for model in admin_inputs.BODIES),
    (ProblemDocument, "serialization"),
]
_ROUTES = (
    bulk,  # before the jobs: "bulk" is no job's id
    batch,
    jobs,
    changing,
    schedules,
    events,
    queues,
    usage,
    accounts,
    projects,
    keys,
    signing_secrets,
    notices,
    health,
    docs,
)


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
    services = Services(
        database,
        policy,
        settings,
        creator,
        Gatekeeper(database),
        keyring,
        DatabaseClock(database),
        EventHub(database),
        Allowances(database),
        ScheduleWatch(database),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await services.clock.look()
        stopping = asyncio.Event()
        looking = asyncio.create_task(every(services.clock.step, stopping, database.trouble, "clock"))
        try:
            yield
        finally:
            stopping.set()
            looking.cancel()  # a question that gets no answer
            await asyncio.wait({looking})
            await services.hub.close()
            await services.gatekeeper.close()
            await services.creator.close()
            await services.allowances.close()

    app = routed_app(lifespan)
    app.state.services = services
    install_problems(app, settings.retry_after_s)
    return app


def routed_app(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """The routes and their OpenAPI document, with nothing behind them."""
    # FastAPI's own docs page would load scripts from elsewhere: ours is in `docs`.
    app = FastAPI(
        title="Duly",
        version=duly.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours is `duly.observe`, around the whole
        lifespan=lifespan,
    )
    app.add_middleware(Direct)
    app.add_middleware(RateHeaders)
    for part in _ROUTES:
        app.include_router(part.router)
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
                _READ_BY_HAND,
                ref_template="#/components/schemas/{model}",
            )
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
