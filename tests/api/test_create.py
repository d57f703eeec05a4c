"""POST /v1/jobs: what is stored is what was sent, once."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from api.harness import TARGET, Api, assert_problem, new_api
from duly.api import ApiSettings, create_app
from duly.api.documents import JobDocument
from duly.http import EgressPolicy
from duly.model import uuid7
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, get_job


async def stored_body(database: Database, api: Api, job_id: str) -> bytes | None:
    job = await get_job(database, api.project.owner, UUID(job_id), include_body=True)
    assert job is not None
    return job.body


async def test_only_url_is_required(api: Api) -> None:
    """One member makes a job with the defaults of the contract, at its place, ready to run."""
    answer = await api.post("/v1/jobs", {"url": TARGET})
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert "idempotency-replayed" not in answer.headers
    assert (await api.get(answer.headers["location"])).json() == job
    JobDocument.model_validate(job)
    assert (
        job
        | {
            "state": "ready",
            "url": TARGET,
            "method": "POST",
            "headers": [],
            "queue": "default",
            "priority": 5,
            "timeout": 30,
            "attempts": 0,
            "max_attempts": 8,
            "retry_plan": [10, 40, 160, 640, 2560, 10240, 21600],
            "has_body": False,
            "lag_ms": None,
        }
        == job
    )


async def test_everything_arrives(api: Api) -> None:
    """Every member of the contract comes back as it was given."""
    job = await api.create(
        method="PUT",
        headers=[["X-A", "1"], ["x-a", "2"], ["Authorization", "Bearer secret"]],
        body="hällo",
        delay="1h30m",
        timeout="1m",
        retry={
            "max_attempts": 3,
            "backoff": {"kind": "steps", "steps": [1, "30s"]},
            "max_age": "2d",
            "on": [404, "5xx"],
        },
        queue="mail",
        concurrency_key="customer 7",
        priority=0,
        tags=["a", "b", "a"],
        metadata={"n": 12345678901234567890, "list": [1, None]},
        expires_at=(datetime.now(UTC) + timedelta(days=1)).isoformat(),
    )
    assert job["state"] == "scheduled"
    assert job["method"] == "PUT"
    assert job["headers"] == [["X-A", "1"], ["x-a", "2"], ["Authorization", "***"]]
    assert (job["queue"], job["concurrency_key"], job["priority"], job["timeout"]) == ("mail", "customer 7", 0, 60)
    assert job["tags"] == ["a", "b"]
    assert job["metadata"] == {"n": 12345678901234567890, "list": [1, None]}
    assert job["retry"]["backoff"]["steps"] == [1, 30]
    assert job["retry"]["on"] == [404, "5xx"]
    assert job["retry"]["max_age"] == 172800
    assert job["retry_plan"] == [1, 30]
    assert job["expires_at"].endswith("Z")
    run_at = datetime.fromisoformat(job["run_at"])
    assert timedelta(minutes=89) < run_at - datetime.now(UTC) <= timedelta(minutes=91)
    assert job["next_run_at"] == job["run_at"]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ('"json": {"n": 123456789012345678901234567890, "d": 1.10, "e": 1E2,  "s": "\\u00e9é"}', None),
        ('"json":null', b"null"),
        ('"json": [ 1 ,2]', b"[ 1 ,2]"),
        ('"body": "\\u0000\\u00e9"', b"\x00\xc3\xa9"),
        ('"body": ""', b""),
        ('"body_base64": "AP/+"', b"\x00\xff\xfe"),
    ],
)
async def test_bodies_are_kept_to_the_byte(api: Api, database: Database, members: str, expected: bytes | None) -> None:
    """A body is what was written: digits, spaces and escapes of `json` too."""
    answer = await api.post("/v1/jobs", f'{{"url": "{TARGET}", {members}}}')
    assert answer.status_code == 201, answer.text
    expected = members.removeprefix('"json": ').encode() if expected is None else expected
    assert await stored_body(database, api, answer.json()["id"]) == expected
    assert answer.json()["has_body"]


async def test_json_sets_the_content_type_if_absent(api: Api) -> None:
    """`json` means application/json unless the caller says otherwise."""
    assert (await api.create(json={}))["headers"] == [["Content-Type", "application/json"]]
    given = [["content-type", "application/cloudevents+json"]]
    assert (await api.create(json={}, headers=given))["headers"] == given
    assert (await api.create(headers={"A": "1", "B": "2"}))["headers"] == [["A", "1"], ["B", "2"]]


async def test_a_repeat_is_the_same_job(api: Api) -> None:
    """The same id and content again is the same 201, marked; other content is a conflict."""
    job_id = str(uuid7())
    job = await api.create(id=job_id, json={"a": 1})
    assert job["id"] == job_id
    again = await api.post("/v1/jobs", {"url": TARGET, "id": job_id, "json": {"a": 1}})
    assert again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == job
    other = await api.post("/v1/jobs", {"url": TARGET, "id": job_id, "json": {"a": 2}})
    problem = assert_problem(other, 409)
    assert problem["errors"][0]["pointer"] == "/id"
    assert len((await api.get("/v1/jobs")).json()["data"]) == 1


async def test_racing_repeats_make_one_job(api: Api) -> None:
    """Twenty posts of one id at once: one created, nineteen repeated, one job."""
    content = {"url": TARGET, "id": str(uuid7()), "body": "x"}
    answers = await asyncio.gather(*(api.post("/v1/jobs", content) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert len((await api.get("/v1/jobs")).json()["data"]) == 1


async def test_times(api: Api) -> None:
    """The past is now; a local time is taken in its zone."""
    assert (await api.create(run_at="2001-01-01T00:00:00Z"))["state"] == "ready"
    assert (await api.create(delay=0))["state"] == "ready"
    year = datetime.now(UTC).year + (datetime.now(UTC).month > 6)
    job = await api.create(run_at_local=f"{year}-07-01T09:00", timezone="Europe/Berlin")
    assert job["run_at"] == f"{year}-07-01T07:00:00Z"
    assert job["state"] == "scheduled"


async def test_base_url_goes_before_links(database: Database, policy: EgressPolicy) -> None:
    """With a base URL, Location is absolute."""
    app = create_app(database, policy, ApiSettings(base_url="https://jobs.example.com/"))
    async with httpx.AsyncClient(base_url="http://test", transport=httpx.ASGITransport(app)) as client:
        answer = await (await new_api(database, client, "acme")).post("/v1/jobs", {"url": TARGET})
    assert answer.headers["location"] == f"https://jobs.example.com/v1/jobs/{answer.json()['id']}"


class Forgetful(Database):
    """A database that goes away once a job is stored."""

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        if "duly.jobs" in statement:
            raise DatabaseUnavailableError("gone")
        return await super().fetchrow(statement, *args)


async def test_committed_is_201_whatever_comes_after(database_url: str, policy: EgressPolicy) -> None:
    """A database that goes away between the commit and the answer does not turn it into a failure."""
    async with await Forgetful.open(database_url) as database:
        app = create_app(database, policy, ApiSettings())
        async with httpx.AsyncClient(base_url="http://test", transport=httpx.ASGITransport(app)) as client:
            api = await new_api(database, client, "acme")
            job = await api.create(delay=60, json={"a": 1})
            JobDocument.model_validate(job)
            assert (job["state"], job["attempts"], job["has_body"]) == ("scheduled", 0, True)
            assert (
                await database.fetchval("select count(*) from duly.scheduled where job_id = $1", UUID(job["id"])) == 1
            )


async def test_a_loop_of_services_ends(api: Api) -> None:
    """The hop count that came in is stored, and refused when it is too high."""
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers={"Duly-Hops": "3"})).status_code == 201
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers={"Duly-Hops": "8"}), 422)
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers={"Duly-Hops": "x"}), 422)


async def test_a_body_cut_off_leaves_nothing(api: Api) -> None:
    """A client that hangs up half-way has made no job, and the service goes on."""
    host, port = api.client.base_url.host, api.client.base_url.port
    _, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\nContent-Length: 1000\r\n\r\n"
    writer.write(head.encode() + f'{{"url": "{TARGET}"}}'.encode())
    await writer.drain()
    writer.write_eof()
    writer.close()
    await writer.wait_closed()
    assert (await api.get("/v1/jobs")).json()["data"] == []


async def test_client_ids_last_a_day(api: Api) -> None:
    """An id's time is at most 24 hours old and 10 minutes ahead."""
    now_ms = time.time_ns() // 1_000_000
    for shift_s in (-86_000, 500):
        await api.create(id=str(uuid7(now_ms + shift_s * 1000)))
    for shift_s in (-86_500, 700):
        problem = assert_problem(
            await api.post("/v1/jobs", {"url": TARGET, "id": str(uuid7(now_ms + shift_s * 1000))}), 422
        )
        assert [error["pointer"] for error in problem["errors"]] == ["/id"]


