"""A served API with its dashboard on a fresh database, a project with a key, and a worker moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from api.harness import Api, Worker, new_api
from dashboard.harness import Visitor
from duly.api import ApiServer, ApiSettings, create_app
from duly.dashboard import figures, install_dashboard
from duly.http import EgressPolicy
from duly.queue import Database, register
from duly.service import SCOPES, create_key
from duly.service.sessions import make_operator_token


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings()


@pytest.fixture
async def address(database: Database, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Where the API and the dashboard are served. Figures are asked for anew on each page, and waited for."""
    monkeypatch.setattr(figures, "FRESH_S", 0.0)
    monkeypatch.setattr(figures, "SHARE", 0)
    monkeypatch.setattr(figures, "PATIENCE_S", 20.0)
    app = create_app(database, EgressPolicy.parse(allow_loopback=True), settings)
    install_dashboard(app)
    server = ApiServer(app)
    host, port = await server.start("127.0.0.1", 0)
    yield f"http://{host}:{port}"
    await server.stop()


@pytest.fixture
async def client(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        yield client


@pytest.fixture
async def api(database: Database, client: httpx.AsyncClient) -> Api:
    return await new_api(database, client, "first")


@pytest.fixture
async def visitor(address: str, api: Api) -> AsyncIterator[Visitor]:
    """Signed in with the key of the project."""
    async with Visitor(address) as visitor:
        await visitor.sign_in(api.key)
        yield visitor


@pytest.fixture
async def operator(database: Database, address: str) -> AsyncIterator[Visitor]:
    async with Visitor(address) as visitor:
        await visitor.sign_in(await make_operator_token(database, scopes=SCOPES))
        yield visitor


@pytest.fixture
async def admin(database: Database, address: str, api: Api) -> AsyncIterator[Visitor]:
    """Signed in with a key of the project that administers it."""
    key = await create_key(database, api.project.owner.project_id, "admin", scopes=["read", "admin"])
    async with Visitor(address) as visitor:
        await visitor.sign_in(key.key)
        yield visitor


@pytest.fixture
async def worker(database: Database) -> Worker:
    return Worker(database, await register(database, "test", ["http"], None, 10, timedelta(minutes=5)))
