"""/v1/schedules over HTTP: what is taken and what is refused, what is shown, and what arrives on the jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import httpx
import pytest

from api.harness import TARGET, Api, assert_problem, new_api, pointers
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.model import uuid7
from duly.queue import Database, get_job, list_jobs
from duly.service import Keyring
from duly.service.firing import Firer
from duly.service.sealing import opened_view

KEYRING = Keyring([("test", bytes(32))])


class Schedules:
    """The calls, and a firer beside them."""

    def __init__(self, api: Api, database: Database) -> None:
        self.api = api
        self.db = database

    async def create(self, **members: Any) -> dict[str, Any]:
        answer = await self.api.post("/v1/schedules", {"cron": "* * * * *", "job": {"url": TARGET}, **members})
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"/v1/schedules/{answer.json()['id']}"
        return answer.json()  # type: ignore[no-any-return]

    async def refused(self, **members: Any) -> set[str]:
        given = {"cron": "* * * * *", "job": {"url": TARGET}, **members}
        given = {name: value for name, value in given.items() if value is not None}
        return pointers(assert_problem(await self.api.post("/v1/schedules", given), 422))

    async def edit(self, schedule: dict[str, Any], *, status: int = 200, **members: Any) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.api.key}", "content-type": "application/json"}
        answer = await self.api.client.patch(
            f"/v1/schedules/{schedule['id']}", content=json.dumps(members), headers=headers
        )
        assert answer.status_code == status, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def read(self, schedule: dict[str, Any]) -> dict[str, Any]:
        answer = await self.api.get(f"/v1/schedules/{schedule['id']}")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def call(self, schedule: dict[str, Any], call: str, status: int = 200) -> dict[str, Any]:
        answer = await self.api.post(f"/v1/schedules/{schedule['id']}/{call}")
        assert answer.status_code == status, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def due(self, schedule: dict[str, Any], by: timedelta = timedelta(minutes=1)) -> None:
        """As if the next fire had been due that long ago."""
        await self.db.execute(
            """update duly.schedule_turn
               set next_fire_at = next_fire_at - $2::interval, look_at = look_at - $2::interval,
                   since_at = since_at - $2::interval
               where schedule_id = $1""",
            schedule["id"],
            by,
        )

    async def fire(self) -> None:
        firer = Firer(self.db, keyring=KEYRING, policy=EgressPolicy.parse(allow_loopback=True))
        while await firer.step() == timedelta(0):
            pass


@pytest.fixture
async def client(database: Database, policy: EgressPolicy, settings: ApiSettings) -> Any:
    """The API, sealing."""
    server = ApiServer(create_app(database, policy, settings, keyring=KEYRING))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client
    await server.stop()


@pytest.fixture
def schedules(api: Api, database: Database) -> Schedules:
    return Schedules(api, database)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def in_future(**parts: int) -> str:
    return (datetime.now(UTC) + timedelta(**parts)).isoformat()


# Created, read, listed, deleted --------------------------------------------------------------------------------------


async def test_the_least_that_is_needed(schedules: Schedules) -> None:
    """A target and a time: everything else has its default, and the next fire is there at once."""
    made = await schedules.create()
    assert made["state"] == "active"
    assert made["missed"] == "one"
    assert made["overlap"] == "allow"
    assert made["jitter"] == 0
    assert timedelta(0) < moment(made["next_fire_at"]) - datetime.now(UTC) <= timedelta(minutes=1, seconds=5)
    assert made["job"]["url"] == TARGET
    assert await schedules.read(made) == made


async def test_a_repeat_is_the_same_schedule(schedules: Schedules) -> None:
    """The same id and content after a lost reply; other content, or another project's id, is a conflict."""
    members = {
        "id": str(uuid7()),
        "every": 600,
        "cron": None,
        "delay": "1h",
        "job": {"url": TARGET, "json": {"n": 1}, "headers": {"X-Api-Key": "k"}},
    }
    body = {name: value for name, value in members.items() if value is not None}
    first = await schedules.api.post("/v1/schedules", body)
    again = await schedules.api.post("/v1/schedules", body)
    assert first.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert first.json() == again.json()
    other = await schedules.api.post("/v1/schedules", {**body, "every": 601})
    assert pointers(assert_problem(other, 409)) == {"/id"}
    stranger = await new_api(schedules.db, schedules.api.client, "second")
    assert assert_problem(await stranger.post("/v1/schedules", body), 409).get("schedule_id") is None


