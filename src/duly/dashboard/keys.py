"""API keys: which there are, a new one (shown once), and revoking. Scope admin; a project's own, an operator's all."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import SEE_OTHER
from typing import Any, Final, get_args
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.accounts import path_id
from duly.api.admin_inputs import KeyInput
from duly.api.keys import expiry_of
from duly.api.problems import Problem
from duly.dashboard.figures import LIMIT
from duly.dashboard.forms import number, read_input, text
from duly.dashboard.guarding import HOME
from duly.dashboard.parts import Parts, parts_of, reader, writer
from duly.dashboard.reach import check_reach, project_asked, project_for
from duly.dashboard.refusals import said
from duly.model.errors import InvalidInputError
from duly.queue.overview import quick
from duly.service import KeyInfo, Scope, create_key_of, end_key, find_keys, get_key, get_project
from duly.service.sessions import Viewer

PAGE: Final = 50
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


async def show(request: Request) -> Response:
    """A page of keys, revoked and expired ones too, and the form for a new one."""
    viewer = await reader(request, "admin")
    return await _shown(request, parts_of(request), viewer, request.query_params)


async def make(request: Request) -> Response:
    """The new key's text is on this answer, and never again."""
    viewer, form = await writer(request, "admin")
    parts = parts_of(request)
    db = parts.services.database
    project = await project_for(db, viewer, form.get("project", ""))
    try:
        given = read_input(members_of(form), KeyInput)
        expires_at = expiry_of(given, parts.services.clock.now())
    except (InvalidInputError, Problem) as error:
        return await _shown(request, parts, viewer, form, said(error))
    made = await create_key_of(
        db, project.id, given.name, scopes=given.scopes, expires_at=expires_at, within=viewer.reach
    )
    return parts.page(
        request,
        "shown_once.html",
        viewer,
        201,
        title="A new API key",
        label="API key",
        secret=made.key,
        facts=[
            ("Name", made.info.name),
            ("Project", project.name),
            ("Scopes", ", ".join(scope for scope in SCOPES if scope in made.info.scopes)),
        ],
        advice="Only a hash of it is stored: it is not shown again. Keep it where your program reads its secrets.",
        back=_list_of(viewer, str(project.id)),
        live=False,
    )


async def ask_to_revoke(request: Request) -> Response:
    """What would be refused, before anybody says so."""
    viewer = await reader(request, "admin")
    parts = parts_of(request)
    key = await _found(parts, viewer, request.path_params["id"])
    project = await project_for(parts.services.database, viewer, str(key.project_id))
    warning = "Whatever uses it is refused from the next request on, and this cannot be undone."
    if key.id == viewer.key_id:
        warning += " It is the key that you are signed in with: your session ends, too."
    return parts.page(
        request,
        "confirm.html",
        viewer,
        title="Revoke this key?",
        facts=[
            ("Name", key.name),
            ("Begins with", f"{key.hint}…"),
            ("Project", project.name),
            ("Scopes", ", ".join(scope for scope in SCOPES if scope in key.scopes)),
            ("Last used", key.last_used_at),
        ],
        warning=warning,
        action=f"/keys/{key.id}/revoke",
        hidden={},
        button="Revoke",
        back=_list_of(viewer, str(key.project_id)),
        live=False,
    )


async def revoke(request: Request) -> Response:
    """It is refused from now on, everywhere."""
    viewer, _ = await writer(request, "admin")
    parts = parts_of(request)
    key = await _found(parts, viewer, request.path_params["id"])
    await end_key(parts.services.database, key.id, within=viewer.reach)
    return RedirectResponse(HOME + _list_of(viewer, str(key.project_id), said="key_revoked"), SEE_OTHER)


def members_of(form: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API's KeyInput."""
    return {
        "name": text(form.get("name", "")),
        "scopes": [scope for scope in SCOPES if f"scope_{scope}" in form],
        "expires_in": number(form.get("expires_in", "")),
    }


async def _found(parts: Parts, viewer: Viewer, text_of_id: str) -> KeyInfo:
    """The key of the address. Raises 404 for what is none, and for another project's."""
    key = await get_key(parts.services.database, path_id(text_of_id), within=viewer.reach)
    check_reach(viewer, key.project_id)
    return key


async def _shown(
    request: Request, parts: Parts, viewer: Viewer, given: Mapping[str, str], errors: list[str] | None = None
) -> Response:
    asked = project_asked(viewer, given.get("project", ""))
    after = path_id(given["after"]) if given.get("after") else None
    async with quick(parts.services.database, LIMIT) as db:
        project = None if asked is None else await get_project(db, asked, within=viewer.reach)
        found = await find_keys(db, within=viewer.reach, project_id=asked, after=after, limit=PAGE + 1)
    page = found[:PAGE]
    return parts.page(
        request,
        "keys.html",
        viewer,
        200 if errors is None else 422,
        project=project,
        keys=page,
        scopes=SCOPES,
        following=_list_of(viewer, str(asked or ""), after=str(page[-1].id)) if len(found) > PAGE else None,
        fields={
            "name": given.get("name", "") if errors else "",
            "expires_in": given.get("expires_in", "") if errors else "",
            "scopes": [s for s in SCOPES if f"scope_{s}" in given] if errors else ["read", "write"],
        },
        errors=errors or [],
        live=False,
    )


def _list_of(viewer: Viewer, project: str, **more: str) -> str:
    query = {**({"project": project} if viewer.is_operator and project else {}), **more}
    return f"/keys?{urlencode(query)}" if query else "/keys"


ROUTES = [
    Route("/keys", show, methods=["GET"]),
    Route("/keys", make, methods=["POST"]),
    Route("/keys/{id}/revoke", ask_to_revoke, methods=["GET"]),
    Route("/keys/{id}/revoke", revoke, methods=["POST"]),
]
