"""The header Idempotency-Key: sent again, answered again, done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.queue import Database, IdempotencyKey, conservation, forget_idempotency, take_idempotency_key
from duly.service import NO_KEYRING, Keyring
from duly.service.keyring import new_key
from duly.upkeep import Upkeep
from duly.worker import Wakeups
from support.dumping import everything, found_in
from support.proxy import proxied

KEY = {"idempotency-key": "order 17"}
POLICY = EgressPolicy.parse(allow_loopback=True)


@asynccontextmanager
async def served(database: Database, keyring: Keyring | None = None, api: Api | None = None) -> AsyncIterator[Api]:
    """Another API process of the same project."""
    app = create_app(database, POLICY, ApiSettings(), keyring=keyring or NO_KEYRING)
    server = ApiServer(app)
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield await new_api(database, client, "served") if api is None else Api(client, api.project, api.key)
    await server.stop()


async def jobs_of(database: Database) -> int:
    count: int = await database.fetchval("select count(*) from duly.job")
    return count


async def test_a_replay_is_the_same_answer(api: Api, database: Database, worker: Worker) -> None:
    """The same 201 to the byte, marked, with its Location, whatever became of the job; another body, path or query is
    422; another key or none makes another job.
    """
    first = await api.post("/v1/jobs", {"url": TARGET, "delay": 0}, headers=KEY)
    assert first.status_code == 201
    assert "idempotency-replayed" not in first.headers
    await worker.succeed()
    again = await api.post("/v1/jobs", {"url": TARGET, "delay": 0}, headers=KEY)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    problem = assert_problem(await api.post("/v1/jobs", {"url": TARGET, "delay": 1}, headers=KEY), 422)
    assert problem["errors"][0]["parameter"] == "Idempotency-Key"
    await api.post("/v1/jobs", {"url": TARGET, "delay": 0}, headers={"idempotency-key": "other"})
    await api.create(delay=0)
    assert await jobs_of(database) == 3


async def test_a_replay_needs_not_be_valid_any_more(api: Api, database: Database) -> None:
    """What was right when it was sent first is answered, although it would be refused today."""
    soon = (datetime.now(UTC) + timedelta(milliseconds=700)).isoformat()
    body = {"url": TARGET, "expires_at": soon}
    first = await api.post("/v1/jobs", body, headers=KEY)
    assert first.status_code == 201
    while (await api.post("/v1/jobs", body)).status_code != 422:
        await asyncio.sleep(0.1)
    again = await api.post("/v1/jobs", body, headers=KEY)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])


async def test_fifty_at_once_make_one_job(api: Api, database: Database) -> None:
    """FO-031: fifty parallel requests with one key, through two processes: one job; everybody else gets its answer, or
    409 with Retry-After while it is being made. Then the key with another body is refused.
    """
    async with served(database, api=api) as second:
        for n in range(5):
            key = {"idempotency-key": f"k{n}"}
            answers = await asyncio.gather(
                *((api, second)[m % 2].post("/v1/jobs", {"url": TARGET}, headers=key) for m in range(50))
            )
            made = [answer for answer in answers if answer.status_code == 201]
            assert len({answer.json()["id"] for answer in made}) == 1
            assert sum("idempotency-replayed" not in answer.headers for answer in made) == 1
            for answer in answers:
                if answer.status_code != 201:
                    assert_problem(answer, 409)
                    assert answer.headers["retry-after"] == "1"
            assert await jobs_of(database) == n + 1
            assert_problem(await api.post("/v1/jobs", {"url": TARGET, "priority": 1}, headers=key), 422)


async def test_in_progress_elsewhere_is_said_at_once(api: Api, database: Database) -> None:
    """A rival that holds the key is not waited for; if it rolls back, the key is free."""
    async with database.session() as rival:
        transaction = rival.connection.transaction()
        await transaction.start()
        key = IdempotencyKey(api.project.owner.project_id, "POST /v1/jobs", "order 17", b"x" * 32)
        assert (await take_idempotency_key(rival, key)).result == "first"
        started = asyncio.get_running_loop().time()
        problem = assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers=KEY), 409)
        assert problem["type"].endswith("in-progress")
        assert asyncio.get_running_loop().time() - started < 5
        await transaction.rollback()
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers=KEY)).status_code == 201
    assert await jobs_of(database) == 1


async def test_what_was_refused_may_be_tried_again(api: Api, database: Database) -> None:
    """FO-031: only successes are kept: an input that is wrong, and a conflict, leave the key free."""
    assert_problem(await api.post("/v1/jobs", {"url": "nowhere"}, headers=KEY), 422)
    job = await api.create(unique_key="u", delay=3600)
    assert_problem(await api.post("/v1/jobs", {"url": TARGET, "unique_key": "u"}, headers=KEY), 409)
    assert (await api.post(f"/v1/jobs/{job['id']}/cancel")).status_code == 200
    assert (await api.post("/v1/jobs", {"url": TARGET, "unique_key": "u"}, headers=KEY)).status_code == 201
    assert await database.fetchval("select count(*) from duly.idempotency") == 1
    assert (await conservation(database)).holds


async def test_a_failure_in_the_middle_does_not_wedge_the_key(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-031: a 500 after the job was stored rolls it back together with its key; the next try makes one job."""

    async def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr("duly.api.idempotency.note_answer", fail)
        assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers=KEY), 500)
    assert await jobs_of(database) == 0
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers=KEY)).status_code == 201
    assert await jobs_of(database) == 1


