"""Tenants for the tests: an account with something of everything, operators, the calls that the application lists."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import httpx

from api.harness import Api
from duly.api.app import routed_app
from duly.queue import Database
from duly.service import (
    NO_KEYRING,
    SCOPES,
    LimitsJson,
    create_account,
    create_key,
    create_project,
    ensure_operator,
    find_secrets,
    get_project,
    list_keys,
)
from duly.service.notices import NoticeSettings, put_notice

OPEN = {"/healthz", "/readyz"}
ADMIN = ("/v1/accounts", "/v1/plans", "/v1/projects", "/v1/keys", "/v1/signing-secrets", "/v1/notices")
NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"


@dataclass(frozen=True)
class Call:
    """One method of one path, as the application lists it."""

    method: str
    path: str

    @property
    def scope(self) -> str:
        """What it needs, by the rule that the docs give."""
        if self.path.startswith(ADMIN):
            return "admin"
        return "read" if self.method == "GET" or self.path == "/v1/schedules/preview" else "write"

    @property
    def takes_an_id(self) -> bool:
        return "{id}" in self.path

    def url(self, ids: dict[str, str]) -> str:
        """The path with the id of its kind of thing in place; for kinds that are not known here that of a job."""
        kind = self.path.split("/")[2]
        return (
            self.path.replace("{id}", ids.get(kind, ids["jobs"])).replace("{number}", "1").replace("{name}", "default")
        )

    def body(self) -> dict[str, Any] | None:
        """One that is in order, where the call needs one to get as far as its id."""
        if self.method != "PATCH":
            return None
        return {"priority": 1} if self.path.startswith("/v1/jobs") else {"name": "another"}


def calls() -> list[Call]:
    """Every call that needs a key."""
    found = [
        Call(method.upper(), path)
        for path, methods in routed_app().openapi()["paths"].items()
        for method in methods
        if path not in OPEN
    ]
    assert len(found) >= 30
    assert {call.path.split("/")[1] for call in found} == {"v1"}
    return found


@dataclass(frozen=True)
class Tenant:
    """An account with a key of every scope, and the ids of what it has."""

    api: Api
    ids: dict[str, str]

    async def call(self, call: Call, ids: dict[str, str]) -> httpx.Response:
        return await ask(self.api.client, call, ids, self.api.key)


async def ask(client: httpx.AsyncClient, call: Call, ids: dict[str, str], key: str) -> httpx.Response:
    """The answer; of one that goes on for ever what came within a fifth of a second."""
    async with client.stream(call.method, call.url(ids), headers=bearer(key), json=call.body()) as answer:
        if answer.headers["content-type"].startswith("text/event-stream"):
            came = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    async for part in answer.aiter_bytes():
                        came += part
            return httpx.Response(answer.status_code, headers=answer.headers, content=came)
        await answer.aread()
        return answer


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def new_tenant(
    database: Database,
    client: httpx.AsyncClient,
    name: str,
    *,
    limits: LimitsJson | None = None,
    plan: str | None = None,
) -> Tenant:
    """With a project, a key, a signing secret and a notice."""
    account = await create_account(database, name, limits=limits, plan=plan)
    project = await create_project(database, account.id, f"{name}-project")
    made = await create_key(database, project.owner.project_id, f"{name}-key", scopes=SCOPES)
    [secret] = await find_secrets(database, project_id=project.id, limit=10)
    settings = NoticeSettings(f"https://{name}.example/notices")
    notice, _ = await put_notice(database, project.id, "project", None, settings, within=None)
    api = Api(client, project, made.key)
    return Tenant(
        api,
        {
            "accounts": str(account.id),
            "projects": str(project.id),
            "keys": str(made.info.id),
            "signing-secrets": str(secret.id),
            "notices": str(notice.id),
            "jobs": NOBODY,
        },
    )


async def new_operator(database: Database, client: httpx.AsyncClient) -> Api:
    """A client with an admin key of the operator's account."""
    tenant = await ensure_operator(database, keyring=NO_KEYRING)
    project = await get_project(database, tenant.project_id)
    made = await create_key(database, tenant.owner.project_id, "operator", scopes=["admin"])
    assert len(await list_keys(database, tenant.owner.project_id)) >= 1
    return Api(client, project, made.key)
