"""A browser without JavaScript: cookies, pages, forms with the token that the page carries."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import httpx

from api.harness import Api, Worker
from duly import queue
from duly.model import DeadReason, NewJob, Report, Settlement
from duly.queue import Database, QueueSettings, breaker, settle

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
    return {
        "/": 5,
        "/jobs": 4,
        "/dead": 4,
        "/queues": 2,
        "/workers": 3,
        "/breakers": 2,
        f"/jobs/{new.id}": 9,
        "/jobs?queue=%3Cscript%3E%22%27&tag=%3Cscript%3E": 0,
    }
