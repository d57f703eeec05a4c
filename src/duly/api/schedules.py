"""/v1/schedules: create, list, read, edit, delete, pause, resume, run, preview, and the ledger of fires."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, get_args
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from duly.api.answers import HEADERS, body_of, problem_answers
from duly.api.auth import Reader, Writer
from duly.api.inputs import read_uuid
from duly.api.listing import MOST, cursor_after
from duly.api.problems import Problem, invalid, not_found
from duly.api.reading import read_text
from duly.api.schedule_documents import (
    FireListDocument,
    PreviewDocument,
    RunDocument,
    ScheduleDocument,
    ScheduleListDocument,
    fire_json,
    schedule_json,
)
from duly.api.schedule_inputs import Reading, read_edit, read_schedule
from duly.api.services import Services, ServicesHere
from duly.http import HOPS_HEADER
from duly.queue import server_now
from duly.service import Principal, SealedError
from duly.service.moments import show_moment
from duly.service.schedules import (
    Schedule,
    ScheduleChangedError,
    State,
    create_schedule,
    delete_schedule,
    edit_schedule,
    get_schedule,
    list_fires,
    list_schedules,
    next_fires,
)
from duly.service.steering import pause, resume, run
from duly.service.templates import closed_template
from duly.service.timing import fires_after

MOST_PREVIEWED = 500
_STATES: tuple[State, ...] = get_args(State)
_TRIES = 5

_LIST_PARAMETERS: list[dict[str, Any]] = [
    {"name": "state", "in": "query", "schema": {"type": "string", "enum": list(_STATES)}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}},
    {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "next_cursor of the page before"},
]
_COUNT = {
    "name": "count",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": MOST_PREVIEWED, "default": 10},
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "the ETag that the schedule was read with: refuse the edit if it was edited since",
}

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])


@router.post(
    "",
    status_code=201,
    operation_id="create_schedule",
    summary="Create a schedule",
    responses={201: {"model": ScheduleDocument}, **problem_answers(400, 408, 409, 413, 415, 422)},
    openapi_extra=body_of("ScheduleInput"),
)
async def create(request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:
    """Store a schedule; 201 means that it is committed. Repeated with the same id and content it answers the same."""
    hops = _checked_headers(request)
    text = await read_text(request, services.settings)
    now = await server_now(services.database)
    new = read_schedule(text, _reading(services, caller, now), hops=hops)
    schedule, repeated = await create_schedule(services.database, caller.owner, new, keyring=services.keyring, now=now)
    headers = {"location": f"{services.settings.base_url.rstrip('/')}/v1/schedules/{schedule.id}"}
    if repeated:
        headers["idempotency-replayed"] = "true"
    return _shown(services, schedule, 201, headers)


@router.get(
    "",
    operation_id="list_schedules",
    summary="List schedules, the newest first",
    responses={200: {"model": ScheduleListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": _LIST_PARAMETERS},
)
async def read_page(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """A page of schedules."""
    given = _query(request, "state", "limit", "cursor")
    state = next((state for state in _STATES if state == given.get("state")), None)
    if "state" in given and state is None:
        raise invalid([{"parameter": "state", "detail": f"must be one of {', '.join(_STATES)}"}])
    limit = _number(given, "limit", 50, MOST)
    before = None if "cursor" not in given else _cursor(given["cursor"])
    page = await list_schedules(services.database, caller.owner, state=state, before=before, limit=limit + 1)
    data = [described(services, schedule) for schedule in page[:limit]]
    next_cursor = cursor_after(page[limit - 1].id) if len(page) > limit else None
    return JSONResponse({"data": data, "next_cursor": next_cursor}, headers=HEADERS)


@router.post(
    "/preview",
    operation_id="preview_new_schedule",
    summary="The fires that a schedule would have",
    responses={200: {"model": PreviewDocument}, **problem_answers(400, 408, 413, 415, 422)},
    openapi_extra={**body_of("ScheduleInput"), "parameters": [_COUNT]},
)
async def preview_new(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """Check a schedule as `create` would, and store nothing."""
    count = _number(_query(request, "count"), "count", 10, MOST_PREVIEWED)
    hops = _checked_headers(request)
    text = await read_text(request, services.settings)
    now = await server_now(services.database)
    new = read_schedule(text, _reading(services, caller, now), hops=hops)
    most = count if new.timing.most_fires is None else min(count, new.timing.most_fires)
    return _previewed(islice(fires_after(new.timing, now), most))


@router.get(
    "/{id}",
    operation_id="get_schedule",
    summary="Read a schedule",
    responses={200: {"model": ScheduleDocument}, **problem_answers(404)},
)
async def read_one(id: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The schedule as it stands now. Its ETag is for If-Match."""
    return _shown(services, await _found(services, caller, id))


