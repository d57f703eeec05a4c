"""Queues on the pages: what is set for them, and setting it, by the API's rules."""

from __future__ import annotations

from datetime import timedelta
from html import unescape

from api.harness import Api, Worker, new_api
from dashboard.harness import Visitor, text_of
from duly import queue
from duly.dashboard.queues import fields_of
from duly.model import Backoff, JobDefaults, uuid7
from duly.queue import Database, QueueSettings, Rate, get_queue
from duly.service import create_key

SECOND = timedelta(seconds=1)
STEPS = Backoff("steps", max=3600 * SECOND, steps=(SECOND, 60 * SECOND))
WHOLE = QueueSettings(
    20,
    1,
    rate=Rate(100, 60 * SECOND),
    defaults=JobDefaults(10 * SECOND, 5, STEPS, 7200 * SECOND, (404, "5xx")),
)


async def test_queues_show_limits_and_pauses(database: Database, api: Api, worker: Worker, visitor: Visitor) -> None:
    """Those with settings only, too; rates and defaults beside."""
    project = api.project.owner.project_id
    await queue.set_queue(database, project, "paused", QueueSettings(paused=True))
    await queue.set_queue(database, project, "full", QueueSettings(1, 1))
    await queue.set_queue(database, project, "whole", WHOLE)
    await api.create(queue="full")
    await worker.claim()
    await api.create(queue="open")
    text = text_of(await visitor.get("/queues"))
    assert "open open 1" in text
    assert "full at its limit 0 – 1 1 1 none –" in text
    assert "paused paused 0 – 0 none none none –" in text
    assert "whole open 0 – 0 20 1 100 / 1m 10s each · 5 attempts · steps backoff · 2h in all · on 404, 5xx" in text


async def test_a_form_sent_as_it_came_changes_nothing(database: Database, api: Api, visitor: Visitor) -> None:
    """Every setting survives being shown and set again, for each kind of backoff; a pause stays."""
    project = api.project.owner.project_id
    backoffs = [
        Backoff("exponential", 5 * SECOND, 3.5, 60 * SECOND, 0.25),
        Backoff("linear", 5 * SECOND, max=60 * SECOND),
        Backoff("fixed", 5 * SECOND, max=60 * SECOND),
        STEPS,
        None,
    ]
    for backoff in backoffs:
        for on in (404, "5xx"), "all_non_2xx", "default", None:
            defaults = JobDefaults(10 * SECOND, 5, backoff, 7200 * SECOND, on)
            settings = QueueSettings(20, 1, True, Rate(100, 60 * SECOND), defaults)
            await queue.set_queue(database, project, "a/b:c", settings)
            page = await visitor.get("/queues/one?name=a/b:c")
            fields = fields_of(settings)
            for name, value in fields.items():
                assert name == "kind" or f'name="{name}" value="{value}"' in unescape(page), name
            answer = await visitor.post("/queues/one", name="a/b:c", **fields)
            assert await visitor.said(answer) == "Set. It binds from now on; what runs goes on."
            assert await get_queue(database, project, "a/b:c") == settings
    await visitor.said(await visitor.post("/queues/one", name="a/b:c"))
    assert await get_queue(database, project, "a/b:c") == QueueSettings(paused=True)


async def test_new_jobs_take_what_was_just_set(api: Api, visitor: Visitor) -> None:
    """At once, in this process."""
    assert (await api.create(queue="mail"))["retry"]["max_attempts"] == 8
    await visitor.said(await visitor.post("/queues/one", name="mail", max_attempts=" 3 "))
    assert (await api.create(queue="mail"))["retry"]["max_attempts"] == 3
    said = await visitor.said(await visitor.post("/queues/unset", name="mail"))
    assert said == "Nothing is set for it any more."
    assert (await api.create(queue="mail"))["retry"]["max_attempts"] == 8
    assert (await visitor.post("/queues/unset", name="mail")).status_code == 404


