"""Keys: every route, every way in which a key may be wrong. The routes are listed by the application itself."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.harness import Api, assert_problem, new_api
from duly.api import ApiSettings, create_app
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service import create_key, list_keys, revoke_key

OPEN = {"/healthz", "/readyz"}
PAGES = {"/docs", "/docs/style.css"}
TARGET_PART = "127.0.0.1:9999"


def calls(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path of the application that needs a key, as registered."""
    found = {
        (method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if path not in OPEN
    }
    assert len(found) >= 8
    return sorted(found)


@pytest.fixture
def routes(database: Database, policy: EgressPolicy, settings: ApiSettings) -> list[tuple[str, str]]:
    return calls(create_app(database, policy, settings))


def test_the_document_lists_every_route(database: Database, policy: EgressPolicy, settings: ApiSettings) -> None:
    """No route hides from the matrix below by being left out of the document."""
    app = create_app(database, policy, settings)
    for route in app.routes:
        if isinstance(route, APIRoute):
            assert route.include_in_schema or route.path in PAGES
    public = {getattr(route, "path", "") for route in app.routes if not isinstance(route, APIRoute)}
    assert {path for path in public if path.startswith("/v1")} == set()


async def test_every_route_asks_for_a_living_key(database: Database, api: Api, routes: list[tuple[str, str]]) -> None:
    """None, malformed, unknown, revoked, expired: 401 with a challenge, and no data, on every route."""
    job = await api.create(body="secret-body")
    revoked = await create_key(database, api.project.owner.project_id, "gone")
    assert await revoke_key(database, api.project.owner.project_id, revoked.info.id)
    expired = await create_key(database, api.project.owner.project_id, "old")
    await database.execute("update duly.api_key set expires_at = now() where id = $1", expired.info.id)
    bad_everywhere: list[dict[str, str]] = [
        {},
        {"authorization": f"Bearer {api.key}x"},
        {"authorization": f"Bearer {revoked.key}"},
        {"authorization": f"Bearer {expired.key}"},
    ]
    more: list[dict[str, str]] = [
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer  x"},
        {"authorization": f"Basic {api.key}"},
        {"authorization": api.key},
        {"authorization": f"Bearer {api.key[:-1]}"},
        {"authorization": f"Bearer {api.key.upper()}"},
        {"authorization": f"Bearer {api.key} {api.key}"},
        {"authorization": "Bearer duly_" + "x" * 43},
        {"authorization": "Bearer ' or 1=1 --"},
        {"authorization": "Bearer " + "x" * 5000},
        {"x-api-key": api.key},
    ]
    for method, path in routes:
        url = path.replace("{id}", job["id"]).replace("{number}", "1")
        for headers in [*bad_everywhere, *(more if path in ("/v1/jobs", "/v1/jobs/{id}", "/v1/keys") else ())]:
            answer = await api.client.request(method, url, headers=headers, params={"key": api.key})
            assert_problem(answer, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert TARGET_PART not in answer.text
    assert (await api.job(job["id"]))["state"] == "ready"


async def test_a_foreign_id_cannot_be_taken(database: Database, client: httpx.AsyncClient, api: Api) -> None:
    """An id that another project used is a conflict, which shows nothing of that job."""
    job = await api.create(body="secret-body")
    stranger = await new_api(database, client, "second")
    answer = await stranger.post("/v1/jobs", {"url": job["url"], "id": job["id"], "body": "secret-body"})
    assert_problem(answer, 409)
    assert "secret-body" not in answer.text


async def test_a_revoked_key_is_refused_at_once(database: Database, api: Api) -> None:
    """The first request after the revocation is refused."""
    [key] = await list_keys(database, api.project.owner.project_id)
    assert (await api.get("/v1/jobs")).status_code == 200
    assert await revoke_key(database, api.project.owner.project_id, key.id)
    assert_problem(await api.get("/v1/jobs"), 401)


async def test_refused_before_the_body_is_read(api: Api) -> None:
    """A long body without a key is answered 401, and the client sees it."""
    answer = await api.client.post("/v1/jobs", content=b"x" * 2_000_000)
    assert_problem(answer, 401)