async def test_a_name_is_one_schedules(schedules: Schedules) -> None:
    """Within a project; the conflict says whose it is."""
    made = await schedules.create(name="nightly")
    answer = await schedules.api.post("/v1/schedules", {"name": "nightly", "cron": "@daily", "job": {"url": TARGET}})
    assert assert_problem(answer, 409)["schedule_id"] == made["id"]
    stranger = Schedules(await new_api(schedules.db, schedules.api.client, "second"), schedules.db)
    await stranger.create(name="nightly")


async def test_a_schedule_of_a_task(schedules: Schedules) -> None:
    """It is shown whatever its arguments are called; its times can be edited and it can be run; its job, which is no
    request, is the declaration's to change.
    """
    made = await schedules.create(name="task")
    arguments = {"url": 5, "headers": [1], "redact": 7, "sealed": {"key": "k9"}}
    await schedules.db.execute(
        "update duly.schedule set kind = 'task:a.b', payload = $2::jsonb where id = $1",
        made["id"],
        json.dumps(arguments),
    )
    shown = await schedules.read(made)
    assert (shown["job"]["kind"], shown["job"]["url"], shown["job"]["headers"]) == ("task:a.b", None, [])
    refused = await schedules.edit(made, status=422, job={"url": TARGET})
    assert [fault["pointer"] for fault in refused["errors"]] == ["/job"]
    assert (await schedules.edit(made, cron="@daily"))["cron"] == "@daily"
    ran = await schedules.call(made, "run", status=202)
    job = await get_job(schedules.db, None, UUID(ran["job_id"]))
    assert job is not None
    assert (job.kind, job.payload) == ("task:a.b", arguments)


async def test_pages(schedules: Schedules) -> None:
    """The newest first, by cursor; by state; what is not known is refused."""
    made = [(await schedules.create())["id"] for _ in range(5)]
    await schedules.call({"id": made[0]}, "pause")
    first = (await schedules.api.get("/v1/schedules?limit=3")).json()
    second = (await schedules.api.get(f"/v1/schedules?limit=3&cursor={first['next_cursor']}")).json()
    assert [one["id"] for one in first["data"] + second["data"]] == made[::-1]
    assert second["next_cursor"] is None
    paused = (await schedules.api.get("/v1/schedules?state=paused")).json()
    assert [one["id"] for one in paused["data"]] == made[:1]
    for query in ("state=late", "limit=0", "limit=x", "cursor=abc", "cursor=%C3%A4", "tag=x", "limit=1&limit=2"):
        assert_problem(await schedules.api.get(f"/v1/schedules?{query}"), 422)


async def test_a_deleted_one_fires_no_more(schedules: Schedules) -> None:
    """And is unknown from then on."""
    made = await schedules.create()
    await schedules.due(made)
    headers = {"authorization": f"Bearer {schedules.api.key}"}
    path = f"/v1/schedules/{made['id']}"
    assert (await schedules.api.client.delete(path, headers=headers)).status_code == 204
    await schedules.fire()
    assert await list_jobs(schedules.db, schedules.api.project.owner) == []
    assert_problem(await schedules.api.client.delete(path, headers=headers), 404)
    assert_problem(await schedules.api.get(path), 404)


