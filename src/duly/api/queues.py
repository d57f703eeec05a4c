"""/v1/queues: list, read, set, unset, pause, resume."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import QueryParams

from duly.api.auth import Reader, Writer
from duly.api.documents import QueueDocument, QueueListDocument
from duly.api.idempotency import unsupported
from duly.api.problems import MEDIA_TYPE, invalid, not_found
from duly.api.queue_inputs import read_queue
from duly.api.reading import read_text
from duly.api.render import queue_json
from duly.api.services import Services, ServicesHere
from duly.model.jobs import QUEUE_NAME
from duly.queue import Owner, get_queue, list_queues, pause_queue, queue_is_known, set_queue, unset_queue

HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_MOST = 200
_MEANINGS = {
    400: "not JSON",
    401: "no living API key",
    403: "the key lacks the scope",
    404: "no such queue in this project: nothing was set for it, and it never had a job",
    408: "the body came too slowly",
    413: "too large",
    415: "not JSON in UTF-8",
    422: "something is wrong with the input",
    503: "the database is away or busy: nothing was changed",
}
_PARAMETERS: list[dict[str, Any]] = [
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 50}},
    {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "next_cursor of the page before"},
]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: {"description": _MEANINGS[status], "content": content} for status in sorted({401, 403, 503, *statuses})
    }


router = APIRouter(prefix="/v1/queues", tags=["queues"], dependencies=[Depends(unsupported)])


@router.get(
    "",
    operation_id="list_queues",
    summary="List queues by name",
    responses={200: {"model": QueueListDocument}, **_problems(422)},
    openapi_extra={"parameters": _PARAMETERS},
)
async def read_queues(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """The queues for which something is set, and those that have ever had a job."""
    after, limit = _read_page(request.query_params)
    owner = caller.owner
    found = await list_queues(services.database, owner.account_id, owner.project_id, after=after, limit=limit + 1)
    next_cursor = _cursor(found[limit - 1][0]) if len(found) > limit else None
    return JSONResponse(
        {"data": [queue_json(*one) for one in found[:limit]], "next_cursor": next_cursor}, headers=HEADERS
    )


@router.get(
    "/{name:path}",
    operation_id="get_queue",
    summary="Read a queue's settings",
    responses={200: {"model": QueueDocument}, **_problems(404, 422)},
)
async def read_one(name: str, caller: Reader, services: ServicesHere) -> JSONResponse:
    """What applies to a queue; without limits if nothing was set."""
    owner = caller.owner
    if not await queue_is_known(services.database, owner.account_id, owner.project_id, checked_name(name)):
        raise not_found()
    return await _shown(services, owner, name)


@router.put(
    "/{name:path}",
    operation_id="set_queue",
    summary="Set what applies to a queue",
    responses={200: {"model": QueueDocument}, **_problems(400, 408, 413, 415, 422)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/QueueInput"}}},
        }
    },
)
async def set_one(name: str, request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:
    """Replaces all settings; a pause stays unless `paused` is given. It binds from the answer on; what runs goes on."""
    checked_name(name)
    given = read_queue(await read_text(request, services.settings))
    await set_queue(services.database, caller.owner.project_id, name, given.settings(), keep_pause=given.paused is None)
    services.creator.defaults.forget(caller.owner, name)
    return await _shown(services, caller.owner, name)


@router.delete(
    "/{name:path}",
    operation_id="unset_queue",
    summary="Forget what was set for a queue",
    responses={200: {"model": QueueDocument}, **_problems(404, 422)},
)
async def unset_one(name: str, caller: Writer, services: ServicesHere) -> JSONResponse:
    """No limits, no defaults, no pause any more. Its jobs stay."""
    if not await unset_queue(services.database, caller.owner.project_id, checked_name(name)):
        raise not_found()
    services.creator.defaults.forget(caller.owner, name)
    return await _shown(services, caller.owner, name)


@router.post(
    "/{name:path}/pause",
    operation_id="pause_queue",
    summary="Start no more jobs of a queue",
    responses={200: {"model": QueueDocument}, **_problems(422)},
)
async def pause_one(name: str, caller: Writer, services: ServicesHere) -> JSONResponse:
    """After the answer none starts; what runs goes on. Jobs are taken in as before."""
    await pause_queue(services.database, caller.owner.project_id, checked_name(name), True)
    return await _shown(services, caller.owner, name)


@router.post(
    "/{name:path}/resume",
    operation_id="resume_queue",
    summary="Start jobs of a queue again",
    responses={200: {"model": QueueDocument}, **_problems(422)},
)
async def resume_one(name: str, caller: Writer, services: ServicesHere) -> JSONResponse:
    """What is due starts at once, within the limits."""
    await pause_queue(services.database, caller.owner.project_id, checked_name(name), False)
    return await _shown(services, caller.owner, name)


async def _shown(services: Services, owner: Owner, name: str) -> JSONResponse:
    return JSONResponse(queue_json(name, await get_queue(services.database, owner.project_id, name)), headers=HEADERS)


def checked_name(name: str) -> str:
    """A queue's name. Raises Problem 422 for what can be none."""
    if not QUEUE_NAME.fullmatch(name):
        detail = "must be 1 to 100 letters, digits and . _ : / -, starting with a letter or a digit"
        raise invalid([{"parameter": "name", "detail": detail}])
    return name


def _read_page(query: QueryParams) -> tuple[str, int]:
    """The name after which the page begins, and how many. Raises Problem 422."""
    errors = [
        {"parameter": name[:100], "detail": "is not supported: there are limit and cursor"}
        for name in dict.fromkeys(query.keys())
        if name not in ("limit", "cursor")
    ]
    errors += [
        {"parameter": name, "detail": "is given more than once"}
        for name in ("limit", "cursor")
        if len(query.getlist(name)) > 1
    ]
    limit, cursor = query.get("limit", "50"), query.get("cursor", "")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= _MOST):
        errors.append({"parameter": "limit", "detail": f"must be a number from 1 to {_MOST}"})
    after = _read_cursor(cursor)
    if after is None:
        detail = "is not a cursor of this list: take next_cursor of the page before"
        errors.append({"parameter": "cursor", "detail": detail})
    if errors or after is None:
        raise invalid(errors)
    return after, int(limit)


def _cursor(last: str) -> str:
    return base64.urlsafe_b64encode(b"q1" + last.encode()).decode("ascii")


def _read_cursor(text: str) -> str | None:
    if not text:
        return ""
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    return data[2:] if data.startswith("q1") and QUEUE_NAME.fullmatch(data[2:]) else None
