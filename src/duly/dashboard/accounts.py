"""Accounts, for operators with the scope admin: plan, limits, usage, projects; make, disable, enable."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import SEE_OTHER
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duly.api.accounts import path_id
from duly.api.admin_documents import limits_json
from duly.api.admin_inputs import AccountInput, ProjectInput
from duly.api.problems import Problem
from duly.dashboard.figures import LIMIT
from duly.dashboard.forms import read_input, text
from duly.dashboard.guarding import HOME
from duly.dashboard.parts import Parts, operator_only, parts_of, reader, writer
from duly.dashboard.refusals import said
from duly.model.errors import InvalidInputError
from duly.queue.overview import quick
from duly.service import (
    create_account,
    disable_account,
    enable_account,
    get_account,
    list_accounts,
    list_plans,
    list_projects,
    read_usage,
)
from duly.service.accounts import MOST_PROJECTS, account_number, create_project_with_secret
from duly.service.sessions import Viewer
from duly.service.usage import COUNTED_TO

PAGE: Final = 50
_WHY: Final = "Accounts are the operator's: a key sees its own project only."


async def show(request: Request) -> Response:
    """A page of accounts, the oldest first, and the form for a new one."""
    viewer = operator_only(await reader(request, "admin"), _WHY)
    return await _shown(request, parts_of(request), viewer, request.query_params)


async def make(request: Request) -> Response:
    """A new account, with a plan or without."""
    viewer, form = await _writer(request)
    parts = parts_of(request)
    try:
        given = read_input({"name": text(form.get("name", "")), "plan": text(form.get("plan", ""))}, AccountInput)
        account = await create_account(parts.services.database, given.name, plan=given.plan)
    except (InvalidInputError, Problem) as error:
        return await _shown(request, parts, viewer, form, said(error))
    return RedirectResponse(f"{HOME}/accounts/{account.id}?said=account_made", SEE_OTHER)


async def show_one(request: Request) -> Response:
    """One account: what it may, what it uses, its projects."""
    viewer = operator_only(await reader(request, "admin"), _WHY)
    return await _shown_one(request, parts_of(request), viewer)


async def make_project(request: Request) -> Response:
    """A new project; its first signing secret is on this answer."""
    viewer, form = await _writer(request)
    parts = parts_of(request)
    account_id = path_id(request.path_params["id"])
    try:
        given = read_input({"name": text(form.get("name", ""))}, ProjectInput)
        project, secret = await create_project_with_secret(
            parts.services.database, account_id, given.name, keyring=parts.services.keyring
        )
    except (InvalidInputError, Problem) as error:
        return await _shown_one(request, parts, viewer, form.get("name", ""), said(error))
    return parts.page(
        request,
        "shown_once.html",
        viewer,
        201,
        title="A new project",
        label="Its signing secret",
        secret=secret.text,
        facts=[("Project", project.name), ("Id", str(project.id))],
        advice="Receivers verify deliveries by it. A key for the project is made next, on the page of its keys.",
        back=f"/accounts/{account_id}",
        live=False,
    )


async def ask_to_disable(request: Request) -> Response:
    """What would stop, before anybody says so."""
    viewer = operator_only(await reader(request, "admin"), _WHY)
    parts = parts_of(request)
    account = await get_account(parts.services.database, path_id(request.path_params["id"]))
    return parts.page(
        request,
        "confirm.html",
        viewer,
        title="Disable this account?",
        facts=[("Account", account.name), ("Plan", account.plan or "none"), ("Made", account.created_at)],
        warning="Its keys are refused, and none of its jobs starts. What runs ends as ever, nothing is lost, "
        "and it can be enabled again.",
        action=f"/accounts/{account.id}/disable",
        hidden={},
        button="Disable",
        back=f"/accounts/{account.id}",
        live=False,
    )


async def act(request: Request) -> Response:
    """Disable or enable, then show the account again."""
    await _writer(request)
    account_id = path_id(request.path_params["id"])
    db = parts_of(request).services.database
    match request.path_params["action"]:
        case "disable":
            done = "account_disabled"
            await disable_account(db, account_id)
        case "enable":
            done = "account_enabled"
            await enable_account(db, account_id)
        case _:
            raise HTTPException(404)
    return RedirectResponse(f"{HOME}/accounts/{account_id}?said={done}", SEE_OTHER)


async def _writer(request: Request) -> tuple[Viewer, dict[str, str]]:
    viewer, form = await writer(request, "admin")
    return operator_only(viewer, _WHY), form


async def _shown(
    request: Request, parts: Parts, viewer: Viewer, given: Mapping[str, str], errors: list[str] | None = None
) -> Response:
    after = path_id(given["after"]) if given.get("after") else None
    async with quick(parts.services.database, LIMIT) as db:
        found = await list_accounts(db, after=after, limit=PAGE + 1)
        plans = await list_plans(db)
    return parts.page(
        request,
        "accounts.html",
        viewer,
        200 if errors is None else 422,
        accounts=found[:PAGE],
        plans=plans,
        following=f"/accounts?after={found[PAGE - 1].id}" if len(found) > PAGE else None,
        fields={name: given.get(name, "") if errors else "" for name in ("name", "plan")},
        errors=errors or [],
        live=False,
    )


async def _shown_one(
    request: Request, parts: Parts, viewer: Viewer, name: str = "", errors: list[str] | None = None
) -> Response:
    account_id = path_id(request.path_params["id"])
    async with quick(parts.services.database, LIMIT) as db:
        account = await get_account(db, account_id)
        number = await account_number(db, account_id)
        usage = await read_usage(db, number, account.effective, parts.services.allowances.held(number))
        projects = await list_projects(db, account_id, limit=MOST_PROJECTS)
    return parts.page(
        request,
        "account.html",
        viewer,
        200 if errors is None else 422,
        account=account,
        usage=usage,
        counted_to=COUNTED_TO,
        limits=limits_json(account.effective),
        projects=projects,
        fields={"name": name},
        errors=errors or [],
        live=errors is None,
    )


ROUTES = [
    Route("/accounts", show, methods=["GET"]),
    Route("/accounts", make, methods=["POST"]),
    Route("/accounts/{id}", show_one),
    Route("/accounts/{id}/projects", make_project, methods=["POST"]),
    Route("/accounts/{id}/disable", ask_to_disable, methods=["GET"]),
    Route("/accounts/{id}/{action}", act, methods=["POST"]),
]