async def test_a_stranger_sees_and_changes_nothing(schedules: Schedules) -> None:
    """Every call with another project's key answers like an unknown id, and a key without write reads only."""
    made = await schedules.create()
    stranger = await new_api(schedules.db, schedules.api.client, "second")
    reader = await new_api(schedules.db, schedules.api.client, "third", ["read"])
    path = f"/v1/schedules/{made['id']}"
    for api, status in ((stranger, 404), (reader, 403)):
        headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
        for call in ("pause", "resume", "run"):
            assert_problem(await api.post(f"{path}/{call}"), status)
        assert_problem(await api.client.patch(path, content="{}", headers=headers), status)
        assert_problem(await api.client.delete(path, headers=headers), status)
    for view in ("", "/preview", "/fires"):
        assert_problem(await stranger.get(path + view), 404)
    assert (await stranger.get("/v1/schedules")).json()["data"] == []
    assert_problem(await schedules.api.get("/v1/schedules/no-id"), 404)
    assert await schedules.read(made) == made


# Refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 */31 * 1#5"])
async def test_a_date_that_never_comes(schedules: Schedules, cron: str) -> None:
    """FO-053: 422 at creation and at an edit, at its place."""
    assert await schedules.refused(cron=cron) == {"/cron"}
    made = await schedules.create()
    await schedules.edit(made, cron=cron, status=422)
    assert await schedules.read(made) == made


SOON = {"every": 600, "cron": None}


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"cron": None}, {""}),
        ({"every": 60}, {"/every"}),
        ({"at": "in_future"}, {"/at"}),
        ({"every": 60, "at": "in_future"}, {"/every", "/at"}),
        ({"cron": None, "at": "2020-01-01T00:00:00Z"}, {"/at"}),
        ({"cron": None, "at": "in_future", "count": 2}, {"/count"}),
        ({"cron": None, "at": "in_future", "delay": 2}, {"/delay"}),
        ({"cron": None, "at": "in_future", "end_at": "in_future"}, {"/end_at"}),
        ({"cron": None, "at": "in_future", "start_at": "in_future"}, {"/start_at"}),
        ({**SOON, "timezone": "Europe/London"}, {"/timezone"}),
        ({**SOON, "start_at": "in_future", "delay": 5}, {"/delay"}),
        ({**SOON, "end_at": "2020-01-01T00:00:00Z"}, {"/end_at"}),
        ({**SOON, "delay": "3h", "end_at": "in_future"}, {"/end_at"}),
        ({"every": 86400, "cron": None, "end_at": "in_future"}, {"/end_at"}),
        ({"cron": "0 0 1 1 *", "end_at": "in_future", "delay": 1}, {"/end_at"}),
        ({"timezone": "Mars/Olympus"}, {"/timezone"}),
        ({"cron": "x", "timezone": "y"}, {"/cron", "/timezone"}),
        ({"count": 0}, {"/count"}),
        ({"every": 0.5, "cron": None}, {"/every"}),
        ({"every": "-1s", "cron": None}, {"/every"}),
        ({"jitter": "2m"}, {"/jitter"}),
        ({"missed": "never"}, {"/missed"}),
        ({"missed_limit": 5}, {"/missed_limit"}),
        ({"missed": "all", "missed_limit": 501}, {"/missed_limit"}),
        ({"overlap": "queue"}, {"/overlap"}),
        ({"start_at": "2030-01-01T00:00:00"}, {"/start_at"}),
        ({"start_at": "2999-01-01T00:00:00Z"}, {"/start_at"}),
        ({"start_at": "0001-01-01T00:00:00Z"}, {"/start_at"}),
        ({**SOON, "start_at": "0001-01-01T00:00:00Z"}, {"/start_at"}),
        ({**SOON, "end_at": "9999-12-31T23:59:59Z"}, {"/end_at"}),
        ({"name": ""}, {"/name"}),
        ({"id": "x"}, {"/id"}),
        ({"url": TARGET}, {"/url"}),
        ({"job": None}, {"/job"}),
        ({"job": 3}, {"/job"}),
        ({"job": {}}, {"/job/url"}),
        ({"job": {"url": "ftp://x/"}}, {"/job/url"}),
        ({"job": {"url": "http://10.1.2.3/"}}, {"/job/url"}),
        ({"job": {"url": TARGET, "delay": 5, "run_at": "x", "id": "x"}}, {"/job/delay", "/job/run_at", "/job/id"}),
        ({"job": {"url": TARGET, "expires_at": "x", "expires_after": 0}}, {"/job/expires_at", "/job/expires_after"}),
        ({"job": {"url": TARGET, "headers": {"Host": "x"}}, "cron": "x"}, {"/job/headers/Host", "/cron"}),
        ({"job": {"url": TARGET, "json": 1, "body": "x"}}, {"/job/body"}),
        ({"job": {"url": TARGET, "priority": 10, "queue": "?"}}, {"/job/priority", "/job/queue"}),
    ],
)
async def test_what_contradicts_itself_is_refused(
    schedules: Schedules, members: dict[str, Any], where: set[str]
) -> None:
    """FO-056: with a pointer to each part that is wrong, and nothing is stored."""
    given = {name: in_future(hours=2) if value == "in_future" else value for name, value in members.items()}
    assert await schedules.refused(**given) == where
    assert (await schedules.api.get("/v1/schedules")).json()["data"] == []


