"""POST /v1/jobs/batch: all of the jobs or none, and every fault of every one at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from api.harness import TARGET, Api, assert_problem
from duly.api import ApiSettings
from duly.model import uuid7
from duly.queue import Database, conservation, get_job


async def stored(database: Database) -> int:
    count: int = await database.fetchval("select count(*) from duly.job")
    return count


async def test_a_thousand_jobs_are_one_transaction(api: Api, database: Database) -> None:
    """Ids in the order given, bodies to the byte, one transaction; one more is refused."""
    jobs = [{"url": f"{TARGET}/{n}", "json": {"n": n}, "tags": ["t"]} for n in range(1000)]
    answer = await api.post("/v1/jobs/batch", {"jobs": jobs})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert {item["result"] for item in data} == {"created"}
    for n in (0, 1, 999):
        job = await get_job(database, api.project.owner, UUID(data[n]["id"]), include_body=True)
        assert job is not None
        assert (job.payload["url"], job.body) == (f"{TARGET}/{n}", json.dumps({"n": n}).encode())
    assert await database.fetchval("select count(distinct xmin::text) from duly.job") == 1
    assert_problem(await api.post("/v1/jobs/batch", {"jobs": [*jobs, {"url": TARGET}]}), 422)
    assert await stored(database) == 1000
    assert (await conservation(database)).holds


async def test_json_is_kept_as_it_was_written(api: Api, database: Database) -> None:
    """Digits and spaces inside a job of a batch, too."""
    answer = await api.post("/v1/jobs/batch", f'{{"jobs" : [ {{"url": "{TARGET}", "json": [1.10 , 1E2]}} ]}}')
    job = await get_job(database, api.project.owner, UUID(answer.json()["data"][0]["id"]), include_body=True)
    assert job is not None
    assert job.body == b"[1.10 , 1E2]"


async def test_every_fault_of_every_job_is_named_at_once(api: Api, database: Database) -> None:
    """Index and pointer of each, more than a hundred of them too, and nothing is stored."""
    bad: list[Any] = [
        {"url": TARGET},
        {"url": "ftp://x", "priority": 10, "delay": -1},
        7,
        {"url": TARGET, "headers": {"Host": "x"}, "metadata": "\ud800"},
        {"url": TARGET, "tags": [""]},
    ]
    answer = await api.post("/v1/jobs/batch", json.dumps({"jobs": bad + [{}] * 150}))
    errors = assert_problem(answer, 422)["errors"]
    assert {(error["index"], error["pointer"]) for error in errors} == {
        (1, "/jobs/1/url"),
        (1, "/jobs/1/priority"),
        (1, "/jobs/1/delay"),
        (2, "/jobs/2"),
        (3, "/jobs/3/headers/Host"),
        (3, "/jobs/3/metadata"),
        (4, "/jobs/4/tags/0"),
        *((n, f"/jobs/{n}/url") for n in range(5, 155)),
    }
    assert await stored(database) == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"jobs": []}', 422),
        ("{}", 422),
        ('{"jobs": {}}', 422),
        ('{"jobs": null}', 422),
        ('{"jobs": [{"url": "' + TARGET + '"}], "more": 1}', 422),
        ('{"jobs": [{"url": "' + TARGET + '"}], "jobs": []}', 422),
        ('{"jobs": [{"url": "' + TARGET + '"},]}', 400),
        ('[{"url": "' + TARGET + '"}]', 400),
        ("", 400),
    ],
)
async def test_what_is_no_batch_is_refused(api: Api, database: Database, body: str, status: int) -> None:
    """By place where there is one; nothing is stored."""
    assert_problem(await api.post("/v1/jobs/batch", body), status)
    assert await stored(database) == 0


async def test_ids_and_unique_keys(api: Api, database: Database) -> None:
    """A repeat is a repeat; another job's id or unique key refuses the whole batch and names the places; twins are a
    fault.
    """
    first = {"url": TARGET, "id": str(uuid7()), "unique_key": "k"}
    both = [first, {"url": TARGET}]
    assert (await api.post("/v1/jobs/batch", {"jobs": both})).status_code == 200
    again = (await api.post("/v1/jobs/batch", {"jobs": both})).json()["data"]
    assert [item["result"] for item in again] == ["repeated", "created"]
    keep = {"url": TARGET, "unique_key": "k", "on_conflict": "keep"}
    assert (await api.post("/v1/jobs/batch", {"jobs": [keep]})).json()["data"] == [
        {"id": first["id"], "result": "kept"}
    ]
    before = await stored(database)
    other = [{"url": TARGET}, {**first, "priority": 1}, {"url": TARGET, "unique_key": "k"}]
    problem = assert_problem(await api.post("/v1/jobs/batch", {"jobs": other}), 409)
    assert [(error["index"], error["pointer"]) for error in problem["errors"]] == [
        (1, "/jobs/1/id"),
        (2, "/jobs/2/unique_key"),
    ]
    twins = {"url": TARGET, "id": str(uuid7())}
    problem = assert_problem(await api.post("/v1/jobs/batch", {"jobs": [twins, twins]}), 422)
    assert problem["errors"][0]["pointer"] == "/jobs/1/id"
    assert await stored(database) == before


class TestSmall:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(batch_limit_bytes=5000, body_limit_bytes=100)

    async def test_the_limit_in_bytes(self, api: Api, database: Database) -> None:
        """A request that is longer is 413; a body that is longer than a job's may be is that job's fault."""
        assert_problem(await api.post("/v1/jobs/batch", {"jobs": [{"url": TARGET, "body": "x" * 5000}]}), 413)
        problem = assert_problem(
            await api.post("/v1/jobs/batch", {"jobs": [{"url": TARGET}, {"url": TARGET, "body": "x" * 101}]}), 422
        )
        assert [error["index"] for error in problem["errors"]] == [1]
        assert await stored(database) == 0


async def test_a_batch_cut_off_leaves_nothing(api: Api, database: Database) -> None:
    """A client that hangs up half-way has made no job at all."""
    host, port = api.client.base_url.host, api.client.base_url.port
    body = json.dumps({"jobs": [{"url": TARGET}] * 100}).encode()
    for share in (1, len(body) // 2, len(body) - 1):
        _, writer = await asyncio.open_connection(host, port)
        head = f"POST /v1/jobs/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:share])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await api.get("/v1/jobs")).json()["data"] == []
    assert await stored(database) == 0
