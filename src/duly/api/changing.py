"""PATCH /v1/jobs/{id}: change a job that waits for its time, as it was read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from duly.api.answers import HEADERS, body_of, problem_answers
from duly.api.auth import Writer
from duly.api.creation import read_change
from duly.api.documents import JobDocument
from duly.api.jobs import found_job, read_job_id
from duly.api.problems import Problem, not_found
from duly.api.reading import read_text
from duly.api.render import etag, job_json
from duly.api.services import ServicesHere
from duly.model import State
from duly.model.errors import WrongStateError
from duly.queue import change_job, get_job
from duly.service.changing import change_of
from duly.service.sealing import opened_view

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_IF_MATCH: dict[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "required": True,
    "schema": {"type": "string"},
    "description": "the ETag of the job as it was read",
}


@router.patch(
    "/{id}",
    operation_id="change_job",
    summary="Change a job that waits for its time",
    responses={200: {"model": JobDocument}, **problem_answers(400, 404, 408, 409, 412, 413, 415, 422, 428)},
    openapi_extra={**body_of("ChangeInput"), "parameters": [_IF_MATCH]},
)
async def change_one(id: str, request: Request, caller: Writer, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Its time, headers, body, retry policy, priority or tags. Needs If-Match with the ETag that GET answered: 412 if
    the job is not as it was read, 409 once it does not wait any more.
    """
    job_id = read_job_id(id)
    spec = read_change(await read_text(request, services.settings))
    wanted = request.headers.get("if-match")
    seen = await get_job(services.database, caller.owner, job_id, include_body=spec.touches_the_request)
    if seen is None:
        raise not_found()
    if wanted is None:
        detail = "send If-Match with the ETag of the job as you read it, so that no other change is lost"
        raise Problem(428, "precondition-required", "If-Match is needed", detail)
    if seen.state is not State.SCHEDULED:
        raise WrongStateError(job_id, seen.state, "change", "scheduled")
    if etag(services.opened(seen)) not in [tag.strip() for tag in wanted.split(",")] and wanted.strip() != "*":
        raise _stale()
    job = opened_view(services.keyring, seen) if spec.touches_the_request else seen
    limits = services.limits_of(caller)
    change = change_of(spec, job, now=services.clock.now(), limits=limits, keyring=services.keyring)
    match await change_job(services.database, seen, change):
        case "missing":
            raise not_found()
        case "stale":
            raise _stale()
        case "wrong_state":
            now = await found_job(services, caller, job_id)
            raise WrongStateError(job_id, now.state, "change", "scheduled")
        case "expired":
            detail = "the job would be due at or after its expires_at, and never start"
            raise Problem(409, "expired", "The job would expire", detail)
        case "too_often":
            raise Problem(409, "too-often", "The job was changed too often", "a job can be changed 1,000 times")
        case "changed":
            changed = await found_job(services, caller, job_id)
            return JSONResponse(job_json(changed), 200, {**HEADERS, "etag": etag(changed)})


def _stale() -> Problem:
    detail = "the job is not as you read it any more: read it again, and decide anew"
    return Problem(412, "precondition-failed", "The job has changed", detail)
