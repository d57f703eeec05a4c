"""A browser without JavaScript: cookies, pages, forms with the token that the page carries."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import UUID

import httpx

from api.harness import TARGET, Api, Worker
from duly import queue
from duly.model import DeadReason, NewJob, Report, Settlement
from duly.queue import Database, QueueSettings, breaker, settle
from duly.service import NO_KEYRING
from duly.service.fire_plan import Policy
from duly.service.schedules import NewSchedule, create_schedule
from duly.service.templates import Template
from duly.service.timing import Timing

COOKIE = "duly_session"

HOSTILE = "<script>window.pwned=1</script>\"'><img src=x onerror=window.pwned=1>{{7*7}}\u202e\u0007\u2028"
SHOWN = HOSTILE.replace("\u202e", "\\u{202e}").replace("\u0007", "\\u{7}").replace("\u2028", "\\u{2028}")


class Visitor:
    """Somebody who looks at the dashboard of one address."""

    def __init__(self, address: str) -> None:
        self.http = httpx.AsyncClient(base_url=address, timeout=30)
        self.csrf = ""

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def sign_in(self, key: str, **options: Any) -> httpx.Response:
        return await self.http.post("/dashboard/sign-in", data={"key": key}, **options)

    async def get(self, path: str = "/", status: int = 200, **options: Any) -> str:
        """A page's markup; remembers the token for forms."""
        answer = await self.http.get(f"/dashboard{path}", **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if found := re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text):
            self.csrf = found[1]
        return answer.text

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form as the page would."""
        if not self.csrf:
            await self.get()
        return await self.http.post(f"/dashboard{path}", data={"csrf": self.csrf, **fields})

    async def said(self, answer: httpx.Response) -> str:
        """What the page to which an action leads says."""
        assert answer.status_code == 303, (answer.status_code, answer.text)
        page = await self.get(answer.headers["location"].removeprefix("/dashboard"))
        found = re.search(r'<p class="said" role="status">(.*?)</p>', page)
        assert found, page
        return unescape(found[1])

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get(COOKIE)


def text_of(page: str) -> str:
    """The words of a page, as a reader sees them."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


async def fail(worker: Worker, report: Report, reason: DeadReason | None = None) -> None:
    """The next job's attempt: dead for a reason, or to be retried in an hour."""
    job = await worker.claim()
    edge: Any = "retry" if reason is None else "dead"
    settlement = Settlement(job.id, job.attempt, edge, delay=timedelta(hours=1), reason=reason, report=report)
    assert not await settle(worker.database, worker.id, [settlement])


async def new_schedule(database: Database, api: Api, name: str | None = None, **options: Any) -> UUID:
    """A schedule of the project, every hour unless something else is said."""
    now = await queue.server_now(database)
    timing = options.pop("timing", None) or Timing(now, every=timedelta(hours=1))
    template = options.pop("template", None) or Template("http", {"url": TARGET, "method": "POST", "headers": []})
    new = NewSchedule(timing, options.pop("policy", Policy()), template, name, **options)
    schedule, _ = await create_schedule(database, api.project.owner, new, keyring=NO_KEYRING, now=now)
    return schedule.id


async def park(database: Database, schedule: UUID, why: str) -> None:
    """Take a schedule out of the calendar, as a fire that cannot be made does."""
    await database.execute(
        """update duly.schedule_turn set state = 'parked', parked_why = $2, next_fire_at = null, look_at = null
            where schedule_id = $1""",
        schedule,
        why,
    )


async def fill_with_hostile_texts(database: Database, api: Api, worker: Worker) -> dict[str, int]:
    """A hostile text in every field that shows on a page; the pages, and how often each shows it at least."""
    payload = {"url": f"https://h.acme.com/{HOSTILE}", "method": HOSTILE, "headers": [["x-a", HOSTILE], [HOSTILE, "v"]]}
    new = NewJob(
        "http",
        payload,
        HOSTILE.encode(),
        queue=HOSTILE,
        tags=(HOSTILE,),
        metadata={HOSTILE: HOSTILE},
        concurrency_key=HOSTILE,
    )
    for job in new, NewJob("http", payload, queue=HOSTILE):
        await queue.enqueue(database, [(api.project.owner, job)])
    detail = {"response_headers": [["x-b", HOSTILE]], "phases": {HOSTILE: 1, "dns": HOSTILE}, "remote_address": HOSTILE}
    report = Report(HOSTILE, HOSTILE, 200, excerpt=HOSTILE.encode(), detail=detail)
    await fail(worker, report, DeadReason.PERMANENT)
    await worker.claim()
    await database.execute("update duly.worker set name = $1, queues = array[$1]", HOSTILE)
    await database.execute("update duly.account set name = $1", HOSTILE)
    await queue.set_queue(database, api.project.owner.project_id, HOSTILE, QueueSettings(1))
    second = timedelta(seconds=1)
    await breaker.open_breaker(database, api.project.owner.account_id, HOSTILE, 1, HOSTILE, second, second)
    schedule = await new_schedule(
        database, api, HOSTILE, template=Template("http", payload, queue=HOSTILE, tags=(HOSTILE,))
    )
    await park(database, schedule, HOSTILE)
    await database.execute(
        """insert into duly.fire (schedule_id, fire_at, trigger, outcome, why)
           values ($1, now(), 'manual', 'skipped', $2)""",
        schedule,
        HOSTILE,
    )
    await database.execute("update duly.project set name = $1", HOSTILE)
    await database.execute("update duly.api_key set name = $1, hint = $1", HOSTILE)
    await database.execute("insert into duly.plan (name, limits) values ($1, '{}')", HOSTILE)
    await database.execute("update duly.account set plan = $1", HOSTILE)
    key = await database.fetchval("select id from duly.api_key")
    project = f"project={api.project.id}"
    return {
        "/schedules": 3,
        f"/schedules/{schedule}": 6,
        f"/queues/one?name=a&{project}": 1,
        "/accounts": 3,
        f"/accounts/{api.project.account_id}": 3,
        f"/accounts/{api.project.account_id}/disable": 2,
        "/keys": 2,
        f"/keys?{project}": 4,
        f"/keys/{key}/revoke": 3,
        f"/secrets?{project}": 2,
        f"/jobs/{new.id}/replay": 3,
        "/": 5,
        "/jobs": 4,
        "/dead": 4,
        "/queues": 2,
        "/workers": 3,
        "/breakers": 2,
        f"/jobs/{new.id}": 9,
        "/jobs?queue=%3Cscript%3E%22%27&tag=%3Cscript%3E": 0,
    }