async def test_what_is_wrong_is_said_beside_the_form(database: Database, api: Api, visitor: Visitor) -> None:
    """All of it, by the API's rules, what was written stays, nothing is stored."""
    wrong = {"concurrency": "0", "key_concurrency": "x", "rate": "9", "timeout": "soon", "max_attempts": "51"}
    answer = await visitor.post("/queues/one", name="mail", **wrong, on="200", jitter="2", kind="fixed", factor="2")
    assert answer.status_code == 422
    text = text_of(answer.text)
    for words in (
        "Concurrency must be greater",
        "Key concurrency",
        "Rate must be",
        "Timeout must be",
        "Retry max attempts",
    ):
        assert words in text, words
    assert "Retry on must be" in text
    assert "Retry backoff" in text
    assert 'name="timeout" value="soon"' in answer.text
    for huge in "9" * 400, "1e999", "nan", "inf", "٣":
        assert (await visitor.post("/queues/one", name="mail", concurrency=huge, jitter=huge)).status_code == 422
    assert await database.fetchval("select count(*) from duly.queue") == 0


async def test_pausing_and_resuming(database: Database, api: Api, visitor: Visitor) -> None:
    """A queue that never had a job, too."""
    project = api.project.owner.project_id
    assert "it has never had a job" in await visitor.get("/queues/one?name=mail")
    said = await visitor.said(await visitor.post("/queues/pause", name="mail"))
    assert said == "Paused: none of its jobs starts. What runs goes on."
    assert (await get_queue(database, project, "mail")).paused
    await visitor.said(await visitor.post("/queues/resume", name="mail"))
    assert not (await get_queue(database, project, "mail")).paused
    assert (await visitor.post("/queues/bogus", name="mail")).status_code == 404


async def test_who_may_do_what(database: Database, address: str, api: Api, visitor: Visitor, operator: Visitor) -> None:
    """Another project's: 404; what can be no name: 404 and 422; without the scope write: 403, and no button; without
    the token: 403. An operator names the project.
    """
    stranger = await new_api(database, api.client, "second")
    foreign = str(stranger.project.id)
    for project in foreign, str(uuid7()), "x":
        await visitor.get(f"/queues/one?name=mail&project={project}", 404)
        await visitor.get(f"/queues?project={project}", 404)
        for action in "one", "pause", "unset":
            assert (await visitor.post(f"/queues/{action}", name="mail", project=project)).status_code == 404
    for name in "", "-", "a b", "<script>", "x" * 101, "a\x00":
        await visitor.get("/queues/one", 404, params={"name": name})
        assert (await visitor.post("/queues/pause", name=name)).status_code == 422
    reader = await create_key(database, api.project.owner.project_id, "reader", scopes=["read"])
    async with Visitor(address) as looking:
        await looking.sign_in(reader.key)
        page = await looking.get("/queues/one?name=mail")
        assert "lacks the scope write" in page
        assert "<fieldset disabled>" in page
        for action in "one", "pause", "unset":
            assert (await looking.post(f"/queues/{action}", name="mail")).status_code == 403
    for action in "one", "pause":
        assert (await visitor.http.post(f"/dashboard/queues/{action}", data={"name": "mail"})).status_code == 403
    assert await database.fetchval("select count(*) from duly.queue") == 0
    assert (await operator.post("/queues/pause", name="mail")).status_code == 404
    await operator.said(await operator.post("/queues/pause", name="mail", project=foreign))
    assert (await get_queue(database, stranger.project.owner.project_id, "mail")).paused
    assert "mail" in await operator.get(f"/queues?project={foreign}")
    assert "mail" not in await operator.get(f"/queues?project={api.project.id}")
    await api.create(queue="news")
    link = unescape((await operator.get("/queues")).split("/dashboard/queues/one")[1].split('"')[0])
    assert link == f"?name=news&project={api.project.id}"
