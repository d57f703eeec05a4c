"""Reading jobs and attempts, paging, and cancel, run, redrive."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx

from api.harness import TARGET, Api, Worker, assert_problem, new_api
from duly.api.documents import AttemptListDocument, JobDocument, JobListDocument
from duly.model import Report, uuid7
from duly.queue import Database


async def test_a_life_of_failures(api: Api, worker: Worker) -> None:
    """State, counters, plan and ledger follow the job to the dead letters and back."""
    job = await api.create(retry={"max_attempts": 3, "backoff": {"jitter": 0}})
    assert job["retry_plan"] == [10, 40]
    detail: dict[str, Any] = {
        "phases": {"dns": 1.5, "total": 20},
        "response_headers": [["content-type", "text/html"]],
        "retry_after_s": 7.0,
        "resent": True,
        "remote_address": "10.1.2.3",
    }
    excerpt = b"caf\xe9 \x00"
    await worker.fail(
        Report("http_error", "the target answered 503", 503, timedelta(milliseconds=21), excerpt, True, detail)
    )
    job = await api.job(job["id"])
    JobDocument.model_validate(job)
    assert (job["state"], job["attempts"], job["max_attempts"], job["retry_plan"]) == ("scheduled", 1, 3, [40])
    assert (job["last_outcome"], job["last_status_code"]) == ("http_error", 503)
    assert job["last_error"] == "the target answered 503"
    assert job["lag_ms"] >= 0
    assert job["next_run_at"] > job["run_at"]
    answer = await api.get(f"/v1/jobs/{job['id']}/attempts")
    AttemptListDocument.model_validate(answer.json())
    [attempt] = answer.json()["data"]
    assert (
        attempt
        | {
            "number": 1,
            "trigger": "schedule",
            "duration_ms": 21.0,
            "phases": detail["phases"],
            "outcome": "http_error",
            "status_code": 503,
            "response_headers": [["content-type", "text/html"]],
            "response_excerpt": "caf\ufffd \x00",
            "response_truncated": True,
            "retry_after_s": 7.0,
            "resent": True,
            "next_run_at": job["next_run_at"],
        }
        == attempt
    )
    assert "10.1.2.3" not in answer.text
    assert "worker" not in answer.text
    assert (await api.get(f"/v1/jobs/{job['id']}/attempts/1")).json() == attempt

    assert (await api.post(f"/v1/jobs/{job['id']}/run")).status_code == 202
    running = await worker.claim()
    shown = await api.job(job["id"])
    assert (shown["state"], shown["attempts"], shown["retry_plan"], shown["next_run_at"]) == ("running", 2, [40], None)
    assert shown["lag_ms"] is None
    assert running.attempt == 2


async def test_dead_and_redriven(api: Api, worker: Worker) -> None:
    """A dead job gives its reason; a redrive makes it ready with a fresh plan and numbers going on."""
    job = await api.create(retry={"max_attempts": 2})
    await worker.bury()
    dead = await api.job(job["id"])
    assert (dead["state"], dead["reason"], dead["retry_plan"]) == ("dead", "permanent", [])
    assert dead["finished_at"]
    assert_problem(await api.post(f"/v1/jobs/{job['id']}/cancel"), 409)
    assert_problem(await api.post(f"/v1/jobs/{job['id']}/run"), 409)
    answer = await api.post(f"/v1/jobs/{job['id']}/redrive")
    assert answer.status_code == 202
    again = answer.json()
    assert (again["state"], again["attempts"], again["retry_plan"], again["reason"]) == ("ready", 1, [10], None)
    assert_problem(await api.post(f"/v1/jobs/{job['id']}/redrive"), 409)
    await worker.succeed()
    done = await api.job(job["id"])
    assert (done["state"], done["attempts"], done["last_status_code"]) == ("succeeded", 2, 200)
    attempts = (await api.get(f"/v1/jobs/{job['id']}/attempts")).json()["data"]
    assert [(attempt["number"], attempt["trigger"]) for attempt in attempts] == [(1, "schedule"), (2, "redrive")]
    for call in ("cancel", "run", "redrive"):
        problem = assert_problem(await api.post(f"/v1/jobs/{job['id']}/{call}"), 409)
        assert "succeeded" in problem["detail"]


async def test_cancel(api: Api, worker: Worker) -> None:
    """Waiting: cancelled, and again the same. Running: requested."""
    job = await api.create(delay="1h")
    for _ in range(2):
        answer = await api.post(f"/v1/jobs/{job['id']}/cancel")
        assert answer.status_code == 200
        assert answer.json()["state"] == "cancelled"
    running = await api.create()
    await worker.claim()
    for path in ("cancel", "cancel?abort=true"):
        answer = await api.post(f"/v1/jobs/{running['id']}/{path}")
        assert answer.status_code == 202
        assert answer.json()["state"] == "running"
        assert answer.json()["cancel_requested"]
    assert_problem(await api.post(f"/v1/jobs/{running['id']}/cancel?abort=1"), 422)
    assert_problem(await api.post(f"/v1/jobs/{running['id']}/cancel?force=true"), 422)


async def test_run_now(api: Api) -> None:
    """A job for later is ready at once; a ready one is not scheduled."""
    job = await api.create(delay="1h")
    answer = await api.post(f"/v1/jobs/{job['id']}/run")
    assert answer.status_code == 202
    assert answer.json()["state"] == "ready"
    assert_problem(await api.post(f"/v1/jobs/{job['id']}/run"), 409)


async def test_the_list_pages_through_everything(api: Api) -> None:
    """Newest first, each once, in pages; the last page has no cursor."""
    ids = [(await api.create(tags=["even"] if n % 2 == 0 else [], queue="a" if n < 3 else "b"))["id"] for n in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await api.get("/v1/jobs", params=params)).json()
        JobListDocument.model_validate(page)
        seen += [job["id"] for job in page["data"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert seen == sorted(ids, reverse=True)
    for params, count in (
        ({"limit": "7"}, 7),
        ({"tag": "even"}, 4),
        ({"queue": "a"}, 3),
        ({"state": "ready"}, 7),
        ({"state": "dead"}, 0),
        ({"queue": "b", "tag": "even"}, 2),
    ):
        page = (await api.get("/v1/jobs", params=params)).json()
        assert (len(page["data"]), page["next_cursor"]) == (count, None)


BAD_QUERIES = [
    ("limit=0", "limit"),
    ("limit=201", "limit"),
    ("limit=x", "limit"),
    ("limit=%D9%A3", "limit"),
    ("limit=", "limit"),
    ("cursor=x", "cursor"),
    ("cursor=", "cursor"),
    ("cursor=AAAAAAAAAAAAAAAAAAAAAAAA", "cursor"),
    ("cursor=%E2%98%83", "cursor"),
    ("state=READY", "state"),
    ("state=", "state"),
    ("state=ready&state=dead", "state"),
    ("tag=%00", "tag"),
    ("queue=%00", "queue"),
    ("stat=ready", "stat"),
    ("hots=example.com", "hots"),
    ("host=%00", "host"),
]


async def test_bad_queries(api: Api) -> None:
    """A filter that is not understood is refused: ignoring it would show everything."""
    for query, parameter in BAD_QUERIES:
        problem = assert_problem(await api.get(f"/v1/jobs?{query}"), 422)
        assert {error["parameter"] for error in problem["errors"]} == {parameter}, query


async def test_bodies_need_their_own_scope(database: Database, client: httpx.AsyncClient, api: Api) -> None:
    """The body is shown only on request, only to read_payloads, as text or base64."""
    owner = await new_api(database, client, "reader", ["read", "write", "read_payloads"])
    text = await owner.create(json={"a": 1.50})
    data = await owner.create(body_base64="//4=")
    none = await owner.create()
    assert "request_body" not in await owner.job(text["id"])
    path = "/v1/jobs/{}?include=request_body"
    shown = (await owner.get(path.format(text["id"]))).json()
    JobDocument.model_validate(shown)
    assert shown["request_body"] == '{"a": 1.5}'
    assert (await owner.get(path.format(data["id"]))).json()["request_body_base64"] == "//4="
    assert (await owner.get(path.format(none["id"]))).json()["request_body"] is None
    mine = await api.create(body="x")
    assert_problem(await api.get(path.format(mine["id"])), 403)
    assert_problem(await owner.get(f"/v1/jobs/{text['id']}?include=everything"), 422)


async def test_ids_that_name_nothing(api: Api) -> None:
    """No UUID or nobody's: 404 everywhere, the same answer."""
    bare = str(uuid7()).replace("-", "")
    for job_id in ("x", "%00", "0", "null", "..%2f", "{}", "a" * 3000, str(uuid7()), bare):
        for path in ("", "/attempts", "/attempts/1"):
            assert_problem(await api.get(f"/v1/jobs/{job_id}{path}"), 404)
        for call in ("cancel", "run", "redrive"):
            assert_problem(await api.post(f"/v1/jobs/{job_id}/{call}"), 404)


