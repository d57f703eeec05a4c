"""What the log tells of requests: ids and templates, never what a client sent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from api.harness import Api, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.dashboard import install_dashboard
from duly.http import EgressPolicy
from duly.observe.request_log import logged
from duly.observe.routes import Application
from duly.queue import Database
from support.sessions import until_true


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    """The API with its log, on a real socket."""
    app = create_app(database, EgressPolicy.parse(allow_loopback=True), ApiSettings())
    install_dashboard(app)
    server = ApiServer(logged(cast(Application, app)))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield await new_api(database, client, "first")
    await server.stop()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == "duly.api.requests"]


async def test_a_line_names_who_asked_what_and_how_it_went(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """By the ids of account, project and key, the route's template, status and time; the answer has the line's id."""
    caplog.set_level(logging.INFO)
    job_id = (await api.create())["id"]
    answer = await api.get(f"/v1/jobs/{job_id}?x=secret-query")
    await until_true(lambda: len(lines(caplog)) == 2)
    line = lines(caplog)[-1]
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/jobs/{id}", answer.status_code)
    assert line["request_id"] == answer.headers["duly-request-id"]
    assert line["account_id"] == str(api.project.account_id)
    assert line["project_id"] == str(api.project.id)
    assert line["key_id"]
    assert line["duration_ms"] > 0
    told = str([{**line, "args": None} for line in lines(caplog)])
    for hidden in (job_id, "secret-query", api.key):
        assert hidden not in told


async def test_without_a_living_key_nobody_is_named(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown key, an unknown path, a page."""
    caplog.set_level(logging.INFO)
    await api.client.get(f"/v1/jobs/{uuid4()}", headers={"authorization": "Bearer duly_unknown"})
    await api.client.get("/nowhere/at-all")
    await api.client.get("/dashboard/sign-in")
    await until_true(lambda: len(lines(caplog)) == 3)
    told = [(line["route"], line["status"], "key_id" in line) for line in lines(caplog)]
    assert told == [("/v1/jobs/{id}", 401, False), ("(none)", 404, False), ("/dashboard/sign-in", 200, False)]


async def test_a_quiet_service_says_nothing(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """At the default level there is no line, and the answer has an id all the same."""
    caplog.set_level(logging.WARNING)
    assert (await api.get("/v1/usage")).headers["duly-request-id"]
    assert lines(caplog) == []


async def test_one_that_breaks_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """No answer, no status."""
    caplog.set_level(logging.INFO)

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await logged(broken)({"type": "http", "method": "GET"}, cast(Any, None), cast(Any, None))
    assert lines(caplog)[0]["status"] is None