async def test_what_is_no_json_is_refused(schedules: Schedules) -> None:
    """And so are a key for idempotency, which has no meaning here, and a member given twice inside the job."""
    assert_problem(await schedules.api.post("/v1/schedules", "{"), 400)
    given = {"cron": "@daily", "job": {"url": TARGET}}
    assert_problem(await schedules.api.post("/v1/schedules", given, headers={"Idempotency-Key": "x"}), 422)
    assert_problem(await schedules.api.post("/v1/schedules", given, headers={"Duly-Hops": "x"}), 422)
    text = '{"cron": "@daily", "job": {"url": "' + TARGET + '", "url": "' + TARGET + '"}}'
    assert pointers(assert_problem(await schedules.api.post("/v1/schedules", text), 422)) == {"/job/url"}


# First delay, interval, count and end --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [None, 10])
@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize("start", ["none", "delay", "start_at"])
async def test_every_combination(schedules: Schedules, start: str, count: int | None, end: int | None) -> None:
    """FO-056: the first fire after the delay (or at the start), then the interval, to the count or the end."""
    begun = datetime.now(UTC)
    members: dict[str, Any] = {"every": "10m", "job": {"url": TARGET}}
    first = timedelta(minutes=10)
    if start != "none":
        first = timedelta(minutes=25)
        members[start] = "25m" if start == "delay" else (begun + first).isoformat()
    if count is not None:
        members["count"] = count
    if end is not None:
        members["end_at"] = (begun + first + end * timedelta(minutes=10) + timedelta(minutes=1)).isoformat()
    answer = await schedules.api.post("/v1/schedules/preview?count=50", members)
    assert answer.status_code == 200, answer.text
    fires = [moment(fire) for fire in answer.json()["fires"]]
    assert abs(fires[0] - begun - first) < timedelta(seconds=30)
    assert {later - fire for fire, later in pairwise(fires)} <= {timedelta(minutes=10)}
    assert len(fires) == min(count or 50, end + 1 if end else 50)


async def test_count_and_end_end_a_schedule(schedules: Schedules) -> None:
    """After its last job it has ended; there is no next fire, and nothing to pause or resume."""
    made = await schedules.create(count=2, missed_after="1h")
    for n in (1, 2):
        await schedules.due(made, n * timedelta(minutes=1))
        await schedules.fire()
    ended = await schedules.read(made)
    assert (ended["state"], ended["made"], ended["next_fire_at"]) == ("ended", 2, None)
    for call in ("pause", "resume"):
        await schedules.call(made, call, 409)
    assert (await schedules.api.get(f"/v1/schedules/{made['id']}/preview")).json()["fires"] == []
    again = await schedules.edit(made, count=3)
    assert again["state"] == "active"
    await schedules.edit(made, count=2, status=422)


