"""Secrets at rest and on read: what is stored is sealed, a repeat is a repeat whatever the keys, nothing is shown."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.cli.delivering import sealed_delivery
from duly.http import Deliverer, EgressPolicy
from duly.model import Bury, DeadReason, NewJob, Settlement, Snooze, Success, uuid7
from duly.model.errors import InvalidInputError
from duly.queue import Database, Owner, enqueue, keys_in_use, settle, unfinished_by_key
from duly.service import (
    NO_KEYRING,
    KeyMissingError,
    Keyring,
    SigningSecrets,
    TamperedError,
    create_account,
    create_key,
    create_project,
    list_secrets,
    reseal_secrets,
    rotate_secret,
    secrets_by_key,
)
from duly.service.keyring import new_key
from duly.service.sealing import opened_claim
from support.dumping import everything, found_in
from support.recording_target import Received, recording_target

CANARY = "canary-5e6f7a8b9c0d"
OLD, NEW = new_key(), new_key()
RINGS = {
    "none": NO_KEYRING,
    "old": Keyring.parse(OLD),
    "both": Keyring.parse(f"{NEW},{OLD}"),
    "new": Keyring.parse(NEW),
}
POLICY = EgressPolicy.parse(allow_loopback=True)


@asynccontextmanager
async def served(database: Database, keyring: Keyring, api: Api | None = None) -> AsyncIterator[Api]:
    """An API with this keyring, for a new project, or for that of another one."""
    server = ApiServer(create_app(database, POLICY, ApiSettings(), keyring=keyring))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield await new_api(database, client, "first") if api is None else Api(client, api.project, api.key)
    await server.stop()


async def payload_of(database: Database, job_id: str) -> dict[str, Any]:
    text = await database.fetchval("select payload::text from duly.job where id = $1", UUID(job_id))
    return dict(json.loads(text))


async def test_values_and_bodies_are_sealed_and_names_stay(database: Database) -> None:
    """A dump holds neither; the API shows plain values, masks secret ones, and gives the body to who may have it."""
    async with served(database, RINGS["new"]) as api:
        made = await api.create(
            headers=[["X-Plain", f"plain {CANARY}"], ["Authorization", f"Bearer {CANARY}"], ["X-Plain", ""]],
            body=f"body {CANARY}",
        )
        assert made["headers"] == [["X-Plain", f"plain {CANARY}"], ["Authorization", "***"], ["X-Plain", ""]]
        assert found_in(await everything(database), CANARY) == set()
        stored = await payload_of(database, made["id"])
        assert [name for name, _ in stored["headers"]] == ["X-Plain", "Authorization", "X-Plain"]
        assert (await api.job(made["id"]))["headers"] == made["headers"]
        [listed] = (await api.get("/v1/jobs")).json()["data"]
        assert listed == await api.job(made["id"])
        reader = Api(api.client, api.project, await _key(database, api, "read", "read_payloads"))
        body = await reader.get(f"/v1/jobs/{made['id']}?include=request_body")
        assert body.json()["request_body"] == f"body {CANARY}"


async def _key(database: Database, api: Api, *scopes: Any) -> str:
    return (await create_key(database, api.project.owner.project_id, "more", scopes=scopes)).key


@pytest.mark.parametrize(("before", "after"), [("old", "old"), ("old", "both"), ("none", "both"), ("none", "none")])
async def test_a_repeat_is_recognised_whatever_became_of_the_keys(database: Database, before: str, after: str) -> None:
    """The same id and words: the same job, replayed. Another word, in the body or in a header: 409."""
    job = {"id": str(uuid7()), "body": "words", "headers": {"X-A": "1", "X-Token": "t0ken"}, "delay": "1h"}
    async with served(database, RINGS[before]) as first:
        await first.create(**job)
        async with served(database, RINGS[after], first) as api:
            again = await api.post("/v1/jobs", {"url": TARGET, **job})
            assert (again.status_code, again.headers.get("idempotency-replayed")) == (201, "true"), again.text
            assert again.json()["headers"] == [["X-A", "1"], ["X-Token", "***"]]
            for change in ({"body": "word"}, {"headers": {"X-A": "2", "X-Token": "t0ken"}}, {"priority": 1}):
                assert_problem(await api.post("/v1/jobs", {"url": TARGET, **job, **change}), 409)
    assert await database.fetchval("select count(*) from duly.job") == 1


@pytest.mark.parametrize("after", ["new", "none"])
async def test_what_cannot_be_compared_is_a_conflict(database: Database, after: str) -> None:
    """The old key is gone: that it is the same job cannot be known, so it is not said."""
    job = {"id": str(uuid7()), "body": "words"}
    async with served(database, RINGS["old"]) as first:
        await first.create(**job)
        async with served(database, RINGS[after], first) as api:
            assert_problem(await api.post("/v1/jobs", {"url": TARGET, **job}), 409)


async def test_another_projects_job_is_a_conflict_too(database: Database) -> None:
    """Under whichever key: the look for a repeat goes no farther than one's own jobs."""
    job = {"id": str(uuid7()), "body": "words"}
    async with served(database, RINGS["old"]) as first:
        await first.create(**job)
        async with served(database, RINGS["both"], first) as api:
            stranger = await new_api(database, api.client, "second")
            assert_problem(await stranger.post("/v1/jobs", {"url": TARGET, **job}), 409)


