"""/v1/notices: who is told when something needs a person. Scope admin, of the own account; an operator's for all."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from duly.api.accounts import path_id
from duly.api.admin_documents import NoticeDocument, NoticeListDocument, NoticeTestDocument, notice_json
from duly.api.admin_inputs import NoticeInput
from duly.api.answers import BODY, HEADERS, body_of, problem_answers
from duly.api.auth import Admin
from duly.api.idempotency import unsupported
from duly.api.objects import read_object
from duly.api.paging import PARAMETERS, page_json, parameter, read_page
from duly.api.problems import Problem
from duly.api.services import ServicesHere
from duly.queue import server_now
from duly.service.notices import (
    check_notice_url,
    find_notices,
    get_notice,
    notice_job,
    put_notice,
    remove_notice,
    trial_message,
)
from duly.service.plans import NO_LIMITS

router = APIRouter(prefix="/v1/notices", tags=["notices"], dependencies=[Depends(unsupported)])

_OF_PROJECT = parameter("project_id", "only notices of this project", format="uuid")


@router.get(
    "",
    operation_id="list_notices",
    summary="List notices",
    responses={200: {"model": NoticeListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": [_OF_PROJECT, *PARAMETERS]},
)
async def read_notices(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Which URLs are told, and of what; the oldest first."""
    page = read_page(request.query_params, ["project_id"])
    found = await find_notices(
        services.database,
        within=caller.reach,
        project_id=page.id_of("project_id"),
        after=page.after,
        limit=page.limit + 1,
    )
    return JSONResponse(page_json(found, page, notice_json, lambda notice: notice.id), headers=HEADERS)


@router.put(
    "",
    operation_id="put_notice",
    summary="Have a URL told when something needs a person",
    responses={
        200: {"model": NoticeDocument},
        201: {"model": NoticeDocument, "description": "it was not told before"},
        **problem_answers(404, 409, *BODY),
    },
    openapi_extra=body_of("NoticeInput"),
)
async def put_one(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Sent again with the same URL it changes what that is told of. About everything: with an operator's key only."""
    given = await read_object(request, services, NoticeInput)
    settings = given.settings(check_notice_url(given.url, services.policy))
    if given.about == "everything" and not caller.operator:
        raise Problem(
            403, "operator-only", "The key may not do this", "this needs an admin key of an operator's account"
        )
    notice, is_new = await put_notice(
        services.database,
        given.project_id or caller.project_id,
        given.about,
        given.account_id,
        settings,
        within=caller.reach,
    )
    return JSONResponse(notice_json(notice), 201 if is_new else 200, HEADERS)


@router.get(
    "/{id}",
    operation_id="get_notice",
    summary="Read a notice",
    responses={200: {"model": NoticeDocument}, **problem_answers(404)},
)
async def read_one(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Its URL, and what that is told of."""
    notice = await get_notice(services.database, path_id(id), within=caller.reach)
    return JSONResponse(notice_json(notice), headers=HEADERS)


@router.delete(
    "/{id}",
    status_code=204,
    operation_id="delete_notice",
    summary="Tell a URL no more",
    responses=problem_answers(404),
)
async def delete_one(id: str, caller: Admin, services: ServicesHere) -> Response:  # noqa: A002
    """What is on its way still arrives."""
    await remove_notice(services.database, path_id(id), within=caller.reach)
    return Response(status_code=204, headers=HEADERS)


@router.post(
    "/{id}/test",
    status_code=201,
    operation_id="test_notice",
    summary="Send a test notice now",
    responses={201: {"model": NoticeTestDocument}, **problem_answers(404, 422)},
)
async def test_one(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """A job of the notice's project, like every notice; it counts as any job does. Look there for what came of it."""
    notice = await get_notice(services.database, path_id(id), within=caller.reach)
    now = await server_now(services.database)
    job = notice_job(notice, trial_message(notice, now), now=now, policy=services.policy)
    account = notice.owner.account_id
    limits = caller.limits if account == caller.owner.account_id else NO_LIMITS  # an operator's test is on the house
    async with services.allowances.take(account, limits) as taking:
        await services.creator.create(notice.owner, job)
        taking.created = 1
    return JSONResponse({"job_id": str(job.id)}, 201, HEADERS)
