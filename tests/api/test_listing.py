"""GET /v1/jobs: filters by name, cursors, and what is refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from api.harness import Api, Worker, assert_problem
from duly.model import Report
from duly.queue import Database


async def ids(api: Api, query: str) -> list[str]:
    answer = await api.get(f"/v1/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["data"]]


async def test_each_filter(api: Api, worker: Worker) -> None:
    """Every one by its name, alone and together with others."""
    failed = (await api.create(url="http://127.0.0.1:9999/a?b=c", method="PUT"))["id"]
    await worker.fail(Report("http_error", "The target answered 503", 503))
    dead = (await api.create(url="http://127.0.0.2:9999/b", queue="mail"))["id"]
    await worker.bury()
    done = (await api.create())["id"]
    await worker.succeed()
    moment = datetime.now(UTC)
    later = (await api.create(delay=3600, tags=["x", "y"], unique_key="k"))["id"]
    after, soon = quote(moment.isoformat()), quote((moment + timedelta(minutes=1)).isoformat())
    for query, expected in {
        "": [later, done, dead, failed],
        "state=dead": [dead],
        "state=dead,succeeded": [done, dead],
        "queue=mail": [dead],
        "tag=y": [later],
        "host=127.0.0.2": [dead],
        "url_prefix=http://127.0.0.1:9999/a": [failed],
        "method=PUT": [failed],
        "unique_key=k": [later],
        f"created_from={after}": [later],
        f"created_to={after}": [done, dead, failed],
        f"run_at_from={soon}": [later],
        f"run_at_to={soon}&method=POST": [done, dead],
        f"finished_to={soon}": [done, dead],
        f"finished_from={after}": [],
        "last_status_code=503": [failed],
        "last_status_code=4xx": [dead],
        "last_error=TARGET ANSWERED": [dead, failed],
        "min_attempts=1": [done, dead, failed],
        "min_attempts=1&state=scheduled&last_status_code=5xx&host=127.0.0.1": [failed],
    }.items():
        assert await ids(api, query) == expected, query


async def test_pages(api: Api) -> None:
    """Each job once, whatever the size of a page; new jobs do not come into later pages."""
    made = [(await api.create())["id"] for _ in range(5)]
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = (await api.get(f"/v1/jobs?{query}")).json()
        seen += [job["id"] for job in page["data"]]
        await api.create()
        if page["next_cursor"] is None:
            break
        query = f"limit=2&cursor={page['next_cursor']}"
    assert seen == made[::-1]
    assert "request_body" not in page["data"][0]


async def test_a_short_page_goes_on(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    """A call that has looked at as many jobs as it may ends with a cursor, and the next one goes on there."""
    old = (await api.create(method="PUT"))["id"]
    await database.execute(
        """insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts,
                                 timeout_seconds, run_at, payload)
           select duly.uuid7(), j.account_id, j.project_id, j.lane_id, 'q', 'http', 5, 8, 30, now(), '{}'
           from duly.job j cross join generate_series(1, 5100)"""
    )
    first = (await api.get("/v1/jobs?method=PUT")).json()
    assert (first["data"], first["next_cursor"] is None) == ([], False)
    second = (await api.get(f"/v1/jobs?method=PUT&cursor={first['next_cursor']}")).json()
    assert ([job["id"] for job in second["data"]], second["next_cursor"]) == ([old], None)


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "state=",
        "queue=",
        "queue=a%00b",
        "tag=" + "x" * 101,
        "method=get",
        "created_from=yesterday",
        "created_from=2030-01-01T00:00:00",
        "run_at_from=2030-01-02T00:00:00Z&run_at_to=2030-01-01T00:00:00Z",
        "last_status_code=700",
        "last_status_code=4x",
        "min_attempts=-1",
        "min_attempts=1.5",
        "min_attempts=99999999",
        "limit=0",
        "limit=201",
        "limit=x",
        "cursor=",
        "cursor=abc",
        "total=true",
        "state=dead&state=dead",
    ],
)
async def test_what_is_refused(api: Api, query: str) -> None:
    """422 naming the parameter, never a list of something else."""
    problem = assert_problem(await api.get(f"/v1/jobs?{query}"), 422)
    assert all("parameter" in error for error in problem["errors"])


async def test_every_bad_parameter_is_named_at_once(api: Api) -> None:
    """One answer for all of them."""
    problem = assert_problem(await api.get("/v1/jobs?state=x&method=y&limit=0&cursor=z&more=1&min_attempts=x"), 422)
    assert {error["parameter"] for error in problem["errors"]} == {
        "state",
        "method",
        "limit",
        "cursor",
        "more",
        "min_attempts",
    }


async def test_a_cursor_that_was_changed_is_refused(api: Api) -> None:
    """Cut, lengthened, or not of ours: 422."""
    for _ in range(3):
        await api.create()
    cursor = (await api.get("/v1/jobs?limit=1")).json()["next_cursor"]
    changed: list[Any] = [cursor[:-4], cursor + "AAAA", cursor[4:], base64.b64encode(b"x" * 18).decode(), "%ff"]
    for bad in changed:
        assert_problem(await api.get(f"/v1/jobs?cursor={quote(bad)}"), 422)
