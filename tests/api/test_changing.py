"""PATCH /v1/jobs/{id} and POST …/replay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from api.harness import Api, Worker, assert_problem, new_api, pointers
from api.test_idempotency import served
from duly.api.documents import JobDocument
from duly.model import Report, uuid7
from duly.queue import Database, conservation, get_job, promote
from duly.service import Keyring, create_key
from duly.service.keyring import new_key
from duly.service.sealing import opened_view
from support.dumping import everything, found_in

CANARY = "canary-7c21e0"


async def tag_of(api: Api, job_id: str) -> str:
    etag: str = (await api.get(f"/v1/jobs/{job_id}")).headers["etag"]
    return etag


async def patch(api: Api, job_id: str, content: Any, if_match: str | None = "now") -> httpx.Response:
    headers = {"authorization": f"Bearer {api.key}"}
    if if_match is not None:
        headers["if-match"] = await tag_of(api, job_id) if if_match == "now" else if_match
    return await api.client.patch(f"/v1/jobs/{job_id}", json=content, headers=headers)


async def test_each_part_can_be_changed(api: Api, database: Database, worker: Worker) -> None:
    """Everything that is given is different afterwards, everything else as it was; the job runs as it was changed."""
    job = await api.create(delay=3600, json={"a": 1}, tags=["a", "b"], headers={"X-A": "1"}, metadata={"m": 1})
    run_at = (datetime.now(UTC) + timedelta(minutes=5)).replace(microsecond=0)
    answer = await patch(
        api,
        job["id"],
        {
            "run_at": run_at.isoformat(),
            "body": "other",
            "headers": [["X-B", "2"]],
            "retry": {"max_attempts": 3, "max_age": "2h"},
            "priority": 1,
            "tags": ["b", "c"],
        },
    )
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    JobDocument.model_validate(changed)
    assert changed == job | {
        "run_at": changed["run_at"],
        "next_run_at": changed["run_at"],
        "headers": [["X-B", "2"]],
        "retry": job["retry"] | {"max_attempts": 3, "max_age": 7200},
        "max_attempts": 3,
        "retry_plan": [10, 40],
        "priority": 1,
        "tags": ["b", "c"],
    }
    assert datetime.fromisoformat(changed["run_at"]) == run_at
    assert await api.job(job["id"]) == changed
    assert answer.headers["etag"] == await tag_of(api, job["id"])
    for tag, found in {"a": 0, "b": 1, "c": 1}.items():
        assert len((await api.get(f"/v1/jobs?tag={tag}")).json()["data"]) == found
    assert (await patch(api, job["id"], {"run_at": "2001-01-01T00:00:00Z"})).status_code == 200
    await promote(database, 10)
    claimed = await worker.claim()
    assert (claimed.body, claimed.final_attempt, claimed.priority, claimed.max_attempts) == (b"other", 3, 1, 3)
    assert (await conservation(database)).holds


async def test_one_part_alone_leaves_the_others(api: Api, database: Database) -> None:
    """One field at a time: nothing else moves, the body stays to the byte."""
    job = await api.create(delay=3600, json={"n": 1}, headers={"Authorization": "Bearer s3cr3t"}, tags=["a"])
    changes: list[Any] = [{"priority": 9}, {"tags": []}, {"retry": {"max_attempts": 2}}, {"headers": {"X-C": "3"}}]
    for change in changes:
        assert (await patch(api, job["id"], change)).status_code == 200
        stored = await get_job(database, api.project.owner, UUID(job["id"]), include_body=True)
        assert stored is not None
        assert stored.body == b'{"n": 1}'
    final = await api.job(job["id"])
    assert (final["priority"], final["tags"], final["max_attempts"], final["headers"]) == (9, [], 2, [["X-C", "3"]])
    assert final["run_at"] == job["run_at"]


async def test_the_precondition(api: Api) -> None:
    """Without If-Match 428, with an old tag 412, with the right one 200 once: of two changes on one read one is lost
    knowingly. Any change of the job changes its tag, one of its body too.
    """
    job = await api.create(delay=3600, body="1")
    assert_problem(await patch(api, job["id"], {"priority": 1}, None), 428)
    assert_problem(await patch(api, job["id"], {"priority": 1}, '"old"'), 412)
    seen = await tag_of(api, job["id"])
    answers = await asyncio.gather(*(patch(api, job["id"], {"priority": n}, seen) for n in range(1, 5)))
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    before = await tag_of(api, job["id"])
    assert (await patch(api, job["id"], {"body": "2"})).status_code == 200
    assert await tag_of(api, job["id"]) != before
    assert_problem(await patch(api, job["id"], {"priority": 1}, before), 412)


async def test_what_does_not_wait_is_not_changed(api: Api, worker: Worker) -> None:
    """409 while ready, running and once it has ended; a retry that waits can be changed, its past stays."""
    job = await api.create()
    assert_problem(await patch(api, job["id"], {"priority": 1}), 409)
    await worker.fail(Report("http_error", "no", 503))
    waiting = await api.job(job["id"])
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    changed = (await patch(api, job["id"], {"run_at": soon, "retry": {"max_attempts": 1}})).json()
    assert (changed["attempts"], changed["run_at"]) == (1, waiting["run_at"])
    assert changed["next_run_at"] < waiting["next_run_at"]
    await api.post(f"/v1/jobs/{job['id']}/cancel")
    assert_problem(await patch(api, job["id"], {"priority": 1}), 409)


async def test_faults_are_named_at_once(api: Api, database: Database) -> None:
    """Every bad field, and nothing changes."""
    job = await api.create(delay=3600, expires_at=(datetime.now(UTC) + timedelta(hours=2)).isoformat())
    bad = {"run_at": "soon", "priority": 10, "url": "http://x", "tags": [""], "retry": {"max_attempts": 0}}
    assert pointers(assert_problem(await patch(api, job["id"], bad), 422)) == {
        "/run_at",
        "/priority",
        "/url",
        "/tags/0",
        "/retry/max_attempts",
    }
    fixed = {"url": "http://x", "id": job["id"], "delay": 1, "colour": 1}
    told = assert_problem(await patch(api, job["id"], fixed), 422)["errors"]
    assert {error["pointer"]: error["detail"].partition(":")[0] for error in told} == {
        **dict.fromkeys(("/url", "/id", "/delay"), "stays as it is"),
        "/colour": "is not a member that a job has",
    }
    rules = {"run_at": "2999-01-01T00:00:00Z", "body": "x", "json": 1, "headers": {"Host": "x", "X-Token": "***"}}
    assert pointers(assert_problem(await patch(api, job["id"], rules), 422)) >= {"/run_at", "/body"}
    assert_problem(await patch(api, job["id"], {}), 422)
    late = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    assert_problem(await patch(api, job["id"], {"run_at": late}), 409)
    assert await api.job(job["id"]) == job
    assert_problem(await patch(api, str(uuid7()), {"priority": 1}, "*"), 404)


async def test_a_masked_secret_is_kept_and_goes_nowhere_else(database: Database) -> None:
    """What a client reads it can send back: *** keeps the value, in order of the name; a mask for nothing is refused;
    the URL cannot be changed with it. Sealed at rest before and after.
    """
    ring = Keyring.parse(new_key())
    async with served(database, ring) as api:
        job = await api.create(
            delay=3600,
            headers=[["Authorization", f"Bearer {CANARY}"], ["X-Token", f"{CANARY}-1"], ["x-token", f"{CANARY}-2"]],
            body=f"{CANARY} body",
        )
        shown = (await api.job(job["id"]))["headers"]
        assert [value for _, value in shown] == ["***"] * 3
        assert (await patch(api, job["id"], {"headers": [*shown, ["X-New", "plain"]]})).status_code == 200
        assert (await patch(api, job["id"], {"body": f"{CANARY} again"})).status_code == 200
        stored = await get_job(database, api.project.owner, UUID(job["id"]), include_body=True)
        assert stored is not None
        opened = opened_view(ring, stored)
        assert [value for _, value in opened.payload["headers"]] == [
            f"Bearer {CANARY}",
            f"{CANARY}-1",
            f"{CANARY}-2",
            "plain",
        ]
        assert opened.body == f"{CANARY} again".encode()
        assert found_in(await everything(database), CANARY) == set()
        assert_problem(await patch(api, job["id"], {"headers": {"Cookie": "***"}}), 422)
        assert_problem(await patch(api, job["id"], {"headers": shown, "url": "http://127.0.0.1:1/"}), 422)


async def test_a_foreign_job_is_not_there(api: Api, client: httpx.AsyncClient, database: Database) -> None:
    """404 for everybody else, whatever they send."""
    job = await api.create(delay=3600)
    stranger = await new_api(database, client, "stranger")
    assert_problem(await patch(stranger, job["id"], {"priority": 1}, await tag_of(api, job["id"])), 404)
    assert_problem(await stranger.post(f"/v1/jobs/{job['id']}/replay"), 404)


async def test_a_change_beside_a_promotion(api: Api, database: Database) -> None:
    """Changes of a job that falls due meanwhile: each is made whole or refused, and the job is in one place."""
    job = await api.create(delay=0.2)
    while True:
        answer = await patch(api, job["id"], {"priority": 3, "tags": ["t"]})
        await promote(database, 10)
        if answer.status_code == 409:
            break
        assert answer.status_code in (200, 412)
    assert (await conservation(database)).holds


async def test_a_replay_is_a_new_job(api: Api, database: Database, worker: Worker) -> None:
    """A copy under a new id, with replay_of; due now, with its own budget and ledger; of a job that goes on: 409."""
    job = await api.create(
        json={"a": 1.50}, headers={"Authorization": "Bearer x"}, tags=["t"], metadata=[1], queue="mail", priority=2
    )
    assert_problem(await api.post(f"/v1/jobs/{job['id']}/replay"), 409)
    await worker.bury()
    answer = await api.post(f"/v1/jobs/{job['id']}/replay")
    assert answer.status_code == 201
    copy = answer.json()
    assert copy["id"] != job["id"]
    assert answer.headers["location"] == f"/v1/jobs/{copy['id']}"
    assert copy["replay_of"] == job["id"]
    moving = ("id", "replay_of", "run_at", "next_run_at", "created_at")
    assert {name: copy[name] for name in copy if name not in moving} == {
        name: job[name] for name in job if name not in moving
    }
    assert await api.job(copy["id"]) == copy
    stored = await get_job(database, api.project.owner, UUID(copy["id"]), include_body=True)
    assert stored is not None
    assert stored.body == b'{"a": 1.5}'
    await worker.succeed()
    assert (await api.post(f"/v1/jobs/{copy['id']}/replay")).status_code == 201


async def test_a_replay_takes_the_secrets_along(database: Database) -> None:
    """Sealed for the new job, delivered in the clear, hidden on read, without the scope to see payloads."""
    ring = Keyring.parse(new_key())
    async with served(database, ring) as api:
        job = await api.create(headers={"X-Token": CANARY}, body=CANARY, redact={"body": True})
        await api.post(f"/v1/jobs/{job['id']}/cancel")
        copy = (await api.post(f"/v1/jobs/{job['id']}/replay")).json()
        assert copy["headers"] == [["X-Token", "***"]]
        stored = await get_job(database, api.project.owner, UUID(copy["id"]), include_body=True)
        assert stored is not None
        assert opened_view(ring, stored).body == CANARY.encode()
        assert found_in(await everything(database), CANARY) == set()
        key = await create_key(database, api.project.owner.project_id, "r", scopes=["read", "read_payloads"])
        reader = type(api)(api.client, api.project, key.key)
        assert (await reader.get(f"/v1/jobs/{copy['id']}?include=request_body")).json()["request_body"] == "***"


@pytest.mark.parametrize("taken", [True, False])
async def test_a_replay_takes_the_unique_key(api: Api, worker: Worker, taken: bool) -> None:
    """If nobody else holds it."""
    job = await api.create(unique_key="k")
    await worker.bury()
    if taken:
        await api.create(unique_key="k", delay=3600)
    answer = await api.post(f"/v1/jobs/{job['id']}/replay")
    assert answer.status_code == (409 if taken else 201)
