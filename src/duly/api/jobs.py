"""/v1/jobs: create, list, read, the ledger, cancel, run, redrive, replay."""

from __future__ import annotations

import contextlib
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from duly.api.admission import create_within_limits
from duly.api.answers import HEADERS, JsonAnswer, body_of, problem_answers
from duly.api.auth import Reader, Writer, check_scope
from duly.api.creation import read_job
from duly.api.documents import AttemptDocument, AttemptListDocument, JobDocument, JobListDocument
from duly.api.idempotency import PARAMETER, once
from duly.api.inputs import read_uuid
from duly.api.listing import PARAMETERS, cursor_after, read_flag, read_listing
from duly.api.problems import invalid, not_found
from duly.api.reading import read_text
from duly.api.render import attempt_json, body_json, etag, job_json
from duly.api.services import Services, ServicesHere
from duly.http import HOPS_HEADER
from duly.model import NewJob
from duly.model.errors import DatabaseUnavailableError, ExpiredJobError, UniqueKeyTakenError, WrongStateError
from duly.queue import (
    JobView,
    Owner,
    Session,
    cancel,
    find_ids,
    get_job,
    list_attempts,
    look_at,
    redrive,
    run_now,
)
from duly.service import Principal
from duly.service.creating import Created
from duly.service.redaction import Redaction
from duly.service.replaying import replayed_job
from duly.service.sealing import opened_excerpt, opened_view
from duly.service.views import as_created

_INCLUDE = {"name": "include", "in": "query", "schema": {"type": "string", "enum": ["request_body"]}}
_ABORT = {"name": "abort", "in": "query", "schema": {"type": "boolean", "default": False}}

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=201,
    operation_id="create_job",
    summary="Create a job",
    responses={
        200: {"model": JobDocument},
        201: {"model": JobDocument},
        **problem_answers(400, 408, 409, 413, 415, 422),
    },
    openapi_extra={**body_of("JobInput"), "parameters": [PARAMETER]},
)
async def create_job(request: Request, caller: Writer, services: ServicesHere) -> Response:
    """Store a job; 201 means that it is committed. Repeated with the same id and content it answers the same.

    200: another job holds the unique key, and on_conflict is keep: that one is shown, and this one was not made.
    """
    hops = read_hops(request)
    text = await read_text(request, services.settings)

    async def act(session: Session | None) -> JSONResponse:
        now = services.clock.now()
        job = read_job(text, now=now, policy=services.policy, limits=services.limits_of(caller), hops=hops)
        return await answer_created(services, caller, job, session)

    return await once(request, services, caller, text, act)


