"""Schedules on the pages: when they fire, what became of their fires, and what is done about them by hand."""

from __future__ import annotations

import re
from datetime import timedelta

import httpx
import pytest

from api.harness import Api, Worker, new_api
from dashboard.harness import Visitor, new_schedule, park, text_of
from duly.dashboard import schedules
from duly.model import uuid7
from duly.queue import Database, server_now
from duly.service import create_key
from duly.service.firing import Firer
from duly.service.schedules import get_schedule
from duly.service.templates import Template
from duly.service.timing import Timing

MINUTE = timedelta(minutes=1)


async def test_a_list_says_when_each_fires_and_what_became_of_its_last_fire(
    database: Database, api: Api, worker: Worker, visitor: Visitor
) -> None:
    """The job of the fire as it stands now; nothing of other projects."""
    now = await server_now(database)
    await new_schedule(database, api, "daily", timing=Timing(now, cron="0 4 * * *", timezone="Europe/Berlin"))
    fired = await new_schedule(database, api, "fired", timing=Timing(now - MINUTE, every=MINUTE))
    await database.execute(
        "update duly.schedule_turn set next_fire_at = $2, look_at = $2 where schedule_id = $1", fired, now
    )
    await Firer(database).step()
    await worker.bury()
    text = text_of(await visitor.get("/schedules"))
    assert re.search(r"daily active 0 4 \* \* \* Europe/Berlin \d{4}-\d\d-\d\d 0[23]:00:00 in .*? –", text)
    assert re.search(r"fired active every 1m \d{4}-\d\d-\d\d .*? ago …[0-9a-f]{8} dead permanent failure", text)
    assert "daily" not in await visitor.get("/schedules?state=paused")
    stranger = await new_api(database, api.client, "second")
    async with Visitor(str(api.client.base_url)) as other:
        await other.sign_in(stranger.key)
        assert "No schedule yet" in await other.get("/schedules")


async def test_what_is_parked_or_late_is_red_and_says_why(
    database: Database, api: Api, visitor: Visitor, operator: Visitor
) -> None:
    """In the list and on its page; one that waits for its job is not late."""
    parked, late, waits = [await new_schedule(database, api, name) for name in ("parked", "late", "waits")]
    await park(database, parked, "its target may not be called")
    await database.execute(
        "update duly.schedule_turn set next_fire_at = now() - interval '5 minutes' where schedule_id = any ($1)",
        [late, waits],
    )
    await database.execute("update duly.schedule_turn set waiting_since = now() where schedule_id = $1", waits)
    page = await visitor.get("/schedules")
    assert '<span class="chip dead">parked</span>' in page
    text = text_of(page)
    assert "parked parked its target may not be called" in text
    assert "late late due for 5 min" in text
    assert "waits waits every" in text
    assert "late first / default late" in text_of(await operator.get("/schedules"))
    text = text_of(await visitor.get(f"/schedules/{parked}"))
    assert "Parked: it cannot fire. its target may not be called" in text
    assert "None: it is parked." in text
    assert "Late: it is due for 5 min" in text_of(await visitor.get(f"/schedules/{late}"))
    assert "Its fire waits since" in text_of(await visitor.get(f"/schedules/{waits}"))


async def test_a_schedule_shows_its_next_fires_and_its_ledger(
    database: Database, api: Api, worker: Worker, visitor: Visitor
) -> None:
    """Ten fires ahead or a hundred; each fire with its job, or why there is none, page by page."""
    schedule = await new_schedule(database, api, "hourly")
    page = await visitor.get(f"/schedules/{schedule}")
    assert page.count('<li><time datetime="') == 10
    assert re.search(r"in (59 min \d+ s|1 h) .*? in (9 h 59 min|10 h) The next 100", text_of(page))
    assert (await visitor.get(f"/schedules/{schedule}?count=all")).count('<li><time datetime="') == 100
    assert "None yet." in page
    await visitor.post(f"/schedules/{schedule}/run")
    await worker.succeed()
    await database.execute(
        """insert into duly.fire (schedule_id, fire_at, trigger, outcome, covers, why)
           select $1, now() - n * interval '1 hour', 'schedule', 'missed', 200, 'n' || n || '.'
           from generate_series(1, 60) n""",
        schedule,
    )
    page = await visitor.get(f"/schedules/{schedule}")
    text = text_of(page)
    assert re.search(r"…[0-9a-f]{8} succeeded hand key [0-9a-f-]{36} \(dashboard\)", text)
    assert "missed 200+ fires calendar n1." in text
    assert "n50." not in text
    further = page.split(f"/schedules/{schedule}?before=")[1].split('"')[0]
    text = text_of(await visitor.get(f"/schedules/{schedule}?before={further}"))
    assert "n50." in text
    assert "n49." not in text
    await visitor.get(f"/schedules/{schedule}?before=x", 404)
    await visitor.get(f"/schedules/{schedule}?before=2026-01-01T00:00:00", 404)


