"""/v1/signing-secrets: what deliveries are signed with. Scope admin, of the own account; an operator's key for all."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from duly.api.accounts import path_id
from duly.api.admin_documents import NewSecretDocument, SecretListDocument, new_secret_json, secret_json
from duly.api.admin_inputs import SecretInput, SecretRotationInput
from duly.api.answers import BODY, HEADERS, body_of, problem_answers
from duly.api.auth import Admin
from duly.api.idempotency import unsupported
from duly.api.objects import read_object
from duly.api.paging import PARAMETERS, page_json, parameter, read_page
from duly.api.services import ServicesHere
from duly.service import add_secret, end_secret, find_secrets, get_project, rotate_secret

router = APIRouter(prefix="/v1/signing-secrets", tags=["signing secrets"], dependencies=[Depends(unsupported)])

_OF_PROJECT = parameter("project_id", "only secrets of this project", format="uuid")


@router.get(
    "",
    operation_id="list_signing_secrets",
    summary="List signing secrets",
    responses={200: {"model": SecretListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": [_OF_PROJECT, *PARAMETERS]},
)
async def read_secrets(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Those that sign today; never the secrets themselves."""
    page = read_page(request.query_params, ["project_id"])
    found = await find_secrets(
        services.database,
        within=caller.reach,
        project_id=page.id_of("project_id"),
        after=page.after,
        limit=page.limit + 1,
    )
    return JSONResponse(page_json(found, page, secret_json, lambda secret: secret.id), headers=HEADERS)


@router.post(
    "",
    status_code=201,
    operation_id="create_signing_secret",
    summary="Add a signing secret",
    responses={201: {"model": NewSecretDocument}, **problem_answers(404, 409, *BODY)},
    openapi_extra=body_of("SecretInput"),
)
async def create_one(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Deliveries carry a signature of each. It is shown here and never again."""
    given = await read_object(request, services, SecretInput, optional=True)
    project = await get_project(services.database, given.project_id or caller.project_id, within=caller.reach)
    secret = await add_secret(services.database, project.owner.project_id, keyring=services.keyring)
    return JSONResponse(new_secret_json(secret, project), 201, HEADERS)


@router.post(
    "/rotate",
    status_code=201,
    operation_id="rotate_signing_secret",
    summary="Replace a project's signing secrets, with an overlap",
    responses={201: {"model": NewSecretDocument}, **problem_answers(404, 409, *BODY)},
    openapi_extra=body_of("SecretRotationInput"),
)
async def rotate_one(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """A new one; all the others go on signing beside it for the overlap. Workers see both within ten seconds."""
    given = await read_object(request, services, SecretRotationInput, optional=True)
    project = await get_project(services.database, given.project_id or caller.project_id, within=caller.reach)
    secret = await rotate_secret(
        services.database, project.owner.project_id, overlap=given.overlap, keyring=services.keyring
    )
    return JSONResponse(new_secret_json(secret, project), 201, HEADERS)


@router.post(
    "/{id}/revoke",
    status_code=204,
    operation_id="revoke_signing_secret",
    summary="Revoke a signing secret",
    responses=problem_answers(404, 409),
)
async def revoke_one(id: str, caller: Admin, services: ServicesHere) -> Response:  # noqa: A002
    """It signs no more, within ten seconds. Not the project's last one: rotate that."""
    await end_secret(services.database, path_id(id), within=caller.reach)
    return Response(status_code=204, headers=HEADERS)
