"""POST /v1/jobs/batch: many jobs, one transaction: all of them or none."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from duly.api.admission import create_all_within_limits
from duly.api.answers import HEADERS, JsonAnswer, body_of, problem_answers
from duly.api.auth import Writer
from duly.api.creation import read_job
from duly.api.documents import BatchDocument
from duly.api.idempotency import PARAMETER, once
from duly.api.inputs import JobInput
from duly.api.jobs import read_hops
from duly.api.problems import Problem
from duly.api.reading import read_text
from duly.api.services import Services, ServicesHere
from duly.api.strict_json import MalformedJsonError, read_items
from duly.model import NewJob
from duly.queue import Session
from duly.service import Principal
from duly.service.faults import BodyTooLargeError, Fault, InvalidBatchError, InvalidJobError

_AT_A_TIME = 20  # jobs that are read before others get their turn

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class BatchInput(BaseModel):
    """Jobs to create in one transaction."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[JobInput], Field(min_length=1, max_length=1000)]


@router.post(
    "/batch",
    operation_id="create_jobs",
    summary="Create many jobs, all or none",
    responses={200: {"model": BatchDocument}, **problem_answers(400, 408, 409, 413, 415, 422)},
    openapi_extra={**body_of("BatchInput"), "parameters": [PARAMETER]},
)
async def create_jobs(request: Request, caller: Writer, services: ServicesHere) -> Response:
    """1,000 jobs or 5 MB at most. 200 means that all are committed; anything else, that none is.

    422 names every bad field of every bad job. 409: the id or the unique key of some is another job's.
    """
    hops = read_hops(request)
    text = await read_text(request, services.settings, services.settings.batch_limit_bytes)

    async def act(session: Session | None) -> JSONResponse:
        jobs = await _read_jobs(text, services, caller, hops)
        enqueued = await create_all_within_limits(services, caller, jobs, session)
        data = [
            {"id": str(answer.other if answer.result == "kept" else answer.job_id), "result": answer.result}
            for answer in enqueued
        ]
        return JsonAnswer({"data": data}, 200, HEADERS)

    return await once(request, services, caller, text, act)


async def _read_jobs(text: str, services: Services, caller: Principal, hops: int) -> list[NewJob]:
    items = _items(text, services.settings.batch_limit)
    now, limits = services.clock.now(), services.limits_of(caller)
    jobs: list[NewJob] = []
    faults: dict[int, list[Fault]] = {}
    for place, item in enumerate(items):
        if place % _AT_A_TIME == _AT_A_TIME - 1:
            await asyncio.sleep(0)
        try:
            if not item.startswith("{"):
                raise InvalidJobError([Fault("", "must be an object")])
            jobs.append(read_job(item, now=now, policy=services.policy, limits=limits, hops=hops))
        except InvalidJobError as error:
            faults[place] = list(error.faults)
        except BodyTooLargeError as error:
            faults[place] = [Fault("", str(error))]
        except Problem as error:  # too deep, too many digits
            faults[place] = [Fault("", error.detail)]
    if not faults:
        faults = _twins(jobs)
    if faults:
        raise InvalidBatchError(faults)
    return jobs


def _items(text: str, most: int) -> list[str]:
    """The texts of the jobs. Raises Problem 400 or 422 for what is no batch."""
    try:
        items, faults = read_items(text, "jobs")
    except MalformedJsonError as error:
        raise Problem(400, "malformed", "The body is not JSON", str(error)) from None
    if len(items) > most:
        faults.append(Fault("/jobs", f"has {len(items)} jobs: send at most {most} at a time"))
    if faults:
        raise InvalidJobError(faults)
    return items


def _twins(jobs: list[NewJob]) -> dict[int, list[Fault]]:
    """Ids that are given twice: one batch cannot say two things of one job."""
    first: dict[object, int] = {}
    return {
        place: [Fault("/id", f"is that of job {first[job.id]} of this batch, too")]
        for place, job in enumerate(jobs)
        if first.setdefault(job.id, place) != place
    }
