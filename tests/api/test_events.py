"""GET /v1/events: what happens, to those who listen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from api.harness import Api, Worker, assert_problem, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.model import NewJob, Report, uuid7
from duly.queue import Database, Event, enqueue, events_between, server_now
from duly.service import list_keys, revoke_key
from duly.service.listening import ROOM, EventHub, Listener
from support.engine import Engine


class Stream:
    """The events of one open stream, read as they come."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()
        self.comments = 0

    async def next(self, limit_s: float = 15) -> dict[str, Any]:
        """The next event: id, event and data."""
        fields: dict[str, Any] = {}
        async with asyncio.timeout(limit_s):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    return {**fields, "data": json.loads(fields["data"])}
        raise EOFError

    async def take(self, n: int) -> list[dict[str, Any]]:
        return [await self.next() for _ in range(n)]


@asynccontextmanager
async def listening(api: Api, last: str | None = None) -> AsyncIterator[Stream]:
    headers = {"authorization": f"Bearer {api.key}", **({} if last is None else {"last-event-id": last})}
    async with api.client.stream("GET", "/v1/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = Stream(answer)
        async for line in stream._lines:
            if line.startswith("retry:"):  # it is listened to from here on
                break
        yield stream


async def test_the_life_of_a_job(api: Api, worker: Worker) -> None:
    """Made, failed, succeeded: each told once with what matters of it; nothing of another project."""
    stranger = await new_api_beside(api, worker.database)
    async with listening(api) as stream:
        job = await api.create(queue="mail")
        first = await stream.next()
        assert first["event"] == first["data"]["type"] == "job.created"
        assert (first["data"]["job_id"], first["data"]["queue"]) == (job["id"], "mail")
        await worker.fail(Report("http_error", "no", 503))
        second = await stream.next()
        assert (second["event"], second["data"]["attempt"], second["data"]["status_code"]) == ("attempt.ended", 1, 503)
        assert second["data"]["next_run_at"] is not None
        other = await stranger.create(delay=3600)
        await api.post(f"/v1/jobs/{job['id']}/run")
        await worker.succeed()
        rest = await stream.take(2)
        assert sorted(event["event"] for event in rest) == ["attempt.ended", "job.succeeded"]
        cancelled = await api.create(delay=3600)
        await api.post(f"/v1/jobs/{cancelled['id']}/cancel")
        ended = await stream.take(2)
        assert [event["event"] for event in ended] == ["job.created", "job.cancelled"]
        assert other["id"] not in json.dumps([first, second, *rest, *ended])


async def new_api_beside(api: Api, database: Database) -> Api:
    return await new_api(database, api.client, "stranger")


async def test_a_stream_is_resumed(api: Api) -> None:
    """What happened while nobody listened comes first, at least once, from the last id on."""
    async with listening(api) as stream:
        await api.create()
        last = (await stream.next())["id"]
    missed = [(await api.create())["id"] for _ in range(3)]
    async with listening(api, last) as stream:
        seen: set[str] = set()
        while not set(missed) <= seen:
            seen.add((await stream.next())["data"]["job_id"])


@pytest.mark.parametrize("last", ["x", "1-2-3", "99999999999999999-job.created-0-" + "a" * 36, "-1-job.created-0-a"])
async def test_ids_that_are_none(api: Api, last: str) -> None:
    """422: resuming from nowhere would lose events in silence."""
    headers = {"authorization": f"Bearer {api.key}", "last-event-id": last}
    assert_problem(await api.client.get("/v1/events", headers=headers), 422)


async def test_nobody_listening_costs_nothing(database: Database) -> None:
    """One poll for all who listen; none once the last has gone."""
    engine = await Engine.start(database)
    hub = EventHub(database, every_s=0.01)
    project = engine.owner.project_id
    async with hub.listening(project) as one, hub.listening(project) as two:
        [job_id] = await engine.enqueue()
        for listener in (one, two):
            async with asyncio.timeout(10):
                assert (await listener.events.get()).job_id == job_id
        before = hub.polls_total
        async with asyncio.timeout(10):
            while hub.polls_total == before:
                await asyncio.sleep(0.01)
        assert one.events.empty()  # told once, although each look overlaps the last
    polls = hub.polls_total
    await asyncio.sleep(0.1)
    assert hub.polls_total == polls
    async with hub.listening(project) as again:
        await engine.enqueue()
        async with asyncio.timeout(10):
            await again.events.get()


async def drained(listener: Listener) -> None:
    """What happened shortly before it listened is told, too."""
    async with asyncio.timeout(10):
        await listener.events.get()


async def test_what_commits_late_is_told(database: Database) -> None:
    """A job that was made a moment before the last look and committed after it."""
    engine = await Engine.start(database)
    await engine.enqueue()  # its lane is there
    hub = EventHub(database, every_s=0.01)
    async with hub.listening(engine.owner.project_id) as listener:
        await drained(listener)
        async with database.transaction() as session:
            late = await engine.enqueue_on(session)
            [early] = await engine.enqueue()
            async with asyncio.timeout(10):
                assert (await listener.events.get()).job_id == early
        async with asyncio.timeout(10):
            assert (await listener.events.get()).job_id == late


async def test_a_slow_listener_is_cut(database: Database) -> None:
    """What it may keep waiting is bounded: it is told nothing more, and others go on."""
    now = await server_now(database)
    listener = Listener(1)
    some = Event(1, now, "job.created", uuid7(), 0, "q", None, None, None, None, None)
    for _ in range(ROOM):
        listener.tell(some)
    assert (listener.cut, listener.events.qsize()) == (False, ROOM)
    listener.tell(some)
    listener.tell(some)
    assert (listener.cut, listener.events.qsize()) == (True, ROOM)


async def test_it_ends_with_the_server(database: Database) -> None:
    """A stop does not wait for those who listen."""
    server = ApiServer(create_app(database, EgressPolicy.parse(allow_loopback=True), ApiSettings()))
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        api = await new_api(database, client, "first")
        async with listening(api) as stream:
            async with asyncio.timeout(5):
                await server.stop()
            with pytest.raises((EOFError, httpx.HTTPError)):
                await stream.next()


async def test_it_ends_with_the_key(api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments keep the connection alive; a key that was revoked is refused at the next one."""
    monkeypatch.setattr("duly.api.events.KEEP_ALIVE_S", 0.05)
    async with listening(api) as stream:
        await api.create()
        await stream.next()
        [key] = await list_keys(database, api.project.owner.project_id)
        await revoke_key(database, api.project.owner.project_id, key.id)
        with pytest.raises(EOFError):
            await stream.next()
    assert stream.comments > 0


async def test_it_ends_with_the_key_while_something_happens_all_the_time(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is looked up now and then, not only in silence."""
    monkeypatch.setattr("duly.api.events.ALLOWED_S", 0.0)
    async with listening(api) as stream:
        await api.create()
        await stream.next()
        [key] = await list_keys(database, api.project.owner.project_id)
        await revoke_key(database, api.project.owner.project_id, key.id)
        await enqueue(database, [(api.project.owner, NewJob("k", {}))])
        with pytest.raises(EOFError):
            await stream.next()


async def test_a_look_is_bounded(database: Database) -> None:
    """The oldest first, at most as many as asked for, from a moment until another."""
    engine = await Engine.start(database)
    start = await server_now(database)
    ids = await engine.enqueue(10)
    end = await server_now(database)
    await engine.enqueue(5)
    events = await events_between(database, [engine.owner.project_id], start, end, 4)
    assert len(events) == 4
    events = await events_between(database, [engine.owner.project_id], start, end, 100)
    assert sorted(event.job_id for event in events) == sorted(ids)
    assert await events_between(database, [engine.owner.project_id + 1], start, end, 100) == []
