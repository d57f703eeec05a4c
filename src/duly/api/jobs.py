"""/v1/jobs: create, list, read, the ledger, cancel, run, redrive."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from duly.api.auth import Reader, Writer, check_scope
from duly.api.creation import read_job
from duly.api.documents import AttemptDocument, AttemptListDocument, JobDocument, JobListDocument
from duly.api.inputs import read_uuid
from duly.api.listing import PARAMETERS, cursor_after, read_flag, read_listing
from duly.api.problems import MEDIA_TYPE, invalid, not_found
from duly.api.reading import read_text
from duly.api.render import attempt_json, body_json, job_json
from duly.api.services import Services, ServicesHere
from duly.http import HOPS_HEADER
from duly.model import NewJob
from duly.model.errors import DatabaseUnavailableError, ExpiredJobError, UniqueKeyTakenError, WrongStateError
from duly.queue import JobView, Owner, cancel, get_job, list_attempts, list_jobs, redrive, run_now
from duly.service import Principal
from duly.service.creating import Created
from duly.service.redaction import Redaction
from duly.service.sealing import opened_excerpt, opened_view
from duly.service.views import as_created

HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


_MEANINGS = {
    400: "not JSON",
    401: "no living API key",
    403: "the key lacks the scope",
    404: "no such job in this project",
    408: "the body came too slowly",
    409: "the id is another job's, the unique key is taken, or the job's state does not allow the call",
    413: "too large",
    415: "not JSON in UTF-8",
    422: "something is wrong with the input",
    503: "the database is away: nothing was accepted",
}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: {"description": _MEANINGS[status], "content": content} for status in sorted({401, 403, 503, *statuses})
    }


_INCLUDE = {"name": "include", "in": "query", "schema": {"type": "string", "enum": ["request_body"]}}
_ABORT = {"name": "abort", "in": "query", "schema": {"type": "boolean", "default": False}}

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=201,
    operation_id="create_job",
    summary="Create a job",
    responses={200: {"model": JobDocument}, 201: {"model": JobDocument}, **_problems(400, 408, 409, 413, 415, 422)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobInput"}}},
        }
    },
)
async def create_job(request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:
    """Store a job; 201 means that it is committed. Repeated with the same id and content it answers the same.

    200: another job holds the unique key, and on_conflict is keep: that one is shown, and this one was not made.
    """
    hops = _checked_headers(request)
    text = await read_text(request, services.settings)
    now = datetime.now(UTC)
    job = read_job(text, now=now, policy=services.policy, limits=services.settings.limits, hops=hops)
    enqueued = await services.creator.create(caller.owner, job)
    shown = enqueued.other if enqueued.result == "kept" and enqueued.other else job.id
    headers = {**HEADERS, "location": f"{services.settings.base_url.rstrip('/')}/v1/jobs/{shown}"}
    if enqueued.result == "kept":
        holder = await get_job(services.database, caller.owner, shown)
        if holder is None:  # it has ended and was pruned; its key is held for a time still
            raise UniqueKeyTakenError(job.unique.key if job.unique else "", shown)
        return JSONResponse(job_json(holder), 200, headers)
    if enqueued.result == "repeated":
        headers["idempotency-replayed"] = "true"
    return JSONResponse(job_json(await _stored(services, caller.owner, job, enqueued)), 201, headers)


@router.get(
    "",
    operation_id="list_jobs",
    summary="List jobs, the newest first",
    responses={200: {"model": JobListDocument}, **_problems(422)},
    openapi_extra={"parameters": PARAMETERS},
)
async def read_jobs(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """A page of jobs without bodies; there is no total, which would cost more than the page."""
    listing = read_listing(request.query_params)
    jobs = await list_jobs(
        services.database,
        caller.owner,
        state=listing.state,
        queue=listing.queue,
        tag=listing.tag,
        before=listing.before,
        limit=listing.limit + 1,
    )
    page = jobs[: listing.limit]
    next_cursor = cursor_after(page[-1].id) if len(jobs) > len(page) else None
    return JSONResponse(
        {"data": [job_json(services.opened(job)) for job in page], "next_cursor": next_cursor}, headers=HEADERS
    )


@router.get(
    "/{id}",
    operation_id="get_job",
    summary="Read a job",
    responses={200: {"model": JobDocument}, **_problems(404, 422)},
    openapi_extra={"parameters": [_INCLUDE]},
)
async def read_one(id: str, request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The job as it stands now; with include=request_body (scope read_payloads) its body too."""
    with_body = _read_include(request)
    if with_body:
        check_scope(caller, "read_payloads")
    job = await get_job(services.database, caller.owner, _job_id(id), include_body=with_body)
    if job is None:
        raise not_found()
    if with_body and not Redaction.of(job.payload).body:
        job = opened_view(services.keyring, job)  # here a missing key is an error, not a mask
    shown = job_json(services.opened(job))
    return JSONResponse(shown | (body_json(job) if with_body else {}), headers=HEADERS)


