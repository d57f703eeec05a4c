"""What the API's metrics tell: routes by template, statuses, and nothing that a client may make up."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from functools import partial
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry

from api.harness import Api, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.dashboard import install_dashboard
from duly.http import EgressPolicy
from duly.observe.requests import RequestMetrics
from duly.observe.routes import Application
from duly.queue import Database
from observe.conftest import Value
from support.sessions import until_true


@pytest.fixture
async def api(database: Database, registry: CollectorRegistry) -> AsyncIterator[Api]:
    """The API with metrics around it, on a real socket."""
    app = create_app(database, EgressPolicy.parse(allow_loopback=True), ApiSettings())
    install_dashboard(app)
    server = ApiServer(RequestMetrics(registry).around(cast(Application, app)))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield await new_api(database, client, "first")
    await server.stop()


async def test_requests_are_told_by_route_and_status(api: Api, value: Value) -> None:
    """The id in a path is not in the label; a create's time is its route's."""
    created = await api.create()
    await api.job(created["id"])
    await api.post("/v1/jobs", {"url": "ftp://no"})
    await api.get(f"/v1/jobs/{uuid4()}")
    assert value("duly_api_requests_total", method="POST", route="/v1/jobs", status="201") == 1
    assert value("duly_api_requests_total", method="POST", route="/v1/jobs", status="422") == 1
    assert value("duly_api_requests_total", method="GET", route="/v1/jobs/{id}", status="200") == 1
    assert value("duly_api_requests_total", method="GET", route="/v1/jobs/{id}", status="404") == 1
    assert value("duly_api_request_seconds_count", method="POST", route="/v1/jobs") == 2
    assert value("duly_api_requests_in_flight") == 0


async def test_pages_of_the_dashboard_are_told_by_template(api: Api, value: Value) -> None:
    """Below where it is mounted; what is none of them, and what they are made of, by the mount."""
    for path in ("/dashboard/sign-in", f"/dashboard/jobs/{uuid4()}", "/dashboard/no/such/page"):
        await api.client.get(path)
    assert (await api.client.get("/dashboard/static/duly.css")).status_code == 200
    told = partial(value, "duly_api_request_seconds_count", method="GET")
    for route in ("/dashboard/sign-in", "/dashboard/jobs/{id}", "/dashboard", "/dashboard/static"):
        await until_true(partial(told, route=route))
        assert told(route=route) == 1


async def test_no_client_makes_series(api: Api, registry: CollectorRegistry) -> None:
    """Unknown paths and methods share a label, however many there are."""
    for n in range(30):
        await api.client.get(f"/nowhere/{n}")
        await api.client.request(f"WORD{n}", f"/v1/jobs/{uuid4()}")
    labels = {
        (s.labels["method"], s.labels["route"])
        for family in registry.collect()
        for s in family.samples
        if s.name == "duly_api_requests_total"
    }
    assert labels <= {("GET", "(none)"), ("(other)", "(none)"), ("(other)", "/v1/jobs/{id}")}


async def test_a_request_that_breaks_is_counted_too(registry: CollectorRegistry, value: Value) -> None:
    """No answer: its status is none."""

    async def broken(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        raise ConnectionResetError

    app = RequestMetrics(registry).around(broken)
    with pytest.raises(ConnectionResetError):
        await app({"type": "http", "method": "GET"}, _nothing, _nothing)
    with pytest.raises(ConnectionResetError):
        await app({"type": "lifespan"}, _nothing, _nothing)
    assert value("duly_api_requests_total", method="GET", route="(none)", status="none") == 1
    assert value("duly_api_requests_in_flight") == 0


async def _nothing(*_: Any) -> Any:
    return None