@router.get(
    "",
    operation_id="list_jobs",
    summary="List jobs, the newest first",
    responses={200: {"model": JobListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": PARAMETERS},
)
async def read_jobs(request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:
    """A page of jobs without bodies; there is no total, which would cost more than the page.

    Where no index serves the filter a call looks at a bounded number of jobs: its page may be short and have a cursor.
    """
    listing = read_listing(request.query_params)
    found = await find_ids(
        services.database, caller.owner, listing.wanted, before=listing.before, limit=listing.limit + 1
    )
    jobs = await look_at(services.database, caller.owner, found.ids[: listing.limit])
    place = found.ids[listing.limit - 1] if len(found.ids) > listing.limit else found.place
    next_cursor = None if place is None else cursor_after(place)
    return JSONResponse(
        {"data": [job_json(services.opened(job)) for job in jobs], "next_cursor": next_cursor}, headers=HEADERS
    )


@router.get(
    "/{id}",
    operation_id="get_job",
    summary="Read a job",
    responses={200: {"model": JobDocument}, **problem_answers(404, 422)},
    openapi_extra={"parameters": [_INCLUDE]},
)
async def read_one(id: str, request: Request, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The job as it stands now; with include=request_body (scope read_payloads) its body too."""
    with_body = _read_include(request)
    if with_body:
        check_scope(caller, "read_payloads")
    job = await get_job(services.database, caller.owner, read_job_id(id), include_body=with_body)
    if job is None:
        raise not_found()
    if with_body and not Redaction.of(job.payload).body:
        job = opened_view(services.keyring, job)  # here a missing key is an error, not a mask
    shown = services.opened(job)
    headers = {**HEADERS, "etag": etag(shown)}
    return JSONResponse(job_json(shown) | (body_json(job) if with_body else {}), headers=headers)


@router.get(
    "/{id}/attempts",
    operation_id="list_attempts",
    summary="The attempts of a job",
    responses={200: {"model": AttemptListDocument}, **problem_answers(404)},
)
async def read_attempts(id: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Every attempt that ended, the oldest first."""
    attempts = await list_attempts(services.database, caller.owner, read_job_id(id))
    if attempts is None:
        raise not_found()
    opened = [opened_excerpt(services.keyring, attempt, caller.owner.project_id) for attempt in attempts]
    return JSONResponse({"data": [attempt_json(attempt) for attempt in opened]}, headers=HEADERS)


@router.get(
    "/{id}/attempts/{number}",
    operation_id="get_attempt",
    summary="One attempt of a job",
    responses={200: {"model": AttemptDocument}, **problem_answers(404)},
)
async def read_attempt(id: str, number: str, caller: Reader, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """One attempt, by its number from 1."""
    for attempt in await list_attempts(services.database, caller.owner, read_job_id(id)) or ():
        if str(attempt.number) == number:
            opened = opened_excerpt(services.keyring, attempt, caller.owner.project_id)
            return JSONResponse(attempt_json(opened), headers=HEADERS)
    raise not_found()


@router.post(
    "/{id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    responses={200: {"model": JobDocument}, 202: {"model": JobDocument}, **problem_answers(404, 409, 422)},
    openapi_extra={"parameters": [_ABORT, PARAMETER]},
)
async def cancel_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> Response:  # noqa: A002
    """200: it will not run. 202: it runs at the moment, and not again; with abort=true the request is broken off."""
    abort = read_flag(request.query_params, "abort")
    job_id = read_job_id(id)

    async def act(session: Session | None) -> JSONResponse:
        result = await cancel(session or services.database, caller.owner, job_id, abort=abort)
        job = await found_job(services, caller, job_id, session)
        if result == "final":
            raise WrongStateError(job.id, job.state, "cancel", "scheduled, ready and running")
        return JSONResponse(job_json(job), 200 if result == "cancelled" else 202, HEADERS)

    return await once(request, services, caller, "", act)


@router.post(
    "/{id}/run",
    status_code=202,
    operation_id="run_job",
    summary="Run a scheduled job now",
    responses={202: {"model": JobDocument}, **problem_answers(404, 409, 422)},
    openapi_extra={"parameters": [PARAMETER]},
)
async def run_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> Response:  # noqa: A002
    """The job is due at once, whatever its time was."""
    job_id = read_job_id(id)

    async def act(session: Session | None) -> JSONResponse:
        result = await run_now(session or services.database, caller.owner, job_id)
        job = await found_job(services, caller, job_id, session)
        if result != "run":
            raise WrongStateError(job.id, job.state, "run", "scheduled")
        return JSONResponse(job_json(job), 202, HEADERS)

    return await once(request, services, caller, "", act)


@router.post(
    "/{id}/redrive",
    status_code=202,
    operation_id="redrive_job",
    summary="Give a dead or cancelled job a fresh budget of attempts",
    responses={202: {"model": JobDocument}, **problem_answers(404, 409, 422)},
    openapi_extra={"parameters": [PARAMETER]},
)
async def redrive_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> Response:  # noqa: A002
    """The same job under the same id; the numbering of its attempts goes on."""
    job_id = read_job_id(id)

    async def act(session: Session | None) -> JSONResponse:
        result = await redrive(session or services.database, caller.owner, job_id, by=f"key {caller.key_id}")
        job = await found_job(services, caller, job_id, session)
        if result == "expired":
            raise ExpiredJobError(job.id)
        if result == "key_taken" and job.unique is not None:
            raise UniqueKeyTakenError(job.unique.key, None)
        if result != "redriven":
            raise WrongStateError(job.id, job.state, "redrive", "dead and cancelled")
        return JSONResponse(job_json(job), 202, HEADERS)

    return await once(request, services, caller, "", act)


@router.post(
    "/{id}/replay",
    status_code=201,
    operation_id="replay_job",
    summary="Create a new job as a copy of one that has ended",
    responses={
        200: {"model": JobDocument},
        201: {"model": JobDocument},
        **problem_answers(404, 409, 422),
    },
    openapi_extra={"parameters": [PARAMETER]},
)
async def replay_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> Response:  # noqa: A002
    """A new id, due now, with a budget and a ledger of its own, and `replay_of` set. All else is as it was made, the
    unique key too; a time to expire is left out.
    """
    job_id = read_job_id(id)

    async def act(session: Session | None) -> JSONResponse:
        job = await get_job(session or services.database, caller.owner, job_id, include_body=True)
        if job is None:
            raise not_found()
        copy = replayed_job(opened_view(services.keyring, job), policy=services.policy)
        return await answer_created(services, caller, copy, session)

    return await once(request, services, caller, "", act)


def read_job_id(text: str) -> UUID:
    """The id in a path; whatever is no id names no job."""
    try:
        return read_uuid(text)
    except ValueError:
        raise not_found() from None


async def found_job(services: Services, caller: Principal, job_id: UUID, session: Session | None = None) -> JobView:
    """The caller's job as it stands now, in the clear. Raises Problem 404."""
    job = await get_job(session or services.database, caller.owner, job_id)
    if job is None:
        raise not_found()
    return services.opened(job)


async def answer_created(services: Services, caller: Principal, job: NewJob, session: Session | None) -> JSONResponse:
    """Store a job and show it: 201, or 200 with the job that keeps its unique key."""
    owner = caller.owner
    enqueued = await create_within_limits(services, caller, job, session)
    shown = enqueued.other if enqueued.result == "kept" and enqueued.other else job.id
    headers = {**HEADERS, "location": f"{services.settings.base_url.rstrip('/')}/v1/jobs/{shown}"}
    if enqueued.result == "kept":
        holder = await get_job(session or services.database, owner, shown)
        if holder is None:  # it has ended and was pruned; its key is held for a time still
            raise UniqueKeyTakenError(job.unique.key if job.unique else "", shown)
        return JSONResponse(job_json(services.opened(holder)), 200, headers)
    if enqueued.result == "repeated":
        headers["idempotency-replayed"] = "true"
    stored = await _stored(services, owner, job, enqueued, session)
    return JsonAnswer(job_json(stored), 201, headers)


async def _stored(services: Services, owner: Owner, job: NewJob, enqueued: Created, session: Session | None) -> JobView:
    """The job as it was created; a repeated one as it stands now.

    It is committed: a database that goes away now must not look like a failure.
    """
    stored = None
    if enqueued.result == "repeated":
        with contextlib.suppress(DatabaseUnavailableError):
            stored = await get_job(session or services.database, owner, job.id)
    return services.opened(stored) if stored else as_created(owner, enqueued.job, enqueued.stored_at)


def read_hops(request: Request) -> int:
    """How many job services the request came through. Raises Problem 422."""
    hops = ",".join(request.headers.getlist(HOPS_HEADER)) or "0"
    if not (hops.isascii() and hops.isdigit() and len(hops) <= 3):
        raise invalid([{"pointer": "", "detail": f"the header {HOPS_HEADER} is not a count"}])
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
