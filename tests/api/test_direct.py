"""The creates that are answered directly: nothing tells them from the same calls through the framework's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, create_app, direct
from duly.api.app import routed_app
from duly.http import EgressPolicy
from duly.model import uuid7
from duly.queue import Database
from duly.service import change_account

JSON = {"content-type": "application/json"}
BATCH = "/v1/jobs/batch"
SINGLE = "/v1/jobs"


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(body_limit_bytes=2000, batch_limit_bytes=10_000, base_url="https://duly.example.com/")


@pytest.fixture
async def routed(
    database: Database, policy: EgressPolicy, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that answers no call directly."""
    monkeypatch.setattr(direct, "CALLS", ())
    server = ApiServer(create_app(database, policy, settings))
    host, port = await server.start("127.0.0.1", 0)
    monkeypatch.undo()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client
    await server.stop()


def test_each_call_is_a_route_of_the_document() -> None:
    """A path that is answered here and described nowhere would be a call of its own."""
    paths = routed_app().openapi()["paths"]
    for call in direct.CALLS:
        assert paths[call.path]["post"]["operationId"] == call.act.__name__


async def test_the_same_answers(database: Database, api: Api, routed: httpx.AsyncClient) -> None:
    """Status, body and header fields, for what is taken and for every way in which a call is refused."""
    reader = await new_api(database, api.client, "reader", ["read"])
    there, taken = str(uuid7()), str(uuid7())
    await api.create(id=there, unique_key="held")
    await api.create(id=taken)
    key = {"authorization": f"Bearer {api.key}", **JSON}
    calls: list[tuple[str, Any, dict[str, str]]] = [
        (SINGLE, {"url": TARGET, "id": there, "unique_key": "held"}, key),
        (SINGLE, {"url": TARGET, "unique_key": "held", "on_conflict": "keep"}, key),
        (SINGLE, {"url": TARGET, "unique_key": "held"}, key),
        (SINGLE, {"url": TARGET + "/other", "id": taken}, key),
        (SINGLE, {"url": TARGET, "id": taken}, key | {"idempotency-key": "once"}),
        (SINGLE, {"url": TARGET, "id": taken}, key | {"idempotency-key": "once"}),
        (SINGLE, {"url": TARGET}, key | {"idempotency-key": "once"}),
        (SINGLE, {"url": TARGET}, key | {"duly-hops": "many"}),
        (SINGLE, {"url": TARGET}, key | {"duly-hops": "8"}),
        (SINGLE, {"url": "ftp://x", "method": "BREW", "surplus": 1}, key),
        (SINGLE, {"url": TARGET, "body": "x" * 2001}, key),
        (SINGLE, {"url": TARGET, "body": "x" * 200_000}, key),
        (SINGLE, "no json", key),
        (SINGLE, {"url": TARGET}, key | {"content-type": "text/plain"}),
        (SINGLE, {"url": TARGET}, key | {"content-type": "application/json; charset=latin-1"}),
        (SINGLE, {"url": TARGET}, key | {"content-encoding": "gzip"}),
        (SINGLE, {"url": TARGET}, JSON),
        (SINGLE, {"url": TARGET}, JSON | {"authorization": "Basic eA=="}),
        (SINGLE, {"url": TARGET}, JSON | {"authorization": "Bearer duly_unknown"}),
        (SINGLE, {"url": TARGET}, JSON | {"authorization": f"Bearer {reader.key}"}),
        (BATCH, {"jobs": [{"url": TARGET, "id": taken}]}, key),
        (BATCH, {"jobs": [{"url": TARGET, "id": there}]}, key),
        (BATCH, {"jobs": [{"url": TARGET}, {}]}, key),
        (BATCH, {"jobs": [{"url": TARGET}]}, JSON),
        (BATCH, {"jobs": [{"url": TARGET}]}, JSON | {"authorization": f"Bearer {reader.key}"}),
        (BATCH, {"jobs": [{"url": TARGET, "body": "x" * 9000}] * 2}, key),
        (BATCH + "/", {"jobs": [{"url": TARGET}]}, key),
    ]
    seen = set()
    for path, content, headers in calls:
        sent = {"content": content} if isinstance(content, str) else {"json": content}
        ours = await api.client.post(path, headers=headers, **sent)
        theirs = await routed.post(path, headers=headers, **sent)
        seen.add(ours.status_code)
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), (path, content)
        assert _fields(ours) == _fields(theirs), (path, content)
    assert seen == {200, 201, 401, 403, 404, 409, 413, 415, 400, 422}


async def test_limits_are_told(database: Database, api: Api, routed: httpx.AsyncClient) -> None:
    """The request rate stands on every answer, and is what refuses: 429 with the time to wait."""
    await change_account(database, api.project.account_id, {"limits": {"request_rate": 0.01}})
    for client in (api.client, routed):
        one = Api(client, api.project, api.key)
        first, second = [await one.post(SINGLE, {"url": TARGET}) for _ in range(2)]
        assert first.status_code == 201
        assert_problem(second, 429)
        for answer in (first, second):
            assert answer.headers.get_list("ratelimit-policy") == ['"request_rate";q=1;w=100']
            assert len(answer.headers.get_list("ratelimit")) == 1
        assert 0 < int(second.headers["retry-after"]) <= 100


async def test_other_methods_and_paths_go_to_the_routes(api: Api) -> None:
    """Only a POST of exactly such a path is answered directly."""
    assert (await api.get(SINGLE)).json() == {"data": [], "next_cursor": None}
    answer = await api.client.put(SINGLE, headers={"authorization": f"Bearer {api.key}"})
    assert_problem(answer, 405)
    job = await api.create(delay="1h")
    assert (await api.post(f"{SINGLE}/{job['id']}/cancel")).status_code == 200


def _fields(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "date"}
