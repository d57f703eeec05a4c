"""Clients that mean harm: heads without end, silence, depth, floods of faults, and ids used twice."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, assert_problem
from duly.model import uuid7

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


async def said(client: httpx.AsyncClient, *parts: bytes) -> bytes:
    """Send raw bytes and read until the server closes."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b"cut off"
    finally:
        writer.close()


@pytest.mark.parametrize("flood", [b"X: y\r\n" * 200, b"X: " + b"y" * 70_000], ids=["fields", "bytes"])
async def test_a_head_that_is_too_large_is_refused(client: httpx.AsyncClient, flood: bytes) -> None:
    """431, and the connection is closed, although the head never ends."""
    assert (await said(client, HEAD, flood)).startswith(b"HTTP/1.1 431 ")


async def test_a_head_without_end_is_cut_off_soon(client: httpx.AsyncClient) -> None:
    """The server stops reading long before the megabytes that the client would send."""
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(HEAD)
    sent = 0
    with pytest.raises(ConnectionError):
        for _ in range(10_000):
            writer.write(b"X: y\r\n" * 100)
            await writer.drain()
            sent += 600
            await asyncio.sleep(0)
    assert sent < 5_000_000
    writer.close()


@pytest.mark.parametrize("start", [b"", b"GET /healthz HT"], ids=["silent", "half"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    """408 after the time limit, also for a connection that never says a word."""
    monkeypatch.setattr("duly.api.bounded_http.HEAD_TIME_LIMIT_S", 0.05)
    assert (await said(client, start)).startswith(b"HTTP/1.1 408 ")


async def test_a_usual_head_is_served_again_and_again(client: httpx.AsyncClient) -> None:
    """The bounds count per request, not per connection: ninety fields, ten times on one connection."""
    fields = {f"X-{n}": "v" for n in range(90)}
    for _ in range(10):
        assert (await client.get("/healthz", headers=fields)).status_code == 200


async def test_what_is_stored_can_be_shown(api: Api) -> None:
    """The deepest metadata that is taken is read back, alone and in a list; a level more is refused, as is any."""
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    job = await api.create(metadata=deep)
    assert (await api.job(job["id"]))["metadata"] == deep
    assert (await api.get("/v1/jobs")).status_code == 200
    for levels in (101, 400, 950, 5000, 100_000):
        text = '{"url": "' + TARGET + '", "metadata": ' + "[" * levels + "]" * levels + "}"
        assert_problem(await api.post("/v1/jobs", text.encode()), 400)


@pytest.mark.parametrize(
    "flood",
    [
        '"headers": {' + ", ".join(f'"a{n}": 1' for n in range(60_000)) + "}",
        '"metadata": ' + "[" * 90 + ", ".join(['"\\u0000"'] * 40_000) + "]" * 90,
    ],
    ids=["headers", "NULs"],
)
async def test_a_flood_of_faults_costs_no_more_than_a_few(api: Api, flood: str) -> None:
    """Refused by its first faults: the answer stays short and the loop free."""
    started = asyncio.get_running_loop().time()
    answer = await api.post("/v1/jobs", ('{"url": "' + TARGET + '", ' + flood + "}").encode())
    assert len(assert_problem(answer, 422)["errors"]) <= 100
    assert asyncio.get_running_loop().time() - started < 5


@pytest.mark.parametrize(
    "change",
    [
        {"delay": 3001},
        {"priority": 1},
        {"tags": ["b"]},
        {"metadata": {"a": 2}},
        {"timeout": 10},
        {"retry": {"max_attempts": 2}},
        {"retry": {"max_age": "1h"}},
        {"expires_at": "2027-06-01T00:00:00Z"},
        {"queue": "other"},
        {"method": "PUT"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_an_id_with_any_other_content_is_a_conflict(api: Api, change: dict[str, Any]) -> None:
    """The same words again are the same job, a delay included; one word changed is another job under its id."""
    first = {"url": TARGET, "id": str(uuid7()), "delay": 3000, "tags": ["a"], "metadata": {"a": 1}}
    assert (await api.post("/v1/jobs", first)).status_code == 201
    again = await api.post("/v1/jobs", first)
    assert again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert_problem(await api.post("/v1/jobs", {**first, **change}), 409)