async def test_a_reply_lost_after_the_commit_is_made_good(api: Api, database: Database, database_url: str) -> None:
    """A proxy between API and database lets everything through and drops what the server says: the client hears 503,
    and sends the request again until it gets an answer. One job, whether the commit came through or not.
    """
    async with proxied(database_url) as proxy:
        async with await Database.open(proxy.url, limit=timedelta(seconds=1)) as weak:
            async with served(weak, api=api) as other:
                assert (await other.post("/v1/jobs", {"url": TARGET}, headers={"idempotency-key": "0"})).is_success
                for n in range(1, 4):
                    key = {"idempotency-key": str(n)}
                    request = asyncio.create_task(other.post("/v1/jobs", {"url": TARGET}, headers=key))
                    await asyncio.sleep(0.003 * n)  # somewhere in it
                    proxy.mode = "swallow_replies"
                    await asyncio.wait({request}, timeout=0.3)
                    proxy.cut()
                    proxy.mode = "pass"
                    first = await request
                    assert first.status_code in (201, 503)
                    for _ in range(50):
                        again = await other.post("/v1/jobs", {"url": TARGET}, headers=key)
                        if again.status_code == 201:
                            break
                        assert again.status_code in (409, 503)
                        await asyncio.sleep(0.1)
                    assert again.status_code == 201
                    assert first.status_code == 503 or again.json()["id"] == first.json()["id"]
                    assert await jobs_of(database) == n + 1
    assert (await conservation(database)).holds


async def test_every_post_takes_a_key(api: Api, database: Database, worker: Worker) -> None:
    """A batch, run, redrive, replay, cancel, a bulk call: done once, answered twice, each endpoint by itself."""
    batch = {"jobs": [{"url": TARGET}] * 3}
    answers = [await api.post("/v1/jobs/batch", batch, headers=KEY) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert await jobs_of(database) == 3
    for _ in range(3):
        await worker.bury()
    dead = [job["id"] for job in (await api.get("/v1/jobs?state=dead")).json()["data"]]
    answers = [await api.post(f"/v1/jobs/{dead[0]}/redrive", headers=KEY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert_problem(await api.post(f"/v1/jobs/{dead[1]}/redrive", headers=KEY), 422)
    answers = [await api.post(f"/v1/jobs/{dead[1]}/replay", headers=KEY) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert await jobs_of(database) == 4
    later = await api.create(delay=3600)
    answers = [await api.post(f"/v1/jobs/{later['id']}/run", headers=KEY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    bulk = {"filter": {"state": "dead"}, "limit": 1}
    answers = [await api.post("/v1/jobs/bulk/redrive", bulk, headers=KEY) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert await database.fetchval("select count(*) from duly.operation") == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
async def test_keys_that_are_none(api: Api, key: str) -> None:
    """One to 255 printable characters."""
    assert_problem(await api.post("/v1/jobs", {"url": TARGET}, headers={"idempotency-key": key}), 422)
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers={"idempotency-key": "x" * 255})).status_code == 201


async def test_projects_do_not_share_keys(api: Api, client: httpx.AsyncClient, database: Database) -> None:
    """The same key of another project is another key."""
    stranger = await new_api(database, client, "stranger")
    ids = {(await who.post("/v1/jobs", {"url": TARGET}, headers=KEY)).json()["id"] for who in (api, stranger)}
    assert len(ids) == 2


async def test_answers_are_sealed(database: Database) -> None:
    """A header value that the answer repeats is not in a dump, and the replay shows it."""
    async with served(database, Keyring.parse(new_key())) as api:
        body = {"url": TARGET, "headers": {"X-Plain": "canary-93fe01"}}
        answers = [await api.post("/v1/jobs", body, headers=KEY) for _ in range(2)]
        assert answers[0].content == answers[1].content
        assert b"canary-93fe01" in answers[0].content
        assert found_in(await everything(database), "canary-93fe01") == set()


async def test_a_key_lasts_a_day(api: Api, database: Database) -> None:
    """After 24 hours it is a new key, swept or not; upkeep forgets old ones in batches and keeps the others."""
    first = await api.post("/v1/jobs", {"url": TARGET}, headers=KEY)
    await database.execute("update duly.idempotency set made_at = made_at - interval '25 hours'")
    second = await api.post("/v1/jobs", {"url": TARGET}, headers=KEY)
    assert first.json()["id"] != second.json()["id"]
    assert (await api.post("/v1/jobs", {"url": TARGET}, headers=KEY)).json()["id"] == second.json()["id"]
    await database.execute(
        """insert into duly.idempotency (project_id, endpoint, key, fingerprint, status, made_at)
           select 1, 'e', n::text, '', 201, now() - interval '30 hours' + n * interval '1 second'
           from generate_series(1, 1200) n"""
    )
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    place = await forget_idempotency(database, long_ago, 1100)
    assert place is not None
    upkeep = Upkeep(database, Wakeups(""))
    assert await upkeep.idempotency_step() > timedelta(seconds=1)
    assert await database.fetchval("select count(*) from duly.idempotency") == 1
    await database.execute(
        """insert into duly.idempotency (project_id, endpoint, key, fingerprint, status, made_at)
           select 1, 'e', n::text, '', 201, now() - interval '30 hours' + n * interval '1 second'
           from generate_series(1, 500) n"""
    )
    assert await upkeep.idempotency_step() < timedelta(seconds=1)
    assert await upkeep.idempotency_step() > timedelta(seconds=1)
