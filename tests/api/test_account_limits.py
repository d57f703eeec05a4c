"""What an account may do, enforced over the API: request rate, stored jobs, monthly quota, body, horizon; and usage."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, pointers
from api.tenants import bearer, calls, new_tenant
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.model import uuid7
from duly.queue import Database
from duly.service import create_key

DAY = timedelta(days=1)


async def limited(database: Database, client: httpx.AsyncClient, **limits: Any) -> Api:
    return (await new_tenant(database, client, "limited", limits=limits)).api


async def jobs_there(database: Database) -> int:
    count: int = await database.fetchval("select count(*) from duly.job")
    return count


@asynccontextmanager
async def another_process(database: Database, policy: EgressPolicy, api: Api) -> AsyncIterator[Api]:
    """The same account at an API that shares nothing with the first but the database."""
    server = ApiServer(create_app(database, policy, ApiSettings()))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield Api(client, api.project, api.key)
    await server.stop()


async def test_the_request_rate(database: Database, client: httpx.AsyncClient) -> None:
    """So many calls pass in one go, further ones are 429 and say when to come back; header fields tell what is left.

    FO-082: it is counted by account: neither a header that names another peer nor another key opens it.
    """
    api = await limited(database, client, request_rate=0.05)
    answer = await api.get("/v1/jobs")
    assert answer.status_code == 200
    assert answer.headers["ratelimit-policy"] == '"request_rate";q=1;w=20'
    assert re.fullmatch(r'"request_rate";r=0;t=(19|20)', answer.headers["ratelimit"])
    other = await create_key(database, api.project.owner.project_id, "other")
    for n, key in enumerate((api.key, other.key, api.key)):
        forged = {"x-forwarded-for": f"203.0.113.{n}", "forwarded": f"for=203.0.113.{n}", "x-real-ip": f"203.0.113.{n}"}
        answer = await client.get("/v1/jobs", headers=bearer(key) | forged)
        assert assert_problem(answer, 429)["type"] == "urn:duly:problem:request-rate"
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert answer.headers["ratelimit"] == f'"request_rate";r=0;t={answer.headers["retry-after"]}'
        assert answer.headers["ratelimit-policy"] == '"request_rate";q=1;w=20'
    neighbour = (await new_tenant(database, client, "neighbour")).api
    for _ in range(5):
        answer = await neighbour.get("/v1/jobs")
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers


async def test_every_call_counts_for_the_request_rate(database: Database, client: httpx.AsyncClient) -> None:
    """Whatever is called: over the rate it is 429, before a body is read or anything is looked up."""
    tenant = await new_tenant(database, client, "limited", limits={"request_rate": 0.01})
    assert (await tenant.api.get("/v1/usage")).status_code == 200
    for call in calls():
        assert_problem(await tenant.call(call, tenant.ids), 429)


async def test_refusals_carry_the_rate_too(database: Database, client: httpx.AsyncClient) -> None:
    """A problem of another kind tells what is left as well; without a key there is no account to tell of."""
    api = await limited(database, client, request_rate=3)
    answer = await api.post("/v1/jobs", {"url": "x"})
    assert_problem(answer, 422)
    assert answer.headers["ratelimit"].startswith('"request_rate";r=2;t=')
    assert "ratelimit" not in (await client.get("/v1/jobs")).headers


async def test_stored_jobs(database: Database, client: httpx.AsyncClient, worker: Worker) -> None:
    """Jobs that have not ended are counted, wherever they are; at the limit 429 and nothing is stored; what ends makes
    room, however it ends.
    """
    api = await limited(database, client, stored=3)
    running = await api.create()
    await worker.claim()
    later = await api.create(delay="1h")
    await api.create()
    answer = await api.post("/v1/jobs", {"url": TARGET})
    assert assert_problem(answer, 429)["type"] == "urn:duly:problem:stored"
    assert answer.headers["ratelimit-policy"] == '"stored";q=3'
    assert int(answer.headers["retry-after"]) >= 1
    assert await jobs_there(database) == 3
    assert (await api.job(running["id"]))["state"] == "running"
    assert (await api.post(f"/v1/jobs/{later['id']}/cancel")).status_code == 200
    await asyncio.wait_for(create_when_there_is_room(api), 20)
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}), 429)
    assert await jobs_there(database) == 4


async def create_when_there_is_room(api: Api) -> None:
    """As a client does: again and again while the answer is 429."""
    while (answer := await api.post("/v1/jobs", {"url": TARGET})).status_code == 429:
        await asyncio.sleep(0.05)
    assert answer.status_code == 201, answer.text


async def test_a_hundred_creates_at_once_meet_a_limit_exactly(database: Database, client: httpx.AsyncClient) -> None:
    """In one process the limits are exact, however many come at once: 40 of 100, then none."""
    api = await limited(database, client, stored=40, monthly_quota=1_000)
    answers = await asyncio.gather(*(api.post("/v1/jobs", {"url": TARGET}) for _ in range(100)))
    assert sorted(answer.status_code for answer in answers) == [201] * 40 + [429] * 60
    assert await jobs_there(database) == 40


async def test_the_monthly_quota(database: Database, client: httpx.AsyncClient, worker: Worker) -> None:
    """Jobs created count, whatever becomes of them; over it 429 until the month ends. What runs goes on, and a redrive
    or a look costs nothing. A repeat of what was created is answered as ever.
    """
    api = await limited(database, client, monthly_quota=3)
    first_id = str(uuid7())
    first = await api.create(id=first_id)
    again = await api.post("/v1/jobs", {"url": TARGET, "id": first_id})
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert_problem(await api.post("/v1/jobs", {"url": "not one"}), 422)
    await api.create()
    await worker.bury()
    await api.create()
    for _ in range(2):
        answer = await api.post("/v1/jobs", {"url": TARGET})
        assert assert_problem(answer, 429)["type"] == "urn:duly:problem:monthly-quota"
        assert answer.headers["ratelimit-policy"] == '"monthly_quota";q=3;w=2678400'
        now = datetime.now(UTC)
        month_ends = (now.replace(day=1) + 32 * DAY).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        assert abs(int(answer.headers["retry-after"]) - (month_ends - now).total_seconds()) < 60
    assert await jobs_there(database) == 3
    usage = (await api.get("/v1/usage")).json()
    assert (usage["quota_used"], usage["quota_left"]) == (3, 0)
    assert datetime.fromisoformat(usage["quota_resets_at"]) == month_ends
    again = await api.post("/v1/jobs", {"url": TARGET, "id": first_id})
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert_problem(await api.post("/v1/jobs", {"url": TARGET, "id": first_id, "priority": 1}), 409)
    assert (await api.post(f"/v1/jobs/{first['id']}/redrive")).status_code == 202
    await worker.succeed()
    assert await jobs_there(database) == 3


async def test_a_quota_is_not_exceeded_by_several_processes(
    database: Database, client: httpx.AsyncClient, policy: EgressPolicy
) -> None:
    """Two processes that create as fast as they can: exactly the quota, since what one holds and does not use is given
    back when it stops.
    """
    api = await limited(database, client, monthly_quota=700)

    async def create_until_refused(api: Api) -> int:
        made = 0
        while (answer := await api.post("/v1/jobs", {"url": TARGET})).status_code == 201:
            made += 1
        assert_problem(answer, 429)
        return made

    async with another_process(database, policy, api) as other:
        await other.create()
        await other.create()  # it holds a block now
        counts = await asyncio.gather(*(create_until_refused(one) for one in (api, other, api, other)))
        assert sum(counts) + 2 <= 700
    await asyncio.sleep(0.3)  # a refusal is remembered for so long
    assert 2 + sum(counts) + await create_until_refused(api) == 700
    assert await jobs_there(database) == 700
    rows = await database.fetchval("select count(*) from duly.quota_block")
    assert rows < 700 / 2 + 10  # blocks of two


async def test_a_raised_limit_counts_at_once(database: Database, client: httpx.AsyncClient) -> None:
    """No restart, no waiting: the next create goes by the new limit, up and down."""
    api = await limited(database, client, monthly_quota=1, stored=1)
    await api.create()
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}), 429)

    async def set_to(limits: str) -> None:
        await database.execute("update duly.account set limits = $1 where name = 'limited'", limits)

    await set_to('{"monthly_quota": 600, "stored": 5}')
    await api.create()
    await set_to('{"monthly_quota": 2, "stored": 5}')
    assert assert_problem(await api.post("/v1/jobs", {"url": TARGET}), 429)["type"].endswith("monthly-quota")
    await set_to("{}")
    await api.create()


async def test_body_and_horizon(database: Database, client: httpx.AsyncClient) -> None:
    """A plan's body size and horizon are narrower than the operator's, never wider."""
    api = await limited(database, client, body_bytes=10, horizon=3600)
    await api.create(body="x" * 10, delay=3600)
    assert_problem(await api.post("/v1/jobs", {"url": TARGET, "body": "x" * 11}), 413)
    answer = await api.post("/v1/jobs", {"url": TARGET, "delay": 3601})
    assert pointers(assert_problem(answer, 422)) == {"/delay"}
    far = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    assert pointers(assert_problem(await api.post("/v1/jobs", {"url": TARGET, "run_at": far}), 422)) == {"/run_at"}
    wide = (await new_tenant(database, client, "wide", limits={"body_bytes": 1 << 29, "horizon": 366 * 86_400})).api
    assert_problem(await wide.post("/v1/jobs", {"url": TARGET, "body": "x" * (256 * 1024 + 1)}), 413)


async def test_every_call_that_makes_a_job_minds_the_limits(database: Database, client: httpx.AsyncClient) -> None:
    """None of them is a way round: over a quota of nothing each is 429 and makes nothing."""
    tenant = await new_tenant(database, client, "limited")
    job = await tenant.api.create()
    await tenant.api.post(f"/v1/jobs/{job['id']}/cancel")  # a replay needs one that has ended
    for limit, body in (("monthly_quota", {"url": TARGET}), ("stored", {"url": TARGET})):
        await database.execute("update duly.account set limits = jsonb_build_object($1::text, 0)", limit)
        before = await jobs_there(database)
        bodies: dict[str, Any] = {
            "/v1/jobs": body,
            "/v1/jobs/batch": {"jobs": [body]},
            "/v1/jobs/{id}/replay": None,
        }
        for call in calls():
            if call.method == "POST" and call.path in bodies:
                answer = await tenant.api.post(call.url({"jobs": job["id"]}), bodies[call.path])
                assert assert_problem(answer, 429)["type"].endswith(limit.replace("_", "-"))
        assert await jobs_there(database) == before


async def test_usage(database: Database, client: httpx.AsyncClient, worker: Worker) -> None:
    """Slots in use, what waits and for how long, what is left: of the account, nobody else's."""
    api = await limited(database, client, monthly_quota=1_000_000, running=10)
    stranger = (await new_tenant(database, client, "stranger")).api
    empty = (await api.get("/v1/usage")).json()
    assert empty | {"quota_resets_at": None, "limits": None} == {
        "slots_in_use": 0,
        "due_backlog": 0,
        "oldest_due_age": None,
        "stored": 0,
        "quota_used": 0,
        "quota_left": 1_000_000,
        "quota_resets_at": None,
        "limits": None,
    }
    assert (empty["limits"]["running"], empty["limits"]["stored"]) == (10, None)
    for _ in range(3):
        await api.create(queue="a")
    await worker.claim()
    await api.create(delay="1h")
    await api.create(queue="b", priority=9)
    await stranger.create()
    await database.execute("update duly.ready set run_at = run_at - interval '100 s' where priority = 9")
    usage = (await api.get("/v1/usage")).json()
    assert (usage["slots_in_use"], usage["due_backlog"], usage["stored"]) == (1, 3, 5)
    assert (usage["quota_used"], usage["quota_left"]) == (5, 999_995)
    assert 100 <= usage["oldest_due_age"] < 200
    nobodys = (await stranger.get("/v1/usage")).json()
    assert (nobodys["due_backlog"], nobodys["quota_used"], nobodys["quota_left"]) == (1, None, None)
    assert_problem(await api.get("/v1/usage", params={"account": "x"}), 422)


