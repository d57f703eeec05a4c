"""/v1/projects: the environments of an account. Scope admin, for the key's own account; an operator's for all."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from duly.api.accounts import path_id
from duly.api.admin_documents import (
    NewProjectDocument,
    ProjectDocument,
    ProjectListDocument,
    new_secret_json,
    project_json,
)
from duly.api.admin_inputs import ProjectChangeInput, ProjectInput
from duly.api.answers import BODY, HEADERS, body_of, problem_answers
from duly.api.auth import Admin
from duly.api.idempotency import unsupported
from duly.api.objects import read_object
from duly.api.paging import PARAMETERS, page_json, parameter, read_page
from duly.api.services import ServicesHere
from duly.service import delete_project, get_project, list_projects, rename_project
from duly.service.accounts import create_project_with_secret

router = APIRouter(prefix="/v1/projects", tags=["projects"], dependencies=[Depends(unsupported)])

_OF_ACCOUNT = parameter("account_id", "only projects of this account", format="uuid")


@router.get(
    "",
    operation_id="list_projects",
    summary="List projects",
    responses={200: {"model": ProjectListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": [_OF_ACCOUNT, *PARAMETERS]},
)
async def read_projects(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Those of the key's account; of all accounts for an operator's key."""
    page = read_page(request.query_params, ["account_id"])
    found = await list_projects(
        services.database, page.id_of("account_id"), within=caller.reach, after=page.after, limit=page.limit + 1
    )
    return JSONResponse(page_json(found, page, project_json, lambda project: project.id), headers=HEADERS)


@router.post(
    "",
    status_code=201,
    operation_id="create_project",
    summary="Create a project",
    responses={201: {"model": NewProjectDocument}, **problem_answers(404, 409, *BODY)},
    openapi_extra=body_of("ProjectInput"),
)
async def create_one(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """With its first signing secret, which is shown here and never again."""
    given = await read_object(request, services, ProjectInput)
    project, secret = await create_project_with_secret(
        services.database,
        given.account_id or caller.account_id,
        given.name,
        within=caller.reach,
        keyring=services.keyring,
    )
    shown = project_json(project) | {"signing_secret": new_secret_json(secret, project)}
    return JSONResponse(shown, 201, HEADERS | {"location": f"/v1/projects/{project.id}"})


@router.get(
    "/{id}",
    operation_id="get_project",
    summary="Read a project",
    responses={200: {"model": ProjectDocument}, **problem_answers(404)},
)
async def read_project(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """One project."""
    project = await get_project(services.database, path_id(id), within=caller.reach)
    return JSONResponse(project_json(project), headers=HEADERS)


@router.patch(
    "/{id}",
    operation_id="change_project",
    summary="Rename a project",
    responses={200: {"model": ProjectDocument}, **problem_answers(404, *BODY)},
    openapi_extra=body_of("ProjectChangeInput"),
)
async def change_one(id: str, request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Nothing hangs on the name."""
    given = await read_object(request, services, ProjectChangeInput)
    project = await rename_project(services.database, path_id(id), given.name, within=caller.reach)
    return JSONResponse(project_json(project), headers=HEADERS)


@router.delete(
    "/{id}",
    status_code=204,
    operation_id="delete_project",
    summary="Delete a project",
    responses=problem_answers(404, 409),
)
async def delete_one(id: str, caller: Admin, services: ServicesHere) -> Response:  # noqa: A002
    """Only one without a job that has not ended. Its keys are refused from then on."""
    await delete_project(services.database, path_id(id), within=caller.reach)
    return Response(status_code=204, headers=HEADERS)
