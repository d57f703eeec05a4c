"""A served API on a fresh database, a project with a key, and a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from api.harness import Api, Worker, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.queue import Database, register


@pytest.fixture
def policy() -> EgressPolicy:
    return EgressPolicy.parse(allow_loopback=True)


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings()


@pytest.fixture
async def client(database: Database, policy: EgressPolicy, settings: ApiSettings) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an API that is served on a real socket."""
    server = ApiServer(create_app(database, policy, settings))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client
    await server.stop()


@pytest.fixture
async def api(database: Database, client: httpx.AsyncClient) -> Api:
    return await new_api(database, client, "first")


@pytest.fixture
async def worker(database: Database) -> Worker:
    return Worker(database, await register(database, "test", ["http"], None, 10, timedelta(minutes=5)))