async def test_limits_count_the_body(api: Api) -> None:
    """The longest body is taken in each of its three forms; one byte more is 413."""
    most = 256 * 1024
    assert await api.create(body="x" * most)
    assert await api.create(body_base64=base64.b64encode(b"\xff" * most).decode())
    assert await api.create(body="é" * (most // 2))
    for members in ({"body": "x" * (most + 1)}, {"body_base64": base64.b64encode(b"x" * (most + 1)).decode()}):
        assert_problem(await api.post("/v1/jobs", {"url": TARGET, **members}), 413)


async def test_a_long_request_is_refused_while_it_arrives(api: Api) -> None:
    """A request beyond the limit is refused before it is all there, announced or not."""
    assert_problem(await api.post("/v1/jobs", b" " * 2_000_000), 413)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(400):
            yield b" " * 10_000

    answer = await api.client.post(
        "/v1/jobs",
        content=endless(),
        headers={"authorization": f"Bearer {api.key}", "content-type": "application/json"},
    )
    assert_problem(answer, 413)


async def test_expect_continue_is_answered(api: Api) -> None:
    """curl asks before it sends a long body."""
    reader, writer = await asyncio.open_connection(api.client.base_url.host, api.client.base_url.port)
    body = f'{{"url": "{TARGET}"}}'.encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    assert b"201 Created" in await reader.read()
    writer.close()
    await writer.wait_closed()
