"""Calls for many jobs: /v1/jobs/bulk/cancel and /redrive, and how far they got: /v1/operations/{id}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from duly.api.answers import HEADERS, body_of, problem_answers
from duly.api.auth import Reader, Writer
from duly.api.documents import BulkCountDocument, OperationDocument
from duly.api.idempotency import PARAMETER, once
from duly.api.inputs import read_uuid
from duly.api.listing import FILTERS, read_filter
from duly.api.problems import Problem, invalid, not_found
from duly.api.reading import read_text
from duly.api.render import operation_json
from duly.api.services import Services, ServicesHere
from duly.api.strict_json import MalformedJsonError, pointer, read_members
from duly.model import State
from duly.queue import Call, JobFilter, Owner, Session, find_ids, get_operation, make_operation
from duly.service import Principal

MOST = 1_000_000
DEFAULT_MOST = 1_000
DEFAULT_RATE = 100.0
_COUNT_LOOK = 50_000  # at how many jobs a dry run looks
_STATES: dict[Call, tuple[State, ...]] = {
    "cancel": (State.SCHEDULED, State.READY, State.RUNNING),
    "redrive": (State.DEAD, State.CANCELLED),
}

router = APIRouter(prefix="/v1", tags=["bulk"])


class BulkInput(BaseModel):
    """Which jobs, how many, how fast."""

    model_config = ConfigDict(extra="forbid")

    filter: Annotated[
        dict[str, Any],
        Field(min_length=1, description="as the list's", json_schema_extra={"properties": FILTERS}),
    ]
    limit: Annotated[int, Field(ge=1, le=MOST, description="how many jobs at most")] = DEFAULT_MOST
    rate: Annotated[float, Field(ge=0.1, le=1000, description="how many a second at most")] = DEFAULT_RATE
    dry_run: Annotated[bool, Field(description="only count them")] = False


@dataclass(frozen=True, slots=True)
class _Asked:
    wanted: JobFilter
    most: int
    rate: float
    dry_run: bool


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": BulkCountDocument},
    202: {"model": OperationDocument},
    **problem_answers(400, 408, 409, 413, 415, 422),
}
_EXTRA = {**body_of("BulkInput"), "parameters": [PARAMETER]}


@router.post(
    "/jobs/bulk/cancel",
    operation_id="cancel_jobs",
    summary="Cancel the jobs that match a filter",
    responses=_RESPONSES,
    openapi_extra=_EXTRA,
)
async def cancel_many(request: Request, caller: Writer, services: ServicesHere) -> Response:
    """202: an operation that upkeep carries out, `rate` jobs a second. With dry_run 200: how many they would be.

    Without a state in the filter: those scheduled, ready and running.
    """
    return await _answer("cancel", request, caller, services)


@router.post(
    "/jobs/bulk/redrive",
    operation_id="redrive_jobs",
    summary="Redrive the jobs that match a filter",
    responses=_RESPONSES,
    openapi_extra=_EXTRA,
)
async def redrive_many(request: Request, caller: Writer, services: ServicesHere) -> Response:
    """202: an operation that upkeep carries out, `rate` jobs a second. With dry_run 200: how many they would be.

    Without a state in the filter: those dead and cancelled.
    """
    return await _answer("redrive", request, caller, services)


@router.get(
    "/operations/{id}",
    operation_id="get_operation",
    summary="How far a call for many jobs got",
    responses={200: {"model": OperationDocument}, **problem_answers(404)},
)
async def read_operation(id: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Who asked for it and when, and what was done so far."""
    try:
        operation_id = read_uuid(id)
    except ValueError:
        raise not_found() from None
    operation = await get_operation(services.database, caller.owner, operation_id)
    if operation is None:
        raise not_found()
    return JSONResponse(operation_json(operation), headers=HEADERS)


async def _answer(call: Call, request: Request, caller: Principal, services: Services) -> Response:
    text = await read_text(request, services.settings)

    async def act(session: Session | None) -> JSONResponse:
        asked = _read(text, call)
        db = session or services.database
        if asked.dry_run:
            return JSONResponse(await _count(services, caller.owner, asked), 200, HEADERS)
        operation = await make_operation(
            db, caller.owner, call, asked.wanted, most=asked.most, rate=asked.rate, by=f"key {caller.key_id}"
        )
        location = f"{services.settings.base_url.rstrip('/')}/v1/operations/{operation.id}"
        return JSONResponse(operation_json(operation), 202, {**HEADERS, "location": location})

    return await once(request, services, caller, text, act)


async def _count(services: Services, owner: Owner, asked: _Asked) -> dict[str, Any]:
    """Counted in bounded calls, up to the limit and to what one request may look at."""
    count, looked, place = 0, 0, None
    while True:
        page = await find_ids(
            services.database, owner, asked.wanted, before=place, limit=min(1000, asked.most - count), look=5000
        )
        count, looked, place = count + len(page.ids), looked + page.looked, page.place
        if place is None or count >= asked.most or looked >= _COUNT_LOOK:
            return {"count": count, "complete": place is None}


def _read(text: str, call: Call) -> _Asked:
    """Raises Problem 400, or 422 with everything that is wrong."""
    try:
        members, faults = read_members(text)
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    errors: list[dict[str, str | int]] = [{"pointer": fault.pointer, "detail": fault.detail} for fault in faults]
    given = {name: member.value for name, member in members.items() if member.value is not None}

    def refuse(name: str, detail: str) -> None:
        errors.append({"pointer": pointer(*name.split("/")), "detail": detail})

    for name in given.keys() - BulkInput.model_fields.keys():
        refuse(name, "is not a member of this call: there are filter, limit, rate and dry_run")
    wanted = _read_wanted(given.get("filter"), call, refuse) if not _known_bad("filter", errors) else JobFilter()
    most, rate, dry_run = given.get("limit", DEFAULT_MOST), given.get("rate", DEFAULT_RATE), given.get("dry_run", False)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST:
        refuse("limit", f"must be a number from 1 to {MOST:,}")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.1 <= rate <= 1000:
        refuse("rate", "must be a number of jobs a second, from 0.1 to 1,000")
    if not isinstance(dry_run, bool):
        refuse("dry_run", "must be true or false")
    if errors:
        raise invalid(errors)
    return _Asked(wanted, most, float(rate), dry_run)


def _known_bad(name: str, errors: list[dict[str, str | int]]) -> bool:
    return any(str(error["pointer"]).split("/")[1:2] == [name] for error in errors)


def _read_wanted(given: Any, call: Call, refuse: Any) -> JobFilter:
    if not isinstance(given, Mapping) or not {name for name, value in given.items() if value is not None}:
        refuse("filter", "must be an object with at least one condition: a call for all jobs is not taken")
        return JobFilter()
    wanted, faults = read_filter({name: value for name, value in given.items() if value is not None})
    for name, detail in faults:
        refuse(f"filter/{name}", detail)
    allowed = _STATES[call]
    if not set(wanted.states) <= set(allowed):
        refuse("filter/state", f"must be of {', '.join(allowed)}: there is nothing to {call} in others")
    return wanted if wanted.states else replace(wanted, states=allowed)
