"""What pages show and what their buttons do, without JavaScript."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from api.harness import Api, Worker, new_api
from dashboard.harness import SHOWN, Visitor, fail, fill_with_hostile_texts, text_of
from duly import queue
from duly.dashboard import dead, jobs
from duly.dashboard.grouping import key_of
from duly.model import DeadReason, NewJob, Report, uuid7
from duly.queue import Database, breaker, overview, step_operation
from duly.service import change_account, create_key
from duly.service.sessions import Viewer


async def test_an_idle_project_is_told_that_all_is_well(visitor: Visitor) -> None:
    """Zeros and dashes, and no page but the ones that exist."""
    page = await visitor.get()
    assert "All is well" in page
    assert 'href="/dashboard/workers"' not in page
    for link in set(re.findall(r'href="/dashboard(/[^"]*)"', page)):
        await visitor.get(unescape(link))
    for path in ("/jobs", "/dead", "/schedules", "/queues", "/breakers"):
        await visitor.get(path)


async def test_the_first_page_answers_the_three_questions(
    database: Database, api: Api, worker: Worker, operator: Visitor
) -> None:
    """What is late, what fails and since when, what is held, which worker is gone; and what to do about each."""
    for _ in range(2):
        await api.create(url="https://broken.acme.com/hook")
        await fail(worker, Report("http_error", "the target answered 410", 410), DeadReason.TARGET_GONE)
    await api.create(queue="mail")
    await database.execute("update duly.ready set run_at = now() - interval '5 minutes'")
    await breaker.open_breaker(
        database, api.project.owner.account_id, "held.acme.com", 20, "e", timedelta(seconds=9), timedelta(seconds=9)
    )
    text = text_of(await operator.get())
    assert "Behind: the oldest job that waits was due 5 min ago." in text
    assert (
        "100 % of the attempts of the last 20 min failed, most of them with HTTP error 410 at broken.acme.com." in text
    )
    assert "2 dead letters at broken.acme.com: the target answered 410 (since" in text
    assert "held.acme.com fails: its deliveries are held since" in text
    assert "target gone 2" in text
    assert re.search(r"mail first / default 1 5 min 0", text)
    await database.execute("update duly.worker set lease_expires_at = now() - interval '1 second'")
    assert "No worker is alive: nothing runs. Start one: duly worker." in text_of(await operator.get())
    assert "silent" in await operator.get("/workers")


async def test_what_a_project_sees_is_its_own(api: Api, worker: Worker, visitor: Visitor) -> None:
    """Its waiting and running jobs, not the installation's workers."""
    await api.create(queue="mail")
    await api.create(queue="mail")
    await worker.claim()
    text = text_of(await visitor.get())
    assert "Running 1 jobs" in text
    assert "mail 1" in text
    assert "slots in use" not in text


async def test_jobs_are_listed_and_filtered_as_in_the_api(api: Api, worker: Worker, visitor: Visitor) -> None:
    """By state, queue and tag; what is no filter is said; the next page follows."""
    made = [await api.create(queue="mail", tags=["blue"]), await api.create(queue="slow")]
    await worker.bury()
    page = await visitor.get("/jobs")
    assert all(job["id"] in page for job in made)
    page = await visitor.get("/jobs?queue=mail&tag=blue&state=dead")
    assert made[0]["id"] in page
    assert made[1]["id"] not in page
    assert "No job matches" in await visitor.get("/jobs?queue=none")
    assert "must be one or more of" in await visitor.get("/jobs?state=bogus", 422)
    assert "is not a cursor" in await visitor.get("/jobs?cursor=x", 422)
    assert made[0]["id"] in await visitor.get("/jobs?unknown=1&queue=")
    for _ in range(50):
        await api.create()
    page = await visitor.get("/jobs?queue=")
    following = unescape(page.split('rel="next"')[0].rpartition('href="/dashboard')[2].rstrip('" '))
    assert made[0]["id"] in await visitor.get(following)