# Options arrive ------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "url": "http://127.0.0.1:9999/other?x=1",
    "method": "PUT",
    "headers": [["X-One", "1"], ["Authorization", "Bearer secret-of-mine"]],
    "json": {"n": 12345678901234567890.5},
    "timeout": 77,
    "retry": {
        "max_attempts": 3,
        "backoff": {"kind": "steps", "steps": [1, 2], "max": 50, "jitter": 0.5},
        "max_age": 7200,
        "on": [404, "5xx"],
    },
    "queue": "other",
    "concurrency_key": "key",
    "priority": 2,
    "tags": ["a", "b"],
    "metadata": {"deep": [1, None]},
    "unique_key": "one at a time",
    "unique_for": "until_start",
    "on_conflict": "replace",
    "on_success": "http://127.0.0.1:9999/ok",
    "on_dead": "http://127.0.0.1:9999/dead",
    "redact": {"headers": ["X-One"], "body": True, "response": True},
}
SAME = sorted(OPTIONS.keys() - {"json", "unique_key", "on_conflict"} | {"max_attempts", "has_body", "kind"})


async def test_every_option_arrives_on_the_jobs(schedules: Schedules) -> None:
    """FO-057: field by field the job is what the same options make of a job of its own; after an edit the next one is
    what the edit says.
    """
    made = await schedules.create(missed_after="1h", job={**OPTIONS, "expires_after": "2h"})
    edited = {**OPTIONS, "timeout": 11, "queue": "third", "tags": ["c"], "json": [2], "priority": 9, "unique_key": "b"}
    seen: set[str] = set()
    for n, options, expires in ((1, OPTIONS, 7200), (2, edited, 60)):
        alone = await schedules.api.create(**{**options, "unique_key": "its own"})
        await schedules.due(made, n * timedelta(minutes=1))
        await schedules.fire()
        ledger = (await schedules.api.get(f"/v1/schedules/{made['id']}/fires")).json()["data"]
        [fire] = [fire for fire in ledger if fire["job_id"] not in seen]
        seen.add(fire["job_id"])
        job = await schedules.api.job(fire["job_id"])
        for field in SAME:
            assert job[field] == alone[field], field
        assert job["unique_key"] == options["unique_key"]
        run_at = moment(job["run_at"])
        assert run_at == moment(fire["fire_at"])
        made_in = abs(moment(job["expires_at"]) - timedelta(seconds=expires) - moment(fire["made_at"]))
        assert made_in < timedelta(seconds=10)
        owner = schedules.api.project.owner
        stored = [await get_job(schedules.db, owner, one["id"], include_body=True) for one in (job, alone)]
        bodies = [opened_view(KEYRING, view).body for view in stored if view]
        assert bodies[0] == bodies[1]
        made = await schedules.edit(made, job={**edited, "expires_after": "1m"})


async def test_an_edit_of_one_member_leaves_the_others(schedules: Schedules) -> None:
    """Of the schedule and of its job; null takes a member back to its default."""
    made = await schedules.create(name="a", missed="all", missed_limit=9, jitter=3, job={**OPTIONS, "expires_after": 5})
    edited = await schedules.edit(made, job={"timeout": 5})
    assert edited["job"] == {**made["job"], "timeout": 5}
    assert {**edited, "job": 0, "revision": 0, "updated_at": 0} == {**made, "job": 0, "revision": 0, "updated_at": 0}
    edited = await schedules.edit(made, job={"unique_key": None, "retry": None, "redact": None, "body": None}, name="b")
    assert edited["job"]["unique_key"] is None
    assert edited["job"]["retry"]["max_attempts"] == 8
    assert edited["job"]["has_body"] is False
    assert edited["name"] == "b"
    edited = await schedules.edit(made, missed="skip", jitter=None)
    assert (edited["missed"], edited["jitter"]) == ("skip", 0)
    assert (await schedules.edit(made, id=str(uuid7()), paused=True, status=422))["errors"]