async def test_what_is_due_and_not_promoted_yet_is_backlog(database: Database, client: httpx.AsyncClient) -> None:
    """It waits for a slot like the rest, and it may be the oldest."""
    api = await limited(database, client)
    await api.create(delay="1h")
    await database.execute("update duly.scheduled set run_at = now() - interval '10 s'")
    usage = (await api.get("/v1/usage")).json()
    assert (usage["due_backlog"], usage["stored"]) == (1, 1)
    assert 10 <= usage["oldest_due_age"] < 60


@pytest.mark.parametrize("members", [{"id": "x"}, {"url": "ftp://x"}, {"body": "x" * 300_000}, {"tags": [1]}])
async def test_a_refused_create_costs_nothing(
    members: dict[str, Any], database: Database, client: httpx.AsyncClient
) -> None:
    """What was not created is not taken off."""
    api = await limited(database, client, monthly_quota=1, stored=1)
    for _ in range(3):
        answer = await api.post("/v1/jobs", {"url": TARGET, **members})
        assert_problem(answer, answer.status_code)
        assert answer.status_code in (413, 422)
    held = str(uuid7())
    await api.create(unique_key="k", id=held)
    for _ in range(2):
        assert_problem(await api.post("/v1/jobs", {"url": TARGET, "id": held, "priority": 1}), 409)
