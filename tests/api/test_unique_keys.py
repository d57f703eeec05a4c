"""unique_key, unique_for, on_conflict: what clients see."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

from api.harness import TARGET, Api, Worker, assert_problem
from duly.api.documents import JobDocument
from duly.model import NewJob, Unique
from duly.queue import Database, enqueue
from support.sessions import holding


async def test_a_job_shows_its_key(api: Api) -> None:
    """As given; the default scope is until_final; without a key both are null."""
    for given, shown in ((None, "until_final"), ("until_start", "until_start"), ("1h30m", 5400.0), (90, 90.0)):
        job = await api.create(unique_key=f"order {given}", unique_for=given)
        assert (job["unique_key"], job["unique_for"]) == (f"order {given}", shown)
        JobDocument.model_validate(job)
        assert (await api.job(job["id"]))["unique_for"] == shown
    plain = await api.create()
    assert (plain["unique_key"], plain["unique_for"]) == (None, None)


async def test_error_names_the_holder(api: Api, worker: Worker) -> None:
    """409 with the job that has the key, and nothing stored; free again when that one has ended."""
    first = await api.create(unique_key="k")
    problem = assert_problem(await api.post("/v1/jobs", {"url": TARGET, "unique_key": "k"}), 409)
    assert (problem["type"], problem["job_id"]) == ("urn:duly:problem:unique-key-taken", first["id"])
    assert [job["id"] for job in (await api.get("/v1/jobs")).json()["data"]] == [first["id"]]
    await worker.succeed()
    assert (await api.create(unique_key="k"))["id"] != first["id"]


async def test_keep_shows_the_holder(api: Api) -> None:
    """200 with the job that is there already, and its place."""
    first = await api.create(unique_key="k", delay="1h")
    answer = await api.post("/v1/jobs", {"url": TARGET, "unique_key": "k", "on_conflict": "keep"})
    assert (answer.status_code, answer.headers["location"]) == (200, f"/v1/jobs/{first['id']}")
    assert answer.json() == first
    assert "idempotency-replayed" not in answer.headers


async def test_replace_cancels_what_waits(api: Api, worker: Worker) -> None:
    """201 with the new job; the old one says why. What runs already stays: 409."""
    first = await api.create(unique_key="k", delay="1h")
    second = await api.create(unique_key="k", on_conflict="replace")
    old = await api.job(first["id"])
    assert (old["state"], old["reason"]) == ("cancelled", "replaced")
    await worker.claim()
    answer = await api.post("/v1/jobs", {"url": TARGET, "unique_key": "k", "on_conflict": "replace"})
    assert assert_problem(answer, 409)["job_id"] == second["id"]


async def test_a_repeated_id_is_no_conflict(api: Api, worker: Worker) -> None:
    """The same request again: the same 201, also after the job has ended and another has its key."""
    members = {"url": TARGET, "unique_key": "k"}
    first = (await api.post("/v1/jobs", members)).json()
    for _ in range(2):
        answer = await api.post("/v1/jobs", {**members, "id": first["id"]})
        assert (answer.status_code, answer.headers["idempotency-replayed"]) == (201, "true")
    await worker.succeed()
    await api.create(unique_key="k")
    assert (await api.post("/v1/jobs", {**members, "id": first["id"]})).status_code == 201
    other_key = {"url": TARGET, "unique_key": "l", "id": first["id"]}
    assert assert_problem(await api.post("/v1/jobs", other_key), 409)["type"].endswith("id-conflict")


async def test_fifty_at_once(api: Api, database: Database) -> None:
    """One is made; the others are told which."""
    for on_conflict, status in (("error", 409), ("keep", 200)):
        members = {"url": TARGET, "unique_key": on_conflict, "on_conflict": on_conflict}
        answers = await asyncio.gather(*(api.post("/v1/jobs", members) for _ in range(50)))
        assert Counter(answer.status_code for answer in answers) == {201: 1, status: 49}
        [made] = [answer.json()["id"] for answer in answers if answer.status_code == 201]
        others = [answer.json() for answer in answers if answer.status_code == status]
        assert {other.get("job_id") or other["id"] for other in others} == {made}
    assert await database.fetchval("select count(*) from duly.job") == 2


async def test_redrive_of_a_job_whose_key_is_taken(api: Api, worker: Worker) -> None:
    """409, and the job stays dead; once the other has ended, 202."""
    dead = await api.create(unique_key="k")
    await worker.bury()
    other = await api.create(unique_key="k")
    problem = assert_problem(await api.post(f"/v1/jobs/{dead['id']}/redrive"), 409)
    assert problem["type"] == "urn:duly:problem:unique-key-taken"
    assert (await api.job(dead["id"]))["state"] == "dead"
    await api.post(f"/v1/jobs/{other['id']}/cancel")
    assert (await api.post(f"/v1/jobs/{dead['id']}/redrive")).status_code == 202


async def test_an_open_transaction_holds_up_its_rival_only(api: Api, database: Database, database_url: str) -> None:
    """Somebody's library call holds a key and has not committed: those who want it are told to come again, in a second
    or so, and everybody else is served.
    """
    await api.create()  # the lane is there
    job = NewJob("http", {}, unique=Unique("k"))
    async with holding(database_url) as (session, transaction):
        await enqueue(session, [(api.project.owner, job)])
        rivals = [asyncio.create_task(api.post("/v1/jobs", {"url": TARGET, "unique_key": "k"})) for _ in range(3)]
        others = await asyncio.gather(*(api.post("/v1/jobs", {"url": TARGET}) for _ in range(20)))
        assert {answer.status_code for answer in others} == {201}
        for answer in await asyncio.gather(*rivals):
            assert_problem(answer, 503)
            assert answer.headers["retry-after"]
        await transaction.commit()
    assert_problem(await api.post("/v1/jobs", {"url": TARGET, "unique_key": "k"}), 409)


async def test_keep_of_a_job_that_was_pruned(api: Api, worker: Worker, database: Database) -> None:
    """Its key is held for its time, longer than the job is kept: 409, as there is nothing to show."""
    first = await api.create(unique_key="k", unique_for="90d")
    await worker.succeed()
    for table, column in (("outcome", "job_id"), ("attempt", "job_id"), ("job", "id")):
        await database.execute(f"delete from duly.{table} where {column} = $1", UUID(first["id"]))
    answer = await api.post("/v1/jobs", {"url": TARGET, "unique_key": "k", "on_conflict": "keep"})
    assert assert_problem(answer, 409)["job_id"] == first["id"]
