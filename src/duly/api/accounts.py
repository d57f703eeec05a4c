"""/v1/accounts, /v1/plans: customers and what they may do. Reading one's own account needs the scope admin; all else an
admin key of an operator's account.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from duly.api.admin_documents import (
    AccountDocument,
    AccountListDocument,
    PlanDocument,
    PlanListDocument,
    account_json,
    plan_json,
)
from duly.api.admin_inputs import AccountChangeInput, AccountInput, PlanInput
from duly.api.answers import BODY, HEADERS, body_of, problem_answers
from duly.api.auth import Admin, Operator
from duly.api.idempotency import unsupported
from duly.api.inputs import read_uuid
from duly.api.objects import read_object
from duly.api.paging import PARAMETERS, page_json, read_page
from duly.api.problems import not_found
from duly.api.services import ServicesHere
from duly.service import (
    change_account,
    create_account,
    delete_account,
    delete_plan,
    disable_account,
    enable_account,
    get_account,
    get_plan,
    list_accounts,
    list_plans,
    put_plan,
)

router = APIRouter(tags=["accounts"], dependencies=[Depends(unsupported)])


def path_id(text: str) -> UUID:
    """The id in a path; whatever is no id names nothing."""
    try:
        return read_uuid(text)
    except ValueError:
        raise not_found() from None


@router.get(
    "/v1/accounts",
    operation_id="list_accounts",
    summary="List accounts",
    responses={200: {"model": AccountListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": PARAMETERS},
)
async def read_accounts(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """All accounts for an operator's key; for others their own."""
    page = read_page(request.query_params)
    found = await list_accounts(services.database, within=caller.reach, after=page.after, limit=page.limit + 1)
    return JSONResponse(page_json(found, page, account_json, lambda account: account.id), headers=HEADERS)


@router.post(
    "/v1/accounts",
    status_code=201,
    operation_id="create_account",
    summary="Create an account",
    responses={201: {"model": AccountDocument}, **problem_answers(*BODY)},
    openapi_extra=body_of("AccountInput"),
)
async def create_one(request: Request, _: Operator, services: ServicesHere) -> JSONResponse:
    """Make an account; a project and a key come next."""
    given = await read_object(request, services, AccountInput)
    account = await create_account(services.database, given.name, plan=given.plan, limits=given.limits.given())
    return JSONResponse(account_json(account), 201, HEADERS | {"location": f"/v1/accounts/{account.id}"})


@router.get(
    "/v1/accounts/{id}",
    operation_id="get_account",
    summary="Read an account",
    responses={200: {"model": AccountDocument}, **problem_answers(404)},
)
async def read_account(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """The account with its limits."""
    account = await get_account(services.database, path_id(id), within=caller.reach)
    return JSONResponse(account_json(account), headers=HEADERS)


@router.patch(
    "/v1/accounts/{id}",
    operation_id="change_account",
    summary="Change an account's name, plan or limits",
    responses={200: {"model": AccountDocument}, **problem_answers(404, *BODY)},
    openapi_extra=body_of("AccountChangeInput"),
)
async def change_one(id: str, request: Request, _: Operator, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """New limits apply to what is claimed and created next; what runs goes on."""
    given = await read_object(request, services, AccountChangeInput)
    changes: dict[str, Any] = {name: getattr(given, name) for name in given.model_fields_set}
    if given.limits is not None:
        changes["limits"] = given.limits.given()
    changes = {name: value for name, value in changes.items() if name == "plan" or value is not None}
    return JSONResponse(account_json(await change_account(services.database, path_id(id), changes)), headers=HEADERS)


@router.post(
    "/v1/accounts/{id}/disable",
    operation_id="disable_account",
    summary="Disable an account",
    responses={200: {"model": AccountDocument}, **problem_answers(404, 409)},
)
async def disable_one(id: str, _: Operator, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Its keys are refused and none of its jobs starts; what runs ends as ever, and nothing is lost."""
    return JSONResponse(account_json(await disable_account(services.database, path_id(id))), headers=HEADERS)


@router.post(
    "/v1/accounts/{id}/enable",
    operation_id="enable_account",
    summary="Enable an account again",
    responses={200: {"model": AccountDocument}, **problem_answers(404)},
)
async def enable_one(id: str, _: Operator, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """What waited goes on."""
    return JSONResponse(account_json(await enable_account(services.database, path_id(id))), headers=HEADERS)


@router.delete(
    "/v1/accounts/{id}",
    status_code=204,
    operation_id="delete_account",
    summary="Delete an account",
    responses=problem_answers(404, 409),
)
async def delete_one(id: str, _: Operator, services: ServicesHere) -> Response:  # noqa: A002
    """Only one that has been disabled for a minute, and has no job that has not ended."""
    await delete_account(services.database, path_id(id))
    return Response(status_code=204, headers=HEADERS)


@router.get(
    "/v1/plans",
    operation_id="list_plans",
    summary="List plans",
    responses={200: {"model": PlanListDocument}, **problem_answers()},
)
async def read_plans(_: Operator, services: ServicesHere) -> JSONResponse:
    """All plans, by name."""
    return JSONResponse({"data": [plan_json(plan) for plan in await list_plans(services.database)]}, headers=HEADERS)


@router.get(
    "/v1/plans/{name}",
    operation_id="get_plan",
    summary="Read a plan",
    responses={200: {"model": PlanDocument}, **problem_answers(404)},
)
async def read_plan(name: str, _: Operator, services: ServicesHere) -> JSONResponse:
    """A named set of limits."""
    return JSONResponse(plan_json(await get_plan(services.database, _storable(name))), headers=HEADERS)


@router.put(
    "/v1/plans/{name}",
    operation_id="put_plan",
    summary="Make or replace a plan",
    responses={200: {"model": PlanDocument}, **problem_answers(*BODY)},
    openapi_extra=body_of("PlanInput"),
)
async def put_one_plan(name: str, request: Request, _: Operator, services: ServicesHere) -> JSONResponse:
    """Its limits apply to all its accounts at once."""
    given = await read_object(request, services, PlanInput)
    return JSONResponse(plan_json(await put_plan(services.database, name, given.limits.given())), headers=HEADERS)


@router.delete(
    "/v1/plans/{name}",
    status_code=204,
    operation_id="delete_plan",
    summary="Delete a plan",
    responses=problem_answers(404, 409),
)
async def delete_one_plan(name: str, _: Operator, services: ServicesHere) -> Response:
    """Only one that no account has."""
    await delete_plan(services.database, _storable(name))
    return Response(status_code=204, headers=HEADERS)


def _storable(name: str) -> str:
    """A name in a path; what PostgreSQL cannot hold names nothing."""
    if "\x00" in name:
        raise not_found()
    return name