async def test_an_edit_keeps_the_phase(schedules: Schedules) -> None:
    """Of the job, of a policy, of the interval itself; a new start begins a new one."""
    made = await schedules.create(every="10m", cron=None)
    anchor = moment(made["next_fire_at"])
    for change in ({"job": {"timeout": 5}}, {"missed": "skip"}, {"every": 600}, {"jitter": 5}):
        assert (await schedules.edit(made, **change))["next_fire_at"] == made["next_fire_at"]
    faster = moment((await schedules.edit(made, every="4m"))["next_fire_at"])
    assert (faster - anchor) % timedelta(minutes=4) == timedelta(0)
    moved = await schedules.edit(made, delay="1m")
    assert abs(moment(moved["next_fire_at"]) - datetime.now(UTC) - timedelta(minutes=1)) < timedelta(seconds=20)
    cron = await schedules.edit(made, cron="0 5 * * *", timezone="Asia/Tokyo")
    assert (cron["every"], moment(cron["next_fire_at"]).hour) == (None, 20)
    back = await schedules.edit(made, every="1h")
    assert (back["cron"], back["timezone"]) == (None, None)


async def test_if_match(schedules: Schedules) -> None:
    """An edit of what was edited meanwhile is refused if it asks for that."""
    made = await schedules.create()
    answer = await schedules.api.get(f"/v1/schedules/{made['id']}")
    await schedules.edit(made, missed="skip")
    headers = {
        "authorization": f"Bearer {schedules.api.key}",
        "content-type": "application/json",
        "if-match": answer.headers["etag"],
    }
    path = f"/v1/schedules/{made['id']}"
    assert_problem(await schedules.api.client.patch(path, content='{"missed": "one"}', headers=headers), 412)
    headers["if-match"] = (await schedules.api.get(path)).headers["etag"]
    assert (await schedules.api.client.patch(path, content='{"missed": "one"}', headers=headers)).status_code == 200


# Secrets -------------------------------------------------------------------------------------------------------------


async def test_secrets_are_sealed_and_masked(schedules: Schedules) -> None:
    """No row of the database holds a header's value or the body in the clear, and no answer shows a secret."""
    made = await schedules.create(job=OPTIONS)
    assert made["job"]["headers"] == [["X-One", "***"], ["Authorization", "***"], ["Content-Type", "application/json"]]
    await schedules.due(made)
    await schedules.fire()
    for table in ("schedule", "job"):
        dump = await schedules.db.fetchval(f"select string_agg(t::text, ' ') from duly.{table} t")
        assert "secret-of-mine" not in dump
        assert b"12345678901234567890.5".hex() not in dump


async def test_a_masked_secret_stays_where_it_was(schedules: Schedules) -> None:
    """Given back masked it keeps its value for the same scheme, host and port; for another target everything secret
    must be given again.
    """
    made = await schedules.create(job=OPTIONS)
    kept = [["X-One", "2"], ["Authorization", "***"]]
    await schedules.edit(made, job={"headers": kept, "url": "http://127.0.0.1:9999/path"})
    await schedules.due(made)
    await schedules.fire()
    [job] = await list_jobs(schedules.db, schedules.api.project.owner, queue="other")
    assert ["Authorization", "Bearer secret-of-mine"] in opened_view(KEYRING, job).payload["headers"]
    for url in ("http://127.0.0.1:9998/", "https://127.0.0.1:9999/", "http://localhost:9999/"):
        for headers in ({}, {"headers": kept}):
            problem = await schedules.edit(made, job={"url": url, **headers}, status=422)
            assert pointers(problem) == {"/job/headers", "/job/body"}
    await schedules.edit(made, job={"url": "http://127.0.0.1:9998/", "headers": {}, "body": None})