@router.get(
    "/{id}/attempts",
    operation_id="list_attempts",
    summary="The attempts of a job",
    responses={200: {"model": AttemptListDocument}, **_problems(404)},
)
async def read_attempts(id: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Every attempt that ended, the oldest first."""
    attempts = await list_attempts(services.database, caller.owner, _job_id(id))
    if attempts is None:
        raise not_found()
    opened = [opened_excerpt(services.keyring, attempt, caller.owner.project_id) for attempt in attempts]
    return JSONResponse({"data": [attempt_json(attempt) for attempt in opened]}, headers=HEADERS)


@router.get(
    "/{id}/attempts/{number}",
    operation_id="get_attempt",
    summary="One attempt of a job",
    responses={200: {"model": AttemptDocument}, **_problems(404)},
)
async def read_attempt(id: str, number: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """One attempt, by its number from 1."""
    for attempt in await list_attempts(services.database, caller.owner, _job_id(id)) or ():
        if str(attempt.number) == number:
            opened = opened_excerpt(services.keyring, attempt, caller.owner.project_id)
            return JSONResponse(attempt_json(opened), headers=HEADERS)
    raise not_found()


@router.post(
    "/{id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    responses={200: {"model": JobDocument}, 202: {"model": JobDocument}, **_problems(404, 409, 422)},
    openapi_extra={"parameters": [_ABORT]},
)
async def cancel_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """200: it will not run. 202: it runs at the moment, and not again; with abort=true the request is broken off."""
    abort = read_flag(request.query_params, "abort")
    result = await cancel(services.database, caller.owner, _job_id(id), abort=abort)
    job = await _found(services, caller, id)
    if result == "missing":
        raise not_found()
    if result == "final":
        raise WrongStateError(job.id, job.state, "cancel", "scheduled, ready and running")
    return JSONResponse(job_json(job), 200 if result == "cancelled" else 202, HEADERS)


@router.post(
    "/{id}/run",
    status_code=202,
    operation_id="run_job",
    summary="Run a scheduled job now",
    responses={202: {"model": JobDocument}, **_problems(404, 409)},
)
async def run_one(id: str, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The job is due at once, whatever its time was."""
    result = await run_now(services.database, caller.owner, _job_id(id))
    job = await _found(services, caller, id)
    if result != "run":
        raise WrongStateError(job.id, job.state, "run", "scheduled")
    return JSONResponse(job_json(job), 202, HEADERS)


@router.post(
    "/{id}/redrive",
    status_code=202,
    operation_id="redrive_job",
    summary="Give a dead or cancelled job a fresh budget of attempts",
    responses={202: {"model": JobDocument}, **_problems(404, 409)},
)
async def redrive_one(id: str, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The same job under the same id; the numbering of its attempts goes on."""
    result = await redrive(services.database, caller.owner, _job_id(id), by=f"key {caller.key_id}")
    job = await _found(services, caller, id)
    if result == "expired":
        raise ExpiredJobError(job.id)
    if result == "key_taken" and job.unique is not None:
        raise UniqueKeyTakenError(job.unique.key, None)
    if result != "redriven":
        raise WrongStateError(job.id, job.state, "redrive", "dead and cancelled")
    return JSONResponse(job_json(job), 202, HEADERS)


def _job_id(text: str) -> UUID:
    """The id in a path; whatever is no id names no job."""
    try:
        return read_uuid(text)
    except ValueError:
        raise not_found() from None


async def _found(services: Services, caller: Principal, id_text: str) -> JobView:
    job = await get_job(services.database, caller.owner, _job_id(id_text))
    if job is None:
        raise not_found()
    return services.opened(job)


async def _stored(services: Services, owner: Owner, job: NewJob, enqueued: Created) -> JobView:
    """The job as it was created; a repeated one as it stands now.

    It is committed: a database that goes away now must not look like a failure.
    """
    stored = None
    if enqueued.result == "repeated":
        with contextlib.suppress(DatabaseUnavailableError):
            stored = await get_job(services.database, owner, job.id)
    return services.opened(stored) if stored else as_created(owner, enqueued.job, enqueued.stored_at)


def _checked_headers(request: Request) -> int:
    """How many job services the request came through. Raises Problem 422."""
    errors = []
    if "idempotency-key" in request.headers:
        errors.append(
            {"pointer": "", "detail": "the header Idempotency-Key is not supported yet: choose the job's id instead"}
        )
    hops = request.headers.get(HOPS_HEADER, "0")
    if not (hops.isascii() and hops.isdigit() and len(hops) <= 3):
        errors.append({"pointer": "", "detail": f"the header {HOPS_HEADER} is not a count"})
    if errors:
        raise invalid(errors)
    return int(hops)


def _read_include(request: Request) -> bool:
    errors = [
        {"parameter": name[:100], "detail": "is not supported: there is only include=request_body"}
        for name, value in request.query_params.multi_items()
        if (name, value) != ("include", "request_body")
    ]
    if errors:
        raise invalid(errors)
    return "include" in request.query_params