async def test_a_list_that_takes_too_long_is_told_so(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database ends it, and the page says what helps."""

    async def slow(db: Any, *_: Any, **__: Any) -> list[Any]:
        await db.fetchval("select pg_sleep(30)")
        return []

    assert "data-live" in await visitor.get("/jobs?state=dead")
    monkeypatch.setattr(jobs, "LIMIT", timedelta(milliseconds=50))
    monkeypatch.setattr(jobs, "list_jobs", slow)
    page = await visitor.get("/jobs?state=dead", 422)
    assert "Looking took too long" in page
    assert "data-live" not in page, "a tab that is open does not ask again"
    monkeypatch.undo()
    monkeypatch.setattr(jobs, "QUICK_S", 0.0)
    assert "data-live" not in await visitor.get("/jobs")


async def test_a_job_shows_every_attempt_and_what_is_to_come(api: Api, worker: Worker, operator: Visitor) -> None:
    """Outcome, code, error, phases, the answer; the next attempt and the delays behind it."""
    job = await api.create(json={"n": 1}, headers={"Authorization": "Bearer hush", "X-Trace": "abc"})
    detail = {
        "phases": {"dns": 1.5, "connect": 2.0, "first_byte": 30.0, "total": 40.0},
        "response_headers": [["content-type", "text/plain"]],
        "retry_after_s": 90,
        "remote_address": "192.0.2.7",
        "resent": True,
    }
    await fail(worker, Report("http_error", "the target answered 503", 503, excerpt=b"down for a while", detail=detail))
    page = await operator.get(f"/jobs/{job['id']}")
    text = text_of(page)
    for words in (
        "Attempt 1 HTTP error 503",
        "the target answered 503",
        "dns 2 ms connect 2 ms first byte 30 ms rest 6 ms",
        "content-type: text/plain down for a while",
        "The target asked to wait 1 min 30 s.",
        "remote address 192.0.2.7",
        "Sent once more",
        "Next attempt at",
        "then, if that fails, again after about 40 s",
        'POST http://127.0.0.1:9999/hook Authorization: *** X-Trace: abc Content-Type: application/json {"n": 1}',
        "Attempts 1 of 8",
    ):
        assert words in text.replace('{"n":1}', '{"n": 1}'), words
    assert "hush" not in page
    assert "curl -sS -i --globoff --path-as-is \\\n  -X POST" in unescape(page)


async def test_states_offer_what_they_allow_and_buttons_do_it(api: Api, worker: Worker, visitor: Visitor) -> None:
    """Run now, cancel, redrive, cancel after the attempt, abort; and what came of each is said."""
    job = await api.create(delay="1h")
    path = f"/jobs/{job['id']}"
    assert "Run now" in await visitor.get(path)
    assert await visitor.said(await visitor.post(f"{path}/run")) == "It is due now."
    assert (await api.job(job["id"]))["state"] == "ready"
    assert "does not allow this" in await visitor.said(await visitor.post(f"{path}/run"))
    assert "will not run" in await visitor.said(await visitor.post(f"{path}/cancel"))
    assert (await api.job(job["id"]))["state"] == "cancelled"
    assert "Redriven" in await visitor.said(await visitor.post(f"{path}/redrive"))
    await worker.claim()
    page = await visitor.get(path)
    assert "Cancel after this attempt" in page
    assert "Attempt 1 runs since" in page
    assert "runs at the moment" in await visitor.said(await visitor.post(f"{path}/abort"))
    assert "cancel requested" in await visitor.get(path)
    assert (await visitor.post(f"{path}/destroy")).status_code == 404
    assert (await visitor.post("/jobs/nonsense/run")).status_code == 404
    done = await api.create()
    await worker.succeed()
    page = await visitor.get(f"/jobs/{done['id']}")
    assert "<button" not in page.split('class="job-head"')[1].split("</header>")[0]
    assert "had already ended" in await visitor.said(await visitor.post(f"/jobs/{done['id']}/cancel"))


async def test_a_redrive_that_may_not_be_says_why(
    database: Database, api: Api, worker: Worker, visitor: Visitor
) -> None:
    """Its unique key is another's, or it has expired."""
    taken = await api.create(unique_key="k")
    await worker.bury()
    await api.create(unique_key="k", delay="1h")
    assert "unique key" in await visitor.said(await visitor.post(f"/jobs/{taken['id']}/redrive"))
    expired = await api.create()
    await worker.bury()
    await database.execute("update duly.job set expires_at = now() where id = $1", expired["id"])
    assert "expired" in await visitor.said(await visitor.post(f"/jobs/{expired['id']}/redrive"))


async def test_every_digit_is_shown(api: Api, operator: Visitor) -> None:
    """FO-043: Integers beyond 2^53 in the body, in metadata and in tags arrive on the page as they were, and in the
    command to copy.
    """
    number = 1970670598291982290
    job = await api.create(json={"id": number}, metadata={"id": number, "f": 0.1}, tags=[str(number)])
    page = unescape(await operator.get(f"/jobs/{job['id']}"))
    assert page.count(str(number)) >= 4
    assert f"--data-raw '{{\"id\": {number}}}'" in page
    assert f'"id": {number}' in page


async def test_dead_letters_lie_by_cause_and_are_redriven_by_it(
    database: Database, api: Api, worker: Worker, visitor: Visitor
) -> None:
    """Numbers in an error do not make another cause; another host or code does. A limit is kept, and what is left is
    said; the record says who did it.
    """
    for n in range(3):
        await api.create(url="https://a.acme.com/x")
        await fail(worker, Report("http_error", f"request {n} of 0x{n}f refused", 400), DeadReason.PERMANENT)
    await api.create(url="https://b.acme.com/x")
    await fail(worker, Report("http_error", "request 1 of 0xff refused", 400), DeadReason.PERMANENT)
    await api.create(url="https://a.acme.com/x")
    await fail(worker, Report("http_error", "request 1 of 0xff refused", 404), DeadReason.PERMANENT)
    page = await visitor.get("/dead")
    groups = re.findall(r"/dead/redrive\?group=([0-9a-f]+)", page)
    assert len(groups) == 3
    group = groups[0]
    assert page.count(f"group={group}") == 2
    assert text_of(await visitor.get(f"/dead?group={group}")).count("https://a.acme.com/x") == 3
    preview = text_of(await visitor.get(f"/dead/redrive?group={group}"))
    assert "Redrive 3 dead letters?" in preview
    assert "Try one first" in preview
    said = await visitor.said(await visitor.post("/dead/redrive", group=group, limit="2"))
    assert said == "Redriven: 2. There are more of the same cause: redrive again."
    said = await visitor.said(await visitor.post("/dead/redrive", group=group, limit="1000"))
    assert said == "Redriven: 1."
    assert (await visitor.post("/dead/redrive", group=group, limit="1")).status_code == 303
    await visitor.get(f"/dead/redrive?group={group}", 404)
    for limit in ("", "0", "1001", "-1", "x", "٣", "9" * 99):
        assert (await visitor.post("/dead/redrive", group=groups[1], limit=limit)).status_code == 400
    by = await database.fetch("select distinct redriven_by from duly.redrive")
    assert [row["redriven_by"].endswith("(dashboard)") for row in by] == [True]
    assert len((await overview.dead_letters(database, api.project.owner)).letters) == 2


async def test_a_cause_is_redriven_at_a_rate_by_an_operation(
    database: Database, address: str, api: Api, worker: Worker, visitor: Visitor, operator: Visitor
) -> None:
    """What matches its filter, one at a time as upkeep comes by; another host, code or error stays dead. How far it is
    stands on a page of its own, which another project does not see.
    """
    alike = []
    for n in range(3):
        alike.append((await api.create(url="https://a.acme.com:8443/x"))["id"])
        await fail(worker, Report("http_error", f"order {n} is not known here", 422), DeadReason.PERMANENT)
    for url, error, status in (
        ("https://a.acme.com/x", "order 1 is not known here", 422),
        ("https://a.acme.com:8443/x", "order 1 is not known here", 404),
        ("https://a.acme.com:8443/x", "order 1 was gone", 422),
    ):
        await api.create(url=url)
        await fail(worker, Report("http_error", error, status), DeadReason.PERMANENT)
    page = await visitor.get("/dead")
    group = page.split("redrive?group=")[1].split('"')[0]
    for limit, rate in (("3", ""), ("3", "0"), ("3", "1e2"), ("3", "nan"), ("3", "1001"), ("0", "1"), ("", "1")):
        assert (await visitor.post("/dead/redrive", group=group, limit=limit, rate=rate)).status_code == 400
    assert (await visitor.post("/dead/redrive", group="0" * 16, limit="3", rate="1")).status_code == 404
    what = "dead; status 422; error is not known here; url prefix https://a.acme.com:8443/"
    assert what in text_of(await visitor.get(f"/dead/redrive?group={group}"))
    asked = await visitor.post("/dead/redrive", group=group, limit="3", rate="1000")
    assert (asked.status_code, asked.headers["location"]) == (303, "/dashboard/operations")
    assert "goes on" in text_of(await visitor.get("/operations"))
    while await step_operation(database, 1, 100):
        pass
    await database.execute("update duly.operation set next_at = now()")
    for _ in range(5):
        await step_operation(database, 1, 100)
        await database.execute("update duly.operation set next_at = now() where finished_at is null")
    shown = text_of(await visitor.get("/operations"))
    assert what in shown
    assert "finished" in shown
    assert "3 of at most 3" in shown
    ready = await database.fetch("select job_id from duly.ready")
    assert sorted(str(row["job_id"]) for row in ready) == sorted(alike)
    assert what in text_of(await operator.get("/operations"))
    stranger = await new_api(database, api.client, "stranger")
    async with Visitor(address) as other:
        await other.sign_in(stranger.key)
        assert "acme" not in await other.get("/operations")


async def test_a_redrive_passes_by_what_may_not_go_and_goes_on_over_pages(
    database: Database, address: str, api: Api, worker: Worker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four letters looked at two at a time, one of them expired: three go."""
    ids = []
    for _ in range(4):
        ids.append((await api.create(url="https://a.acme.com/x"))["id"])
        await fail(worker, Report("error", "no"), DeadReason.PERMANENT)
    await database.execute("update duly.job set expires_at = now() where id = $1", ids[1])
    page = await visitor.get("/dead")
    group = page.split("redrive?group=")[1].split('"')[0]
    whole = overview.dead_letters

    async def two(db: Any, owner: Any, *, before: Any = None, look: int = 2) -> overview.DeadLetters:
        return await whole(db, owner, before=before, look=2)

    monkeypatch.setattr(overview, "dead_letters", two)
    page = await visitor.get("/dead")
    further = unescape(page.split('href="/dashboard/dead?before=')[1].split('"')[0])
    assert ids[0] in await visitor.get(f"/dead?before={further}")
    await visitor.get("/dead?before=x", 404)
    said = await visitor.said(await visitor.post("/dead/redrive", group=group, limit="10"))
    assert said.startswith("Redriven: 3. Not redriven")
    assert said.endswith(": 1.")


async def test_a_redrive_of_many_ends_in_time(
    database: Database, api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that there is more, and can be sent again."""
    await api.create()
    await worker.bury()

    async def for_ever(*_: Any, **__: Any) -> str:
        await database.fetchval("select pg_sleep(30)")
        return "redriven"

    monkeypatch.setattr(dead, "redrive", for_ever)
    viewer = Viewer(api.project.owner, frozenset({"write"}), None, "n", "s")
    [letter] = (await overview.dead_letters(database, api.project.owner)).letters

    class Parts:
        class services:  # noqa: N801
            pass

    parts: Any = Parts()
    parts.services.database = database
    done = await dead.redriven(parts, viewer, key_of(letter), 10, lasts_s=0.2)
    assert (done.redriven, done.is_whole) == (0, False)


async def test_breakers_and_workers_say_what_they_do(
    database: Database, api: Api, worker: Worker, operator: Visitor, visitor: Visitor
) -> None:
    """What is held and when the next probe goes; what runs where and for how long."""
    account, second = api.project.owner.account_id, timedelta(seconds=1)
    await breaker.open_breaker(database, account, "a.acme.com", 20, "timed out", 60 * second, 60 * second)
    await breaker.open_breaker(database, account, "b.acme.com", 20, None, second, -second)
    await breaker.open_breaker(database, account, "c.acme.com", 20, None, second, -second)
    await breaker.claim_probe(database, account, "c.acme.com", 60 * second)
    await breaker.open_breaker(database, account + 1000, "foreign.acme.com", 20, None, second, second)
    text = text_of(await visitor.get("/breakers"))
    assert re.search(r"a\.acme\.com timed out 20 .*? in (1 min|\d+ s)", text)
    assert "with the next job" in text
    assert "is out" in text
    assert "foreign" not in text
    assert "foreign.acme.com" in await operator.get("/breakers")
    job = await api.create(url="https://a.acme.com/slow")
    await worker.claim()
    page = await operator.get("/workers")
    assert job["id"] in page
    assert "1 of 10" in text_of(page)


async def test_hostile_texts_are_shown_as_text_everywhere(
    database: Database, api: Api, worker: Worker, operator: Visitor
) -> None:
    """Queue, tag, key, URL, header, body, metadata, error, answer, worker, breaker, account: what could be markup, or
    hide or turn the text beside it, is shown as itself on every page.
    """
    paths = await fill_with_hostile_texts(database, api, worker)
    group = (await operator.get("/dead")).split("redrive?group=")[1].split('"')[0]
    paths |= {f"/dead?group={group}": 4, f"/dead/redrive?group={group}": 2}
    for path, times in paths.items():
        page = await operator.get(path)
        assert "<script>w" not in page
        assert "<img" not in page
        assert not set("\u202e\u0007\u2028") & set(page), path
        assert "{{" not in page or "{{7*7}}" in page
        assert unescape(page).count(SHOWN) >= times, (path, unescape(page).count(SHOWN))


async def test_a_payload_of_another_kind_is_shown_to_who_may_see_it(
    database: Database, api: Api, operator: Visitor, visitor: Visitor
) -> None:
    """Not every job is an HTTP request."""
    job = NewJob("report", {"rows": [1, "zwei"]})
    await queue.enqueue(database, [(api.project.owner, job)])
    assert "zwei" in await operator.get(f"/jobs/{job.id}")
    page = await visitor.get(f"/jobs/{job.id}")
    assert "zwei" not in page
    assert "lacks the scope read_payloads" in page
    assert "curl" not in page


async def test_what_is_to_be_redacted_is_not_shown(api: Api, operator: Visitor) -> None:
    """Neither on the page nor in the command."""
    job = await api.create(body="hush", headers={"X-Hush": "hush"}, redact={"headers": ["x-hush"], "body": True})
    page = await operator.get(f"/jobs/{job['id']}")
    assert "X-Hush: ***" in page
    assert "the body is hidden" in page
    assert "--data-binary @BODY" in page
    assert "hush" not in page.replace("X-Hush", "")


async def test_a_database_that_does_not_answer_is_told(database: Database, visitor: Visitor) -> None:
    """503 as a page, with the headers of every other."""
    database.terminate()
    answer = await visitor.http.get("/dashboard/")
    assert answer.status_code == 503
    assert "The database does not answer" in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_fault_of_ours_is_a_page_without_a_word_about_it(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500, safe headers, and nothing of the exception."""

    async def broken(*_: Any, **__: Any) -> list[Any]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(jobs, "list_jobs", broken)
    answer = await visitor.http.get("/dashboard/jobs")
    assert answer.status_code == 500
    assert "Something went wrong" in answer.text
    assert "secret detail" not in answer.text
    assert answer.headers["content-security-policy"]


async def test_the_drill(database: Database, api: Api, worker: Worker, visitor: Visitor) -> None:
    """docs/how-to/drill.md by hand: a broken target fills the dead letters, the page says which, why and since
    when; once it is mended, a redrive empties them.
    """
    for _ in range(5):
        await api.create(url="https://shop.acme.com/orders")
        await fail(worker, Report("http_error", "the target answered 422", 422), DeadReason.PERMANENT)
    text = text_of(await visitor.get())
    assert "5 dead letters at shop.acme.com: the target answered 422 (since" in text
    link = unescape((await visitor.get()).split('href="/dashboard/dead/redrive')[1].split('"')[0])
    assert "Redrive 5 dead letters?" in await visitor.get(f"/dead/redrive{link}")
    group = link.rpartition("=")[2]
    assert await visitor.said(await visitor.post("/dead/redrive", group=group, limit="1")) == (
        "Redriven: 1. There are more of the same cause: redrive again."
    )
    await worker.succeed()
    assert await visitor.said(await visitor.post("/dead/redrive", group=group, limit="100")) == "Redriven: 4."
    for _ in range(4):
        await worker.succeed()
    assert "No dead letters." in await visitor.get("/dead")
    assert "dead letters at" not in text_of(await visitor.get())


async def test_a_job_that_has_ended_is_replayed(
    database: Database, api: Api, worker: Worker, operator: Visitor, visitor: Visitor
) -> None:
    """A copy under an id of its own, once however often the form is sent; by an operator for the job's project."""
    job = await api.create(json={"id": 1970670598291982290}, queue="mail", headers={"X-A": "b"}, tags=["blue"])
    assert "Replay…" not in await visitor.get(f"/jobs/{job['id']}")
    await visitor.get(f"/jobs/{job['id']}/replay", 409)
    assert (await visitor.post(f"/jobs/{job['id']}/replay", id=str(uuid7()))).status_code == 409
    await worker.succeed()
    for who in visitor, operator:
        assert f'href="/dashboard/jobs/{job["id"]}/replay"' in await who.get(f"/jobs/{job['id']}")
        page = await who.get(f"/jobs/{job['id']}/replay")
        copy = re.search(r'name="id" value="([0-9a-f-]+)"', page)
        assert copy
        for _ in range(2):
            answer = await who.post(f"/jobs/{job['id']}/replay", id=copy[1])
            assert answer.headers["location"] == f"/dashboard/jobs/{copy[1]}?said=replayed"
        made = await api.job(copy[1])
        assert (made["replay_of"], made["queue"], made["tags"]) == (job["id"], "mail", ["blue"])
        assert f"Replay of …{job['id'][-8:]}" in text_of(await who.get(f"/jobs/{copy[1]}"))
        claimed = await worker.claim()
        assert claimed.body == b'{"id": 1970670598291982290}'
    assert await database.fetchval("select count(*) from duly.job") == 3


async def test_a_replay_keeps_the_limits(
    database: Database, api: Api, worker: Worker, visitor: Visitor, operator: Visitor
) -> None:
    """The account's, the unique key's, the id's, and where jobs may go: each is told, and nothing is made."""
    job = await api.create(unique_key="k")
    await worker.succeed()
    await api.create(unique_key="k")
    path = f"/jobs/{job['id']}/replay"
    answer = await visitor.post(path, id=str(uuid7()))
    assert answer.status_code == 409
    assert "unique key" in answer.text
    for wrong in "", "x", "00000000-0000-4000-8000-000000000000", str(uuid7(0)), str(uuid7(2**47)):
        assert (await visitor.post(path, id=wrong)).status_code == 422
    await change_account(database, api.project.account_id, {"limits": {"stored": 1}})
    for who in visitor, operator:
        answer = await who.post(path, id=str(uuid7()))
        assert answer.status_code == 429
    await change_account(database, api.project.account_id, {"limits": {}})
    await database.execute('update duly.job set payload = payload || \'{"url": "http://10.0.0.1/"}\'')
    assert "may not be called any more" in (await visitor.post(path, id=str(uuid7()))).text
    assert await database.fetchval("select count(*) from duly.job") == 2


async def test_who_may_replay(database: Database, address: str, api: Api, worker: Worker, visitor: Visitor) -> None:
    """Another project's job is not there; without the scope write or the token it is refused."""
    job = await api.create()
    await worker.succeed()
    stranger = await new_api(database, api.client, "second")
    reader = await create_key(database, api.project.owner.project_id, "reader", scopes=["read"])
    async with Visitor(address) as other, Visitor(address) as looking:
        await other.sign_in(stranger.key)
        await other.get(f"/jobs/{job['id']}/replay", 404)
        assert (await other.post(f"/jobs/{job['id']}/replay", id=str(uuid7()))).status_code == 404
        await looking.sign_in(reader.key)
        assert "Replay…" not in await looking.get(f"/jobs/{job['id']}")
        assert (await looking.post(f"/jobs/{job['id']}/replay", id=str(uuid7()))).status_code == 403
    answer = await visitor.http.post(f"/dashboard/jobs/{job['id']}/replay", data={"id": str(uuid7())})
    assert answer.status_code == 403
    assert await database.fetchval("select count(*) from duly.job") == 1