async def test_without_the_key_reading_masks_and_the_body_is_an_error(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """All values show as ***; the body answers 503; the log names the key."""
    async with served(database, RINGS["old"]) as first:
        made = await first.create(headers={"X-A": "1"}, body="words")
        first.key = await _key(database, first, "read", "read_payloads")
        async with served(database, RINGS["new"], first) as api:
            assert (await api.job(made["id"]))["headers"] == [["X-A", "***"]]
            assert len((await api.get("/v1/jobs")).json()["data"]) == 1
            assert_problem(await api.get(f"/v1/jobs/{made['id']}?include=request_body"), 503)
    assert any(str(RINGS["old"].first) in str(record.__dict__.get("error")) for record in caplog.records)


async def test_a_delivery_sends_what_was_given_and_keeps_no_secret(database: Database, worker: Worker) -> None:
    """The target gets every byte. It sends all of it back: secrets are masked in the record, and the record is sealed,
    so that a dump has neither; the API shows the answer.
    """
    sent = {"headers": {"Authorization": f"Bearer {CANARY}", "X-A": "visible"}, "body": f"words {CANARY}-body"}

    def echo(request: Received) -> bytes:
        told = str(request.header("Authorization")).encode()
        body = told + b" " + request.body
        return b"HTTP/1.1 500 No\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (told, len(body), body)

    async with served(database, RINGS["new"]) as api, recording_target(echo) as server:
        made = await api.create(url=server.url(), **sent)
        job = await worker.claim()
        async with Deliverer(POLICY) as deliverer:
            secrets = SigningSecrets(database, keyring=RINGS["new"])
            outcome = await sealed_delivery(deliverer, secrets, RINGS["new"])(job)
        [received] = server.received
        assert received.header("Authorization") == f"Bearer {CANARY}"
        assert received.header("X-A") == "visible"
        assert received.body == sent["body"].encode()  # type: ignore[attr-defined]
        assert outcome.report is not None
        settlement = Settlement(job.id, job.attempt, "retry", delay=timedelta(hours=1), report=outcome.report)
        assert not await settle(database, worker.id, [settlement])
        assert found_in(await everything(database), CANARY) == set()
        [attempt] = (await api.get(f"/v1/jobs/{made['id']}/attempts")).json()["data"]
        assert attempt == (await api.get(f"/v1/jobs/{made['id']}/attempts/1")).json()
        hidden = "*" * len(f"Bearer {CANARY}")
        assert attempt["response_excerpt"] == f"{hidden} words {'*' * len(CANARY)}-body"
        assert ["x-request-id", hidden] in attempt["response_headers"]
        async with served(database, RINGS["old"], api) as without:
            [attempt] = (await without.get(f"/v1/jobs/{made['id']}/attempts")).json()["data"]
            assert attempt["response_excerpt"] is None
        [use] = await keys_in_use(database)
        assert (use.key_id, use.unfinished, use.finished, use.answers) == (RINGS["new"].first, 1, 0, 1)
        assert await unfinished_by_key(database) == {RINGS["new"].first: 1}


async def test_the_job_that_keeps_a_unique_key_is_shown_as_by_its_id(database: Database) -> None:
    """What is no secret shows in both answers; a secret in neither."""
    async with served(database, RINGS["new"]) as api:
        sent = {"url": TARGET, "unique_key": "k", "on_conflict": "keep", "headers": {"X-A": "visible", "Cookie": "c=1"}}
        made = (await api.post("/v1/jobs", sent)).json()
        kept = await api.post("/v1/jobs", sent)
        assert (kept.status_code, kept.json()) == (200, await api.job(made["id"]))
        assert kept.json()["headers"] == [["X-A", "visible"], ["Cookie", "***"]]


async def test_parts_of_secret_headers_are_masked_too(database: Database, worker: Worker) -> None:
    """One cookie of several, one quoted part of Digest: what a target picks out is as secret as the whole."""
    cookies, digest = "sid=s3cr3t-cookie; theme=dark-theme", 'Digest username="someone", response="s3cr3t-digest"'

    def echo(_: Received) -> bytes:
        body = b"you sent s3cr3t-cookie and s3cr3t-digest and the rest"
        return b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async with served(database, NO_KEYRING) as api, recording_target(echo) as server, Deliverer(POLICY) as deliverer:
        await api.create(url=server.url(), headers={"Cookie": cookies, "Authorization": digest})
        deliver = sealed_delivery(deliverer, SigningSecrets(database), NO_KEYRING)
        outcome = await deliver(await worker.claim())
    assert outcome.report is not None
    assert outcome.report.excerpt == b"you sent ************* and ************* and the rest"


async def test_a_wrong_key_under_the_right_id_burns_no_attempt(
    database: Database, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """One mistyped key on one worker is no reason to bury what it claims: the jobs wait, and the log says why."""
    wrong = Keyring([(RINGS["old"].first or "", bytes(32))])
    async with served(database, RINGS["old"]) as api, recording_target() as server, Deliverer(POLICY) as deliverer:
        await api.create(url=server.url(), body="words")
        deliver = sealed_delivery(deliverer, SigningSecrets(database, keyring=wrong), wrong)
        assert isinstance(await deliver(await worker.claim()), Snooze)
        assert server.received == []
        assert "is not the key that sealed this" in caplog.records[0].__dict__["error"]


async def test_a_missing_key_burns_no_attempt(
    database: Database, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the job's nor its signing secret's: snoozed, the target not asked, one line in the log for many jobs."""
    async with served(database, RINGS["old"]) as api, recording_target() as server, Deliverer(POLICY) as deliverer:
        for _ in range(3):
            await api.create(url=server.url(), body="words")
        deliver = sealed_delivery(deliverer, SigningSecrets(database, keyring=RINGS["new"]), RINGS["new"])
        for _ in range(3):
            assert isinstance(await deliver(await worker.claim()), Snooze)
        assert len(caplog.records) == 1
        assert caplog.records[0].__dict__["key_id"] == RINGS["old"].first

        await reseal_secrets(database, RINGS["old"])
        await api.create(url=server.url())  # nothing in it is sealed, but its signing secret is
        assert isinstance(await deliver(await worker.claim()), Snooze)
        assert server.received == []
        await reseal_secrets(database, RINGS["both"])
        fresh = sealed_delivery(deliverer, SigningSecrets(database, keyring=RINGS["new"]), RINGS["new"])
        await api.create(url=server.url())
        assert isinstance(await fresh(await worker.claim()), Success)
        assert server.received[0].header("webhook-signature")


@pytest.mark.parametrize("what", ["body", "headers", "url", "project", "names", "garbage"])
async def test_what_was_moved_is_dead_and_was_not_sent(database: Database, worker: Worker, what: str) -> None:
    """A row changed by hand to send its secrets elsewhere, or one that got another's: the target hears nothing."""
    async with served(database, RINGS["new"]) as api, recording_target() as server, Deliverer(POLICY) as deliverer:
        await api.create(url=server.url("/one"), body="one", headers={"X-Token": CANARY})
        await api.create(url=server.url("/one"), body="two", headers={"X-Token": "other"})
        one, two = await worker.claim(), await worker.claim()
        match what:
            case "body":
                changed = two._replace(body=one.body)
            case "headers":
                changed = two._replace(payload_json=one.payload_json)
            case "url":
                changed = one._replace(payload_json=one.payload_json.replace("/one", "/two"))
            case "names":
                changed = one._replace(payload_json=one.payload_json.replace('"X-Token"', '"X-Other"'))
            case "garbage":
                payload = json.loads(one.payload_json)
                payload["sealed"]["headers"] = "no base64"
                changed = one._replace(payload_json=json.dumps(payload))
            case _:
                changed = one._replace(project_id=one.project_id + 1)
        secrets = SigningSecrets(database, keyring=RINGS["new"])
        outcome = await sealed_delivery(deliverer, secrets, RINGS["new"])(changed)
        assert isinstance(outcome, Bury)
        assert outcome.reason is DeadReason.PERMANENT
        assert "cannot be decrypted" in (outcome.report.error or "")
        assert server.received == []
        with pytest.raises(TamperedError):
            opened_claim(RINGS["new"], changed)


@pytest.mark.parametrize("headers", [None, 1, {"X-Token": "t"}, [1], [["X-Token"]], [["X-Token", 1]], ["ab"]])
async def test_a_payload_that_nobody_checked_is_for_the_delivery_to_refuse(worker: Worker, headers: Any) -> None:
    """SQL can store anything under "headers": the handler says dead or delivers, and never raises."""
    job = NewJob(kind="http", payload={"url": TARGET.replace("9999", "9"), "headers": headers})
    [owner] = await worker.database.fetch(
        """with a as (insert into duly.account (public_id, name) values (gen_random_uuid(), 'a') returning id)
           insert into duly.project (public_id, account_id, name) select gen_random_uuid(), id, 'p' from a
           returning account_id, id"""
    )
    await enqueue(worker.database, [(Owner(owner["account_id"], owner["id"]), job)])
    async with Deliverer(POLICY) as deliverer:
        secrets = SigningSecrets(worker.database, keyring=RINGS["new"])
        outcome = await sealed_delivery(deliverer, secrets, RINGS["new"])(await worker.claim())
    assert outcome.report is not None
    assert outcome.report.result in ("error", "target_not_allowed", "connect_refused")


async def test_jobs_from_before_the_keys_are_delivered(database: Database, worker: Worker) -> None:
    """What is stored in the clear needs no key."""
    async with served(database, NO_KEYRING) as api, recording_target() as server, Deliverer(POLICY) as deliverer:
        await api.create(url=server.url(), body="words", headers={"X-Token": "t"})
        secrets = SigningSecrets(database, keyring=RINGS["new"])
        outcome = await sealed_delivery(deliverer, secrets, RINGS["new"])(await worker.claim())
        assert isinstance(outcome, Success)
        assert (server.received[0].body, server.received[0].header("X-Token")) == (b"words", "t")


async def test_signing_secrets_are_sealed_rotated_and_resealed(database: Database) -> None:
    """Made sealed, also by a rotation; a key change reseals all or none, those in the clear too."""
    account = await create_account(database, "acme")
    clear = await create_project(database, account.id, "clear")
    project = await create_project(database, account.id, "live", keyring=RINGS["old"])
    [first] = await list_secrets(database, project.owner.project_id, keyring=RINGS["old"])
    second = await rotate_secret(database, project.owner.project_id, keyring=RINGS["both"])
    [plain] = await list_secrets(database, clear.owner.project_id)
    dump = await everything(database)
    assert first.secret.hex() not in dump
    assert second.secret.hex() not in dump
    assert plain.secret.hex() in dump
    assert await secrets_by_key(database) == {None: 1, RINGS["old"].first: 1, RINGS["new"].first: 1}
    with pytest.raises(KeyMissingError):
        await list_secrets(database, project.owner.project_id, keyring=RINGS["new"])
    with pytest.raises(KeyMissingError):
        await reseal_secrets(database, RINGS["new"])
    assert (await secrets_by_key(database))[None] == 1
    assert await reseal_secrets(database, RINGS["both"]) == 2
    assert await reseal_secrets(database, RINGS["both"]) == 0
    assert await secrets_by_key(database) == {RINGS["new"].first: 3}
    listed = await list_secrets(database, project.owner.project_id, keyring=RINGS["new"])
    assert [one.secret for one in listed] == [second.secret, first.secret]
    assert (await list_secrets(database, clear.owner.project_id, keyring=RINGS["new"])) == [plain]


async def test_a_secret_moved_to_another_project_signs_nothing(database: Database) -> None:
    """Its envelope belongs to the project."""
    account = await create_account(database, "acme")
    one = await create_project(database, account.id, "one", keyring=RINGS["new"])
    other = await create_project(database, account.id, "other", keyring=RINGS["new"])
    await database.execute("update duly.signing_secret set project_id = $1", other.owner.project_id)
    assert await list_secrets(database, one.owner.project_id, keyring=RINGS["new"]) == []
    with pytest.raises(TamperedError):
        await list_secrets(database, other.owner.project_id, keyring=RINGS["new"])


# Redaction -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", ["new", "none"])
async def test_redacted_headers_and_bodies_are_hidden_on_every_read(
    database: Database, worker: Worker, ring: str
) -> None:
    """Listed names, in any case and spelling, and the body, even for a key that may read it; the target gets all."""
    async with served(database, RINGS[ring]) as api, recording_target() as server, Deliverer(POLICY) as deliverer:
        made = await api.create(
            url=server.url(),
            headers=[["X-Customer", CANARY], ["X_Ssn", CANARY], ["X-Plain", "seen"]],
            body=CANARY,
            redact={"headers": ["x-customer", "X-SSN", "X-Absent"], "body": True},
        )
        assert made["headers"] == [["X-Customer", "***"], ["X_Ssn", "***"], ["X-Plain", "seen"]]
        assert made["redact"] == {"headers": ["x-customer", "X-SSN", "X-Absent"], "body": True, "response": False}
        api.key = await _key(database, api, "read", "write", "read_payloads", "admin")
        shown = await api.get(f"/v1/jobs/{made['id']}?include=request_body")
        assert shown.json()["request_body"] == "***"
        assert CANARY not in shown.text + (await api.get("/v1/jobs")).text
        handler = sealed_delivery(deliverer, SigningSecrets(database, keyring=RINGS[ring]), RINGS[ring])
        assert isinstance(await handler(await worker.claim()), Success)
        [received] = server.received
        assert (received.header("X-Customer"), received.header("X_Ssn")) == (CANARY, CANARY)
        assert received.body == CANARY.encode()


async def test_a_redacted_answer_is_not_kept(database: Database, worker: Worker) -> None:
    """`response`: no excerpt; a listed name is masked among the answer's headers."""
    answer = b"HTTP/1.1 200 OK\r\nX-Request-Id: abc\r\nServer: s\r\nContent-Length: 5\r\n\r\nwords"
    async with served(database, NO_KEYRING) as api, recording_target(answer) as server, Deliverer(POLICY) as deliverer:
        await api.create(url=server.url(), redact={"headers": ["X-Request-ID"], "response": True})
        await api.create(url=server.url())
        handler = sealed_delivery(deliverer, SigningSecrets(database), NO_KEYRING)
        reports = [(await handler(await worker.claim())).report for _ in range(2)]
        assert all(reports)
        redacted, plain = (replace(report) for report in reports if report)
        assert (redacted.excerpt, plain.excerpt) == (None, b"words")
        assert ["x-request-id", "***"] in redacted.detail["response_headers"]
        assert ["server", "s"] in redacted.detail["response_headers"]
        assert ["x-request-id", "abc"] in plain.detail["response_headers"]


async def test_redact_is_part_of_what_a_job_says(api: Api) -> None:
    """Left out it shows as null; the same create repeats, another redact under the id is another job."""
    assert (await api.create())["redact"] is None
    job = {"id": str(uuid7()), "redact": {"headers": ["X-A", "X-A"]}}
    made = await api.create(**job)
    assert made["redact"] == {"headers": ["X-A"], "body": False, "response": False}
    assert await api.create(**job) == made
    assert_problem(await api.post("/v1/jobs", {"url": TARGET, "id": job["id"]}), 409)


# The canary ----------------------------------------------------------------------------------------------------------


async def test_no_answer_and_no_log_line_repeats_a_secret(
    database: Database, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Through every call there is, good and bad, with the log at its most talkative."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    secret = {
        "headers": {"Authorization": f"Bearer {CANARY}", "X-Mine": CANARY},
        "body": CANARY,
        "redact": {"headers": ["X-Mine"], "body": True},
    }
    async with served(database, RINGS["new"]) as api:
        api.key = await _key(database, api, "read", "write", "read_payloads")

        async def call(method: str, path: str, content: Any = None) -> httpx.Response:
            answer = await (api.get(path) if method == "GET" else api.post(path, content))
            said.append(answer.text + str(answer.headers))
            return answer

        job_id = (await call("POST", "/v1/jobs", {"url": TARGET, "delay": "1h", **secret})).json()["id"]
        for bad in (
            {"id": job_id},  # another job's id
            {"body": CANARY, "json": 1},
            {"headers": {"Authorization": f"{CANARY}\n"}},
            {"headers": {"Host": CANARY}},
            {"redact": {"headers": [CANARY + " "]}},
            {"redact": CANARY},
            {"body_base64": CANARY},
            {"url": f"http://u:{CANARY}@example.com/"},
            {"unique_for": CANARY},
        ):
            await call("POST", "/v1/jobs", {"url": TARGET, **secret, **bad})
        for path in ("", "?include=request_body", "/attempts", "/attempts/1"):
            await call("GET", f"/v1/jobs/{job_id}{path}")
        await call("GET", "/v1/jobs")
        for verb in ("run", "cancel", "redrive", "run", "cancel"):
            await call("POST", f"/v1/jobs/{job_id}/{verb}")
        keyed = {"url": TARGET, "unique_key": "k", **secret}
        for conflict in ("error", "keep", "replace", "error"):
            await call("POST", "/v1/jobs", {**keyed, "on_conflict": conflict})
        await worker.claim()
        await call("POST", "/v1/jobs", {**keyed, "on_conflict": "replace"})
        await call("POST", f"/v1/jobs/{job_id}/cancel")
    assert [text for text in said if CANARY in text] == []
    assert not [record for record in caplog.records if CANARY in str(record.__dict__)]
    assert found_in(await everything(database), CANARY) == set()


def test_a_wrong_length_is_refused() -> None:
    """A 128-bit key is not what was promised."""
    with pytest.raises(InvalidInputError, match="16 bytes"):
        Keyring([("k", bytes(16))])
