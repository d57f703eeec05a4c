"""/healthz: the process is alive. /readyz: it can do its work. For the operator's probes: no key, no details."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from duly.api.services import ServicesHere
from duly.model.errors import DatabaseUnavailableError, SchemaError
from duly.schema import verify

router = APIRouter(tags=["operation"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", operation_id="healthz", summary="Is the process alive?")
async def healthz() -> JSONResponse:
    """200 as long as the process answers; asks nobody else."""
    return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", operation_id="readyz", summary="Can requests be served?", responses={503: {"description": "no"}})
async def readyz(services: ServicesHere) -> JSONResponse:
    """200 if the database answers and its schema is this program's; 503 otherwise.

    With `health` red, and why, if schedules should have fired and did not: requests are served all the same.
    """
    try:
        async with asyncio.timeout(services.settings.ready_timeout_s):
            async with services.database.session() as session:
                await verify(session.connection, session.schema)
    except SchemaError:
        return _not_ready("the schema is missing, or another version's")
    except (DatabaseUnavailableError, TimeoutError):
        return _not_ready("the database is not available")
    findings = await services.schedule_watch.findings()
    content = {"status": "ready", **({"health": "red", "findings": findings} if findings else {})}
    return JSONResponse(content, headers={"cache-control": "no-store"})


def _not_ready(why: str) -> JSONResponse:
    return JSONResponse({"status": "not ready", "detail": why}, 503, {"cache-control": "no-store", "retry-after": "2"})
