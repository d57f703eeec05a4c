"""on_success, on_dead: what clients see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.harness import TARGET, Api, Worker, assert_problem, pointers
from duly.api.documents import JobDocument, JobListDocument
from duly.http import HOPS_HEADER


async def test_a_job_shows_its_callbacks(api: Api) -> None:
    """As URLs, stored canonical like any other; null without."""
    job = await api.create(on_success="HTTP://127.0.0.1:9999/a/../told", delay="1h")
    assert (job["on_success"], job["on_dead"], job["callback_of"]) == ("http://127.0.0.1:9999/a/../told", None, None)
    JobDocument.model_validate(job)
    assert await api.job(job["id"]) == job
    plain = await api.create()
    assert (plain["on_success"], plain["on_dead"]) == (None, None)


async def test_the_outcome_is_a_job_in_the_list(api: Api, worker: Worker) -> None:
    """Names the job that it tells of; its body, with the scope for it, is the outcome."""
    job = await api.create(on_success=TARGET, on_dead=f"{TARGET}/dead", tags=["t"], metadata={"order": 7})
    await worker.bury()
    page = (await api.get("/v1/jobs")).json()
    JobListDocument.model_validate(page)
    told, ended = page["data"]
    assert (ended["id"], ended["state"], ended["callback_of"]) == (job["id"], "dead", None)
    assert (told["callback_of"], told["url"], told["method"]) == (job["id"], f"{TARGET}/dead", "POST")
    assert (told["state"], told["kind"], told["max_attempts"]) == ("ready", "http", 8)
    assert ["Content-Type", "application/json"] in told["headers"]
    assert (told["on_success"], told["on_dead"]) == (None, None)
    await worker.succeed()
    assert (await api.job(told["id"]))["state"] == "succeeded"
    assert len((await api.get("/v1/jobs")).json()["data"]) == 2


async def test_the_body_agrees_with_the_document(api: Api, worker: Worker) -> None:
    """Word for word what a client would read of the job at that moment."""
    job = await api.create(on_success=TARGET, tags=["t"], metadata={"order": 7})
    await worker.succeed()
    told = await worker.claim()
    body: dict[str, Any] = json.loads(told.body or b"")
    assert body.pop("result") is None
    document = await api.job(job["id"])
    assert body == {name: document[name] for name in body}
    assert set(body) >= {"id", "state", "reason", "attempts", "last_status_code", "last_error", "finished_at", "url"}


async def test_a_callback_goes_round_a_few_times_only(api: Api, worker: Worker) -> None:
    """What set the job off counts for its callback too: the hops that came in go on."""
    answer = await api.post("/v1/jobs", {"url": TARGET, "on_success": TARGET}, headers={HOPS_HEADER: "7"})
    assert answer.status_code == 201
    await worker.succeed()
    assert json.loads((await worker.claim()).payload_json)["hops"] == 7


@pytest.mark.parametrize("name", ["on_success", "on_dead"])
async def test_the_egress_policy_holds_for_callbacks_too(api: Api, name: str) -> None:
    """The same words as for the url, at the callback's own place; nothing is stored."""
    for url in (
        "http://10.0.0.1/",
        "https://metadata.goog/",
        "http://example.com:25/",
        "http://user@example.com/",
        "x",
    ):
        at_url = assert_problem(await api.post("/v1/jobs", {"url": url}), 422)
        problem = assert_problem(await api.post("/v1/jobs", {"url": TARGET, name: url}), 422)
        assert pointers(problem) == {f"/{name}"}
        assert [error["detail"] for error in problem["errors"]] == [error["detail"] for error in at_url["errors"]]
    assert (await api.get("/v1/jobs")).json()["data"] == []


async def test_all_that_is_wrong_is_named_at_once(api: Api) -> None:
    """The three URLs and a field beside them."""
    bad = {"url": "ftp://a", "on_success": "ftp://b", "on_dead": "ftp://c", "priority": 77}
    problem = assert_problem(await api.post("/v1/jobs", bad), 422)
    assert pointers(problem) == {"/url", "/on_success", "/on_dead", "/priority"}


async def test_a_repeat_with_another_callback_is_another_job(api: Api) -> None:
    """409; the same one again is a repeat."""
    job = await api.create(on_success=TARGET)
    same = await api.post("/v1/jobs", {"url": TARGET, "id": job["id"], "on_success": TARGET})
    assert (same.status_code, same.headers["idempotency-replayed"]) == (201, "true")
    other = {"url": TARGET, "id": job["id"], "on_success": f"{TARGET}/x"}
    assert assert_problem(await api.post("/v1/jobs", other), 409)["type"].endswith("id-conflict")
