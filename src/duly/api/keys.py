"""/v1/keys: the API keys of an account's projects. Scope admin, for the key's own account; an operator's for all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from duly.api.accounts import path_id
from duly.api.admin_documents import KeyDocument, KeyListDocument, NewKeyDocument, key_json, new_key_json
from duly.api.admin_inputs import LONGEST_LIFE, KeyInput, RotationInput
from duly.api.answers import BODY, HEADERS, body_of, problem_answers
from duly.api.auth import Admin
from duly.api.idempotency import unsupported
from duly.api.objects import read_object
from duly.api.paging import PARAMETERS, page_json, parameter, read_page
from duly.api.problems import invalid
from duly.api.services import ServicesHere
from duly.service import CreatedKey, Scope, create_key_of, end_key, find_keys, get_key, rotate_key
from duly.service.durations import show_duration
from duly.service.faults import Fault, InvalidFieldsError

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[Depends(unsupported)])

_SCOPES = get_args(Scope)
_FILTERS = [
    parameter("project_id", "only keys of this project", format="uuid"),
    parameter("scope", "only keys with this scope: admin shows who administers", enum=list(_SCOPES)),
]


@router.get(
    "",
    operation_id="list_keys",
    summary="List API keys",
    responses={200: {"model": KeyListDocument}, **problem_answers(422)},
    openapi_extra={"parameters": [*_FILTERS, *PARAMETERS]},
)
async def read_keys(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """Every key of the account, revoked and expired ones too; never the keys themselves."""
    page = read_page(request.query_params, ["project_id", "scope"])
    scope = page.filters.get("scope")
    if scope is not None and scope not in _SCOPES:
        raise invalid([{"parameter": "scope", "detail": f"must be one of {', '.join(_SCOPES)}"}])
    found = await find_keys(
        services.database,
        within=caller.reach,
        project_id=page.id_of("project_id"),
        scope=scope,
        after=page.after,
        limit=page.limit + 1,
    )
    return JSONResponse(page_json(found, page, key_json, lambda key: key.id), headers=HEADERS)


@router.post(
    "",
    status_code=201,
    operation_id="create_key",
    summary="Create an API key",
    responses={201: {"model": NewKeyDocument}, **problem_answers(404, 409, *BODY)},
    openapi_extra=body_of("KeyInput"),
)
async def create_one(request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:
    """The key is shown here and never again: a hash of it is stored."""
    given = await read_object(request, services, KeyInput)
    made = await create_key_of(
        services.database,
        given.project_id or caller.project_id,
        given.name,
        scopes=given.scopes,
        expires_at=expiry_of(given, datetime.now(UTC)),
        within=caller.reach,
    )
    return _shown_once(made)


@router.get(
    "/{id}",
    operation_id="get_key",
    summary="Read what is known of an API key",
    responses={200: {"model": KeyDocument}, **problem_answers(404)},
)
async def read_key(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """Everything but the key."""
    return JSONResponse(key_json(await get_key(services.database, path_id(id), within=caller.reach)), headers=HEADERS)


@router.post(
    "/{id}/revoke",
    operation_id="revoke_key",
    summary="Revoke an API key",
    responses={200: {"model": KeyDocument}, **problem_answers(404)},
)
async def revoke_one(id: str, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """It is refused from now on, everywhere. Idempotent. A key may revoke itself."""
    return JSONResponse(key_json(await end_key(services.database, path_id(id), within=caller.reach)), headers=HEADERS)


@router.post(
    "/{id}/rotate",
    status_code=201,
    operation_id="rotate_key",
    summary="Replace an API key, with an overlap",
    responses={201: {"model": NewKeyDocument}, **problem_answers(404, 409, *BODY)},
    openapi_extra=body_of("RotationInput"),
)
async def rotate_one(id: str, request: Request, caller: Admin, services: ServicesHere) -> JSONResponse:  # noqa: A002
    """A new key with the old one's name, project and scopes; the old one is refused after the overlap."""
    given = await read_object(request, services, RotationInput, optional=True)
    return _shown_once(await rotate_key(services.database, path_id(id), overlap=given.overlap, within=caller.reach))


def expiry_of(given: KeyInput, now: datetime) -> datetime | None:
    """When a key that is asked for is to end; None: never. Raises InvalidFieldsError."""
    if given.expires_in is not None and given.expires_at is not None:
        raise InvalidFieldsError([Fault("/expires_in", "excludes expires_at: give one of them")])
    if given.expires_in is not None:
        return now + given.expires_in
    if given.expires_at is not None and not now < given.expires_at <= now + LONGEST_LIFE:
        longest = show_duration(LONGEST_LIFE)
        raise InvalidFieldsError([Fault("/expires_at", f"must lie in the future, and {longest} ahead at most")])
    return given.expires_at


def _shown_once(made: CreatedKey) -> JSONResponse:
    return JSONResponse(new_key_json(made), 201, HEADERS | {"location": f"/v1/keys/{made.info.id}"})