async def test_attempts_that_are_not(api: Api) -> None:
    """A job without attempts has an empty ledger; odd numbers are 404."""
    job = await api.create()
    assert (await api.get(f"/v1/jobs/{job['id']}/attempts")).json() == {"data": []}
    for number in ("1", "0", "-1", "x", "9" * 30, "1.0"):
        assert_problem(await api.get(f"/v1/jobs/{job['id']}/attempts/{number}"), 404)


async def test_routes_and_methods(api: Api) -> None:
    """Unknown paths are 404 and wrong methods 405, as problems."""
    for path in ("/", "/v1", "/v1/job", "/v1/jobs/", "/docs/", "/redoc", "/v2/jobs"):
        assert_problem(await api.get(path), 404)
    answer = await api.client.request("DELETE", "/v1/jobs")
    assert_problem(answer, 405)
    for method, path in (("PUT", "/v1/jobs"), ("OPTIONS", "/v1/jobs")):
        assert (await api.client.request(method, path)).headers["allow"] == "GET, POST"
    assert set(answer.headers["allow"].replace(" ", "").split(",")) & {"GET", "POST"}


async def test_secret_headers_are_masked(api: Api) -> None:
    """Whatever carries a credential by name is hidden on read, in the list too."""
    secret = "s3cr3t"
    names = ["Authorization", "cookie", "X-Api-Key", "x_api_key", "X-Custom-Token", "X-GitLab-Token", "My-Secret"]
    await api.create(url=f"{TARGET}?a=b", headers=dict.fromkeys(names, secret) | {"X-Plain": "seen"})
    answer = await api.get("/v1/jobs")
    assert secret not in answer.text
    assert ["X-Plain", "seen"] in answer.json()["data"][0]["headers"]
