"""/v1/queues: what is set is shown and applies; what new jobs leave out they take from their queue."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, new_api, pointers
from duly.model import uuid7
from duly.queue import Database, claim, get_queue, live_segments

UNSET = {"max_attempts": None, "backoff": None, "max_age": None, "on": None}


async def put(api: Api, name: str, content: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
    if isinstance(content, (str, bytes)):
        return await api.client.put(f"/v1/queues/{name}", content=content, headers=headers)
    return await api.client.put(f"/v1/queues/{name}", json=content, headers=headers)


async def delete(api: Api, name: str) -> httpx.Response:
    return await api.client.delete(f"/v1/queues/{name}", headers={"authorization": f"Bearer {api.key}"})


async def test_settings_are_replaced_shown_listed_and_forgotten(api: Api) -> None:
    """PUT replaces everything but the pause; GET, the list and DELETE tell the same; what was never there is 404."""
    assert_problem(await api.get("/v1/queues/mail"), 404)
    assert_problem(await delete(api, "mail"), 404)
    given = {
        "concurrency": 5,
        "key_concurrency": 1,
        "rate": {"limit": 100, "per": "1m"},
        "timeout": "10s",
        "retry": {"max_attempts": 3, "backoff": {"kind": "fixed", "base": 7}, "max_age": "1h", "on": [404, "5xx"]},
        "paused": True,
    }
    shown = (await put(api, "mail", given)).json()
    backoff = {"kind": "fixed", "base": 7, "factor": 4.0, "max": 21600, "jitter": 0.25, "steps": []}
    expected = {
        "name": "mail",
        "concurrency": 5,
        "key_concurrency": 1,
        "rate": {"limit": 100, "per": 60},
        "timeout": 10,
        "retry": {"max_attempts": 3, "backoff": backoff, "max_age": 3600, "on": [404, "5xx"]},
        "paused": True,
    }
    assert shown == expected
    assert (await api.get("/v1/queues/mail")).json() == expected

    left = (await put(api, "mail", {"rate": "5/1h"})).json()
    plain = {"concurrency": None, "key_concurrency": None, "rate": None, "timeout": None, "retry": UNSET}
    assert left == {"name": "mail", **plain, "rate": {"limit": 5, "per": 3600}, "paused": True}
    await api.create(queue="used")
    listed = (await api.get("/v1/queues")).json()
    assert listed == {"data": [left, {"name": "used", **plain, "paused": False}], "next_cursor": None}
    assert (await delete(api, "mail")).json() == {"name": "mail", **plain, "paused": False}
    assert_problem(await api.get("/v1/queues/mail"), 404)


async def test_a_list_is_read_page_by_page(api: Api) -> None:
    """By name, in the order of bytes; what is no cursor or no limit is refused."""
    names = sorted(["b", "B", "a/b", "a:1", "z.9", "a-b", "0"])
    for name in reversed(names):
        assert (await put(api, name, {})).status_code == 200
    found: list[str] = []
    cursor = ""
    for _ in range(len(names)):
        page = (await api.get("/v1/queues", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        found += [queue["name"] for queue in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == names
    for query in ("limit=0", "limit=x", "cursor=abc", "cursor=cTE", "state=ready", "limit=1&limit=2"):
        assert_problem(await api.get(f"/v1/queues?{query}"), 422)


async def test_names_with_slashes_are_names(api: Api) -> None:
    """Also one that ends like a call."""
    for name in ("a/b", "a/pause", "eu:mail/x"):
        assert (await put(api, name, {"concurrency": 2})).json()["name"] == name
        assert (await api.post(f"/v1/queues/{name}/pause")).json()["paused"] is True
        assert (await api.get(f"/v1/queues/{name}")).json()["concurrency"] == 2
    assert_problem(await put(api, "%20x", {}), 422)
    assert_problem(await api.get("/v1/queues/-x"), 422)
    assert_problem(await api.post(f"/v1/queues/{'x' * 101}/pause"), 422)


async def test_every_fault_is_named(api: Api) -> None:
    """All at once, by pointer; nothing is changed."""
    bad = {
        "concurrency": 0,
        "key_concurrency": True,
        "rate": "fast",
        "timeout": "16m",
        "retry": {"max_attempts": 51, "on": [99], "backoff": {"kind": "steps"}, "what": 1},
        "paused": "yes",
        "speed": 1,
    }
    problem = assert_problem(await put(api, "q", bad), 422)
    assert pointers(problem) == {
        "/concurrency",
        "/key_concurrency",
        "/rate",
        "/timeout",
        "/retry/max_attempts",
        "/retry/on",
        "/retry/backoff",
        "/retry/what",
        "/paused",
        "/speed",
    }
    assert_problem(await put(api, "q", "[1]"), 400)
    assert_problem(await put(api, "q", '{"concurrency": 1, "concurrency": 2}'), 422)
    assert_problem(await api.get("/v1/queues/q"), 404)


@pytest.mark.parametrize(
    "rate",
    [
        0,
        "100",
        "/1s",
        "100/",
        "1.5/1s",
        "0/1s",
        "10/0s",
        "10/2d",
        "10/500ms",
        "1000001/1s",
        {"limit": 1},
        [],
        {"limit": True, "per": 1},
        {"limit": "1", "per": 1},
        {"limit": 1, "per": 1, "burst": 2},
        {"limit": 1, "per": "x"},
    ],
)
async def test_what_is_no_rate_is_refused(api: Api, rate: Any) -> None:
    """By its pointer."""
    assert pointers(assert_problem(await put(api, "q", {"rate": rate}), 422)) == {"/rate"}


@pytest.mark.parametrize(
    ("rate", "per"),
    [("100/1s", 1), ("100/s", 1), ("100/m", 60), ("100/90s", 90), ({"limit": 100, "per": 1.5}, 1.5), ("100/1d", 86400)],
)
async def test_a_rate_is_written_in_several_ways(api: Api, rate: Any, per: float) -> None:
    """And shown in one."""
    assert (await put(api, "q", {"rate": rate})).json()["rate"] == {"limit": 100, "per": per}


async def test_a_pause_stops_and_a_resume_goes_on(api: Api, worker: Worker, database: Database) -> None:
    """Before the first job, too; a PUT that does not speak of it leaves it."""
    assert (await api.post("/v1/queues/q/pause")).json()["paused"] is True
    job = await api.create(queue="q")
    assert (await put(api, "q", {"concurrency": 1})).json()["paused"] is True
    live = await live_segments(database, "ready")
    assert await claim(database, worker.id, 1, ["http"], None, worker.cursor, live) == []
    assert (await put(api, "q", {"paused": False})).json()["paused"] is False
    assert (await api.post("/v1/queues/q/pause")).status_code == 200
    assert (await api.post("/v1/queues/q/resume")).json()["paused"] is False
    assert str((await worker.claim()).id) == job["id"]


async def test_what_a_job_leaves_out_it_takes_from_its_queue(api: Api, worker: Worker) -> None:
    """Field by field; what it says itself stands, and what is stored is what the answer showed."""
    backoff = {"kind": "fixed", "base": 7, "factor": 4.0, "max": 21600, "jitter": 0.25, "steps": []}
    retry = {"max_attempts": 3, "backoff": {"kind": "fixed", "base": 7}, "max_age": "1h", "on": "all_non_2xx"}
    await put(api, "q", {"timeout": 5, "retry": retry})
    taken = {"max_attempts": 3, "backoff": backoff, "max_age": 3600, "on": "all_non_2xx"}
    plain = await api.create(queue="q")
    assert (plain["timeout"], plain["retry"], plain["max_attempts"]) == (5, taken, 3)
    assert plain == await api.job(plain["id"])
    claimed = await worker.claim()
    assert (claimed.timeout.total_seconds(), claimed.max_attempts, claimed.retry.on) == (5, 3, "all_non_2xx")

    own = await api.create(queue="q", timeout=9, retry={"max_attempts": 2, "on": [404]})
    assert (own["timeout"], own["retry"]) == (9, {**taken, "max_attempts": 2, "on": [404]})
    null = await api.create(queue="q", timeout=None, retry={"backoff": None})
    assert (null["timeout"], null["retry"]) == (5, taken)
    other = await api.create(queue="r")
    assert (other["timeout"], other["max_attempts"]) == (30, 8)
    await put(api, "q", {})
    assert (await api.create(queue="q"))["timeout"] == 30
    assert (await api.job(plain["id"]))["timeout"] == 5


async def test_a_repeat_is_the_same_job_though_its_queue_has_changed(api: Api) -> None:
    """What it took from the queue then is not held against it; what it says itself is."""
    await put(api, "q", {"timeout": 5, "retry": {"on": [404]}})
    first = await api.create(queue="q", id=str(uuid7()), body="b")
    await put(api, "q", {"timeout": 6, "retry": {"max_attempts": 2}})
    again = await api.post("/v1/jobs", {"url": TARGET, "queue": "q", "id": first["id"], "body": "b"})
    assert (again.status_code, again.headers["idempotency-replayed"], again.json()) == (201, "true", first)
    other = {"url": TARGET, "queue": "q", "id": first["id"], "body": "b", "timeout": 6}
    assert_problem(await api.post("/v1/jobs", other), 409)


async def test_defaults_are_looked_up_once_a_second(api: Api, database: Database, monkeypatch: Any) -> None:
    """A hundred creates at once ask once; a look-up that failed is made again."""
    asked: list[str] = []

    async def counted(db: Database, project_id: int, name: str) -> Any:
        asked.append(name)
        await asyncio.sleep(0.01)
        if len(asked) == 1:
            raise RuntimeError("once")
        return await get_queue(db, project_id, name)

    monkeypatch.setattr("duly.service.queues.get_queue", counted)
    assert (await api.post("/v1/jobs", {"url": TARGET})).status_code == 500
    monkeypatch.setattr("duly.service.queues._MOST", 1)
    await asyncio.gather(*(api.create() for _ in range(100)))
    assert asked == ["default", "default"]
    await api.create(timeout=1, retry={"max_attempts": 1, "backoff": {}, "max_age": 5, "on": "default"}, queue="x")
    assert len(asked) == 2
    await api.create(queue="y")
    assert asked[2:] == ["y"]


async def test_a_key_needs_the_scope_and_sees_its_own_project(
    database: Database, client: httpx.AsyncClient, api: Api
) -> None:
    """Reading and writing; somebody else's queue is as one that is not there."""
    reader = await new_api(database, client, "reader", ("read",))
    assert_problem(await put(reader, "q", {}), 403)
    assert_problem(await delete(reader, "q"), 403)
    assert_problem(await reader.post("/v1/queues/q/pause"), 403)
    await put(api, "q", {"concurrency": 3})
    assert_problem(await reader.get("/v1/queues/q"), 404)
    assert (await reader.get("/v1/queues")).json()["data"] == []