@router.patch(
    "/{id}",
    operation_id="edit_schedule",
    summary="Change a schedule",
    responses={200: {"model": ScheduleDocument}, **problem_answers(400, 404, 408, 409, 412, 413, 415, 422)},
    openapi_extra={**body_of("ScheduleInput"), "parameters": [_IF_MATCH]},
)
async def edit(id: str, request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """What is left out stays as it is, in `job` too. The next fire stays as well, unless its timing changes."""
    text = await read_text(request, services.settings)
    wanted = request.headers.get("if-match")
    for _ in range(_TRIES):
        schedule = await _found(services, caller, id)
        if wanted is not None and wanted not in ("*", _etag(schedule)):
            break
        now = await server_now(services.database)
        new = read_edit(text, schedule, schedule.opened(services.keyring), _reading(services, caller, now))
        with suppress(ScheduleChangedError):
            edited = await edit_schedule(services.database, schedule, new, keyring=services.keyring, now=now)
            return _shown(services, edited)
    raise Problem(412, "changed", "The schedule has changed", str(ScheduleChangedError()))


@router.delete(
    "/{id}",
    status_code=204,
    operation_id="delete_schedule",
    summary="Delete a schedule",
    responses={204: {"description": "it is gone"}, **problem_answers(404)},
)
async def delete(id: str, caller: Writer, services: ServicesHere) -> Response:  # noqa: A002
    """No further fires. The jobs that it made go on."""
    if not await delete_schedule(services.database, caller.owner, _schedule_id(id)):
        raise not_found()
    return Response(status_code=204, headers=HEADERS)


@router.post(
    "/{id}/pause",
    operation_id="pause_schedule",
    summary="No fires until it is resumed",
    responses={200: {"model": ScheduleDocument}, **problem_answers(404, 409)},
)
async def pause_one(id: str, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """What falls into the pause is not made up for. Idempotent."""
    return _shown(services, await pause(services.database, caller.owner, _schedule_id(id)))


@router.post(
    "/{id}/resume",
    operation_id="resume_schedule",
    summary="Fire again",
    responses={200: {"model": ScheduleDocument}, **problem_answers(404, 409, 422)},
)
async def resume_one(id: str, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """A paused or parked schedule goes on with the next fire from now, in its phase; 422 if it still cannot fire."""
    schedule = await resume(
        services.database, caller.owner, _schedule_id(id), keyring=services.keyring, policy=services.policy
    )
    return _shown(services, schedule)


@router.post(
    "/{id}/run",
    status_code=202,
    operation_id="run_schedule",
    summary="Make a job of it now",
    responses={202: {"model": RunDocument}, **problem_answers(404, 409, 422)},
)
async def run_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """One job at once, whatever the schedule's state; its fires go on as they would."""
    _checked_headers(request)
    enqueued = await run(
        services.database,
        caller.owner,
        _schedule_id(id),
        keyring=services.keyring,
        policy=services.policy,
        by=f"key {caller.key_id}",
    )
    headers = {"location": f"{services.settings.base_url.rstrip('/')}/v1/jobs/{enqueued.job_id}"}
    return JSONResponse({"job_id": str(enqueued.job_id)}, 202, {**HEADERS, **headers})


@router.get(
    "/{id}/preview",
    operation_id="preview_schedule",
    summary="The next fires of a schedule",
    responses={200: {"model": PreviewDocument}, **problem_answers(404, 422)},
    openapi_extra={"parameters": [_COUNT]},
)
async def preview(id: str, request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """From its next fire on; none while it is paused or parked and after its end. Before jitter."""
    count = _number(_query(request, "count"), "count", 10, MOST_PREVIEWED)
    schedule = await _found(services, caller, id)
    return _previewed(iter(next_fires(schedule, count)))


@router.get(
    "/{id}/fires",
    operation_id="list_fires",
    summary="What became of each fire",
    responses={200: {"model": FireListDocument}, **problem_answers(404, 422)},
    openapi_extra={"parameters": _LIST_PARAMETERS[1:]},
)
async def read_fires(id: str, request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The latest first: jobs made, fires missed or skipped, and why."""
    given = _query(request, "limit", "cursor")
    limit = _number(given, "limit", 50, MOST)
    before = None if "cursor" not in given else _moment_cursor(given["cursor"])
    schedule = await _found(services, caller, id)
    fires = await list_fires(services.database, schedule.id, before=before, limit=limit + 1)
    page = fires[:limit]
    next_cursor = page[-1].fire_at.isoformat() if len(fires) > limit else None
    return JSONResponse({"data": [fire_json(fire) for fire in page], "next_cursor": next_cursor}, headers=HEADERS)


def _previewed(fires: Any) -> JSONResponse:
    return JSONResponse({"fires": [show_moment(fire) for fire in fires]}, headers=HEADERS)


def _reading(services: Services, caller: Principal, now: datetime) -> Reading:
    return Reading(now, services.policy, services.limits_of(caller))


def _shown(
    services: Services, schedule: Schedule, status: int = 200, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(described(services, schedule), status, {**HEADERS, "etag": _etag(schedule), **(headers or {})})


def described(services: Services, schedule: Schedule) -> dict[str, Any]:
    """A schedule as it is shown, with its header values; without them if they cannot be opened here."""
    try:
        template = schedule.opened(services.keyring)
    except SealedError:
        template = closed_template(schedule.template)
    return schedule_json(schedule, template)


def _etag(schedule: Schedule) -> str:
    return f'"{schedule.revision}"'


async def _found(services: Services, caller: Principal, id_text: str) -> Schedule:
    schedule = await get_schedule(services.database, _schedule_id(id_text), caller.owner.project_id)
    if schedule is None:
        raise not_found()
    return schedule


def _schedule_id(text: str) -> UUID:
    """The id in a path; whatever is no id names no schedule."""
    try:
        return read_uuid(text)
    except ValueError:
        raise not_found() from None


def _checked_headers(request: Request) -> int:
    """How many job services the request came through. Raises Problem 422."""
    errors = []
    if "idempotency-key" in request.headers:
        detail = "the header Idempotency-Key is not supported here: choose the schedule's id instead"
        errors.append({"pointer": "", "detail": detail})
    hops = request.headers.get(HOPS_HEADER, "0")
    if not (hops.isascii() and hops.isdigit() and len(hops) <= 3):
        errors.append({"pointer": "", "detail": f"the header {HOPS_HEADER} is not a count"})
    if errors:
        raise invalid(errors)
    return int(hops)


def _query(request: Request, *known: str) -> dict[str, str]:
    query = request.query_params
    errors = [
        {"parameter": name[:100], "detail": f"is not supported: there is {', '.join(known)}"}
        for name in dict.fromkeys(query.keys())
        if name not in known
    ]
    errors += [
        {"parameter": name, "detail": "is given more than once"} for name in known if len(query.getlist(name)) > 1
    ]
    if errors:
        raise invalid(errors)
    return dict(query)


def _number(given: dict[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
        raise invalid([{"parameter": name, "detail": f"must be a number from 1 to {most}"}])
    return int(text)


def _cursor(text: str) -> UUID:
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        if len(data) != 18 or not data.startswith(b"j1"):
            raise ValueError
        return UUID(bytes=data[2:])
    except (binascii.Error, ValueError):
        raise _no_cursor() from None


def _moment_cursor(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        raise _no_cursor() from None
    return moment


def _no_cursor() -> Problem:
    detail = "is not a cursor of this list: take next_cursor of the page before"
    return invalid([{"parameter": "cursor", "detail": detail}])
