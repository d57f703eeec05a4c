"""Signing secrets: which there are, masked; showing one, rotating with an overlap, ending one. Scope admin; a project's
own, an operator's all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http.client import SEE_OTHER
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.accounts import path_id
from duly.api.admin_inputs import SecretRotationInput
from duly.api.problems import Problem, not_found
from duly.dashboard.figures import LIMIT
from duly.dashboard.forms import number, read_input
from duly.dashboard.guarding import HOME
from duly.dashboard.parts import Parts, parts_of, reader, writer
from duly.dashboard.reach import project_asked, project_for
from duly.dashboard.refusals import said
from duly.model.errors import InvalidInputError
from duly.queue.overview import quick
from duly.service import Project, SigningSecret, end_secret, find_secrets, get_project, list_secrets, rotate_secret
from duly.service.secrets import MOST_SECRETS, SecretInfo
from duly.service.sessions import Viewer

log = logging.getLogger("duly.dashboard")

PAGE: Final = 50


async def show(request: Request) -> Response:
    """A page of living secrets, never the secrets themselves; and for one project the form to rotate."""
    viewer = await reader(request, "admin")
    return await _shown(request, parts_of(request), viewer, request.query_params)


async def rotate(request: Request) -> Response:
    """A new one beside those that there are, which go on signing for the overlap."""
    viewer, form = await writer(request, "admin")
    parts = parts_of(request)
    services = parts.services
    project = await project_for(services.database, viewer, form.get("project", ""))
    try:
        given = read_input({"overlap": number(form.get("overlap", ""))}, SecretRotationInput)
    except (InvalidInputError, Problem) as error:
        return await _shown(request, parts, viewer, form, said(error))
    secret = await rotate_secret(
        services.database, project.owner.project_id, overlap=given.overlap, keyring=services.keyring
    )
    return _open(request, parts, viewer, project, secret, "A new signing secret", 201)


async def reveal(request: Request) -> Response:
    """Show one, to who may make another. The log says who looked."""
    viewer, form = await writer(request, "admin")
    parts = parts_of(request)
    project, info = await _found(request, parts, viewer, form.get("project", ""))
    secrets = await list_secrets(parts.services.database, project.owner.project_id, keyring=parts.services.keyring)
    secret = next((one for one in secrets if one.id == info.id), None)
    if secret is None:
        raise not_found()
    log.info("a signing secret was shown", extra={"secret_id": str(secret.id), "by": viewer.by})
    return _open(request, parts, viewer, project, secret, "A signing secret", 200)


async def ask_to_end(request: Request) -> Response:
    """What would fail, before anybody says so."""
    viewer = await reader(request, "admin")
    parts = parts_of(request)
    project, info = await _found(request, parts, viewer, request.query_params.get("project", ""))
    return parts.page(
        request,
        "confirm.html",
        viewer,
        title="End this signing secret?",
        facts=[
            ("Project", project.name),
            ("Secret", str(info.id)),
            ("Made", info.created_at),
            ("Signs until", info.expires_at or "the next rotation"),
        ],
        warning="Receivers that know this one only will refuse deliveries, and this cannot be undone. "
        "The project's last one without an end cannot be ended: rotate it.",
        action=f"/secrets/{info.id}/end",
        hidden={"project": str(project.id)},
        button="End it",
        back=_list_of(viewer, project.id),
        live=False,
    )


async def end(request: Request) -> Response:
    """It signs no more."""
    viewer, form = await writer(request, "admin")
    parts = parts_of(request)
    project, info = await _found(request, parts, viewer, form.get("project", ""))
    await end_secret(parts.services.database, info.id, within=viewer.reach)
    return RedirectResponse(HOME + _list_of(viewer, project.id, said="secret_ended"), SEE_OTHER)


async def _found(request: Request, parts: Parts, viewer: Viewer, asked: str) -> tuple[Project, SecretInfo]:
    """The living secret of the address, of the project that is meant. Raises 404."""
    secret_id = path_id(request.path_params["id"])
    project = await project_for(parts.services.database, viewer, asked)
    found = await find_secrets(
        parts.services.database, within=viewer.reach, project_id=project.id, limit=2 * MOST_SECRETS
    )
    for info in found:
        if info.id == secret_id:
            return project, info
    raise not_found()


def _open(
    request: Request, parts: Parts, viewer: Viewer, project: Project, secret: SigningSecret, title: str, status: int
) -> Response:
    return parts.page(
        request,
        "shown_once.html",
        viewer,
        status,
        title=title,
        label="Signing secret",
        secret=secret.text,
        facts=[
            ("Project", project.name),
            ("Made", secret.created_at),
            ("Signs until", secret.expires_at or "the next rotation"),
        ],
        advice="Whoever has it can sign as you do. Give it to your receivers, who verify deliveries by it; "
        "it signs within ten seconds.",
        back=_list_of(viewer, project.id),
        live=False,
    )


async def _shown(
    request: Request, parts: Parts, viewer: Viewer, given: Mapping[str, str], errors: list[str] | None = None
) -> Response:
    asked = project_asked(viewer, given.get("project", ""))
    after = path_id(given["after"]) if given.get("after") else None
    async with quick(parts.services.database, LIMIT) as db:
        project = None if asked is None else await get_project(db, asked, within=viewer.reach)
        found = await find_secrets(db, within=viewer.reach, project_id=asked, after=after, limit=PAGE + 1)
    page = found[:PAGE]
    return parts.page(
        request,
        "secrets.html",
        viewer,
        200 if errors is None else 422,
        project=project,
        secrets=page,
        following=_list_of(viewer, asked, after=str(page[-1].id)) if len(found) > PAGE else None,
        overlap=given.get("overlap", "") if errors else "24h",
        errors=errors or [],
        live=False,
    )


def _list_of(viewer: Viewer, project_id: UUID | None, **more: str) -> str:
    query = {**({"project": str(project_id)} if viewer.is_operator and project_id else {}), **more}
    return f"/secrets?{urlencode(query)}" if query else "/secrets"


ROUTES = [
    Route("/secrets", show, methods=["GET"]),
    Route("/secrets/rotate", rotate, methods=["POST"]),
    Route("/secrets/{id}/reveal", reveal, methods=["POST"]),
    Route("/secrets/{id}/end", ask_to_end, methods=["GET"]),
    Route("/secrets/{id}/end", end, methods=["POST"]),
]