async def test_pausing_resuming_and_running(database: Database, api: Api, worker: Worker, visitor: Visitor) -> None:
    """Each as by the API: the ledger says who ran it, a parked one that may go on does, an ended one is told apart."""
    schedule = await new_schedule(database, api, "s")
    await visitor.get(f"/schedules/{schedule}")
    said = await visitor.said(await visitor.post(f"/schedules/{schedule}/pause"))
    assert said == "Paused: no fires until it is resumed."
    assert (await _state(database, schedule))[0] == "paused"
    assert await visitor.said(await visitor.post(f"/schedules/{schedule}/resume")) == "It fires again."
    await park(database, schedule, "why")
    assert await visitor.said(await visitor.post(f"/schedules/{schedule}/resume")) == "It fires again."
    assert (await _state(database, schedule))[0] == "active"
    said = await visitor.said(await visitor.post(f"/schedules/{schedule}/run"))
    assert said == "A job was made of it; it is the first fire below."
    await worker.succeed()
    by = await database.fetchval("select why from duly.fire where schedule_id = $1", schedule)
    assert by.endswith("(dashboard)")
    await database.execute("update duly.schedule_turn set state = 'ended', next_fire_at = null, look_at = null")
    for action in "pause", "resume":
        answer = await visitor.post(f"/schedules/{schedule}/{action}")
        assert answer.status_code == 409
        assert "The schedule is ended" in answer.text
    assert (await visitor.post(f"/schedules/{schedule}/bogus")).status_code == 404


async def test_what_cannot_fire_is_not_resumed(database: Database, api: Api, visitor: Visitor) -> None:
    """Its target is no URL: the page says what is to be mended, and it stays parked."""
    template = Template("http", {"url": "gopher://x", "method": "POST", "headers": []})
    schedule = await new_schedule(database, api, "s", template=template)
    await park(database, schedule, "why")
    for action in "resume", "run":
        answer = await visitor.post(f"/schedules/{schedule}/{action}")
        assert answer.status_code == 422
        assert "Job url" in answer.text
    assert (await _state(database, schedule))[0] == "parked"
    assert await database.fetchval("select count(*) from duly.fire") == 0


async def test_a_rule_that_cannot_be_read_is_a_page(database: Database, api: Api, visitor: Visitor) -> None:
    """A cron of no hand of ours: told, not failed on."""
    schedule = await new_schedule(database, api, "s")
    await database.execute("update duly.schedule set cron = 'bogus', every = null")
    assert "Its rule cannot be read." in await visitor.get(f"/schedules/{schedule}")
    assert "bogus" in await visitor.get("/schedules")


async def test_who_may_do_what(database: Database, address: str, api: Api, visitor: Visitor) -> None:
    """Somebody else's and what is none: 404. Without the scope write: 403, and no button. Without the token: 403."""
    schedule = await new_schedule(database, api, "mine")
    stranger = await new_api(database, api.client, "second")
    foreign = await new_schedule(database, stranger, "foreign")
    for place in str(foreign), str(uuid7()), "x":
        await visitor.get(f"/schedules/{place}", 404)
        assert (await visitor.post(f"/schedules/{place}/run")).status_code == 404
    for query in f"project={stranger.project.id}", "project=x", "before=x":
        await visitor.get(f"/schedules?{query}", 404)
    reader = await create_key(database, api.project.owner.project_id, "reader", scopes=["read"])
    async with Visitor(address) as looking:
        await looking.sign_in(reader.key)
        assert "Run now" not in await looking.get(f"/schedules/{schedule}")
        assert (await looking.post(f"/schedules/{schedule}/run")).status_code == 403
    for csrf in {"csrf": ""}, {"csrf": "0" * 64}:
        answer: httpx.Response = await visitor.http.post(f"/dashboard/schedules/{schedule}/pause", data=csrf)
        assert answer.status_code == 403
    assert await _state(database, schedule) == ("active", 0)
    assert await _state(database, foreign) == ("active", 0)


async def test_an_operator_sees_those_of_all_or_of_one_project(
    database: Database, api: Api, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And runs one for its project; the next page follows."""
    stranger = await new_api(database, api.client, "second")
    schedule = await new_schedule(database, stranger, "other's")
    await new_schedule(database, api, "first's")
    text = text_of(await operator.get("/schedules"))
    assert "first's" in text
    assert "other's second / default" in text
    text = text_of(await operator.get(f"/schedules?project={stranger.project.id}"))
    assert "first's" not in text
    assert "other's" in text
    await operator.get(f"/schedules?project={uuid7()}", 404)
    await operator.said(await operator.post(f"/schedules/{schedule}/run"))
    assert await database.fetchval("select why from duly.fire") == "operator (dashboard)"
    assert await database.fetchval("select project_id from duly.job") == stranger.project.owner.project_id
    monkeypatch.setattr(schedules, "PAGE", 1)
    page = await operator.get("/schedules")
    assert "other's" not in text_of(page)
    assert "other's" in text_of(await operator.get("/schedules?before=" + page.split("?before=")[1].split('"')[0]))


async def _state(database: Database, schedule: object) -> tuple[str, int]:
    found = await get_schedule(database, schedule, None)  # type: ignore[arg-type]
    assert found is not None

    return found.state, await database.fetchval("select count(*) from duly.fire where schedule_id = $1", schedule)