# Pause, resume, run, preview -----------------------------------------------------------------------------------------


async def test_pause_and_resume(schedules: Schedules) -> None:
    """What falls into the pause is not made up for, and the phase is kept. Both are idempotent."""
    made = await schedules.create(every="10m", cron=None, missed="all")
    for _ in range(2):
        paused = await schedules.call(made, "pause")
        assert (paused["state"], paused["next_fire_at"]) == ("paused", None)
    assert (await schedules.edit(made, every="5m"))["state"] == "paused"
    for _ in range(2):
        resumed = await schedules.call(made, "resume")
        assert resumed["state"] == "active"
    delta = moment(resumed["next_fire_at"]) - moment(made["next_fire_at"])
    assert delta % timedelta(minutes=5) == timedelta(0)
    await schedules.fire()
    assert await list_jobs(schedules.db, schedules.api.project.owner) == []


async def test_run_now(schedules: Schedules) -> None:
    """One job beside the fires, in any state; the ledger says who asked."""
    made = await schedules.create(paused=True, job={"url": TARGET, "unique_key": "k"})
    answer = await schedules.call(made, "run", 202)
    job = await schedules.api.job(answer["job_id"])
    assert job["state"] == "ready"
    [fire] = (await schedules.api.get(f"/v1/schedules/{made['id']}/fires")).json()["data"]
    assert (fire["trigger"], fire["job_id"]) == ("manual", answer["job_id"])
    assert "key " in fire["why"]
    await schedules.call(made, "run", 409)
    assert len((await schedules.api.get(f"/v1/schedules/{made['id']}/fires")).json()["data"]) == 1


async def test_preview(schedules: Schedules) -> None:
    """The next fires as UTC; of one that is stored and of one that is not."""
    made = await schedules.create(cron="0 9 29 2 *", timezone="Europe/Berlin")
    path = f"/v1/schedules/{made['id']}/preview"
    fires = (await schedules.api.get(f"{path}?count=3")).json()["fires"]
    assert fires[0] == made["next_fire_at"]
    assert [fire[4:] for fire in fires] == ["-02-29T08:00:00Z"] * 3
    assert len((await schedules.api.get(path)).json()["fires"]) == 10
    assert_problem(await schedules.api.get(f"{path}?count=501"), 422)
    assert_problem(
        await schedules.api.post("/v1/schedules/preview", {"cron": "0 0 30 2 *", "job": {"url": TARGET}}), 422
    )


async def test_pages_of_fires(schedules: Schedules) -> None:
    """The latest first, by cursor."""
    made = await schedules.create(missed="all")
    await schedules.due(made, timedelta(minutes=10))
    await schedules.fire()
    path = f"/v1/schedules/{made['id']}/fires"
    first = (await schedules.api.get(f"{path}?limit=6")).json()
    second = (await schedules.api.get(path, params={"limit": 6, "cursor": first["next_cursor"]})).json()
    moments = [fire["fire_at"] for fire in first["data"] + second["data"]]
    assert moments == sorted(set(moments), reverse=True)
    assert len(moments) in (10, 11)
    for cursor in ("x", "2026-01-01T00:00:00"):
        assert_problem(await schedules.api.get(path, params={"cursor": cursor}), 422)


# Health --------------------------------------------------------------------------------------------------------------


async def test_readiness_turns_red_when_a_schedule_did_not_fire(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-054: requests are served, and the detail says that schedules are behind; green again when they have fired."""
    monkeypatch.setattr("duly.service.schedule_watch.LOOK_EVERY_S", 0.0)
    made = await schedules.create()
    assert (await schedules.api.client.get("/readyz")).json() == {"status": "ready"}
    await schedules.due(made, timedelta(minutes=5))
    ready = await schedules.api.client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "health": "red",
        "findings": ["schedules should have fired and did not"],
    }
    await schedules.fire()
    assert (await schedules.api.client.get("/readyz")).json() == {"status": "ready"}
