"""The pages in a real browser: every page and action, live, by keyboard, at 360 pixels, in the dark, and by axe's
rules of accessibility.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from api.harness import Api, Worker
from dashboard.harness import SHOWN, Visitor, fail, fill_with_hostile_texts, new_schedule, park
from duly import queue
from duly.cli.parts import WorkerSettings, work
from duly.http import EgressPolicy
from duly.model import Backoff, DeadReason, JobDefaults, Report
from duly.queue import Database, QueueSettings, Rate, breaker, server_now
from duly.service import (
    SCOPES,
    authenticate,
    change_account,
    create_account,
    create_key,
    disable_account,
    list_secrets,
    put_plan,
    revoke_key,
    rotate_secret,
)
from duly.service.schedules import list_fires, pause_schedule
from duly.service.sessions import make_operator_token
from duly.service.timing import Timing
from support.recording_target import Received, recording_target

CHROMIUM = os.environ.get("DULY_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
LIMIT_MS = 20_000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium, or set DULY_CHROMIUM"),
    pytest.mark.timeout(240),
]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # no sandbox: it needs rights that containers lack; the pages are ours
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


class Window:
    """One tab, signed in. `complaints`: what the browser's console said; it must stay empty."""

    def __init__(self, page: Page, home: str) -> None:
        self.page = page
        self.home = home
        self.complaints: list[str] = []
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.set_default_timeout(LIMIT_MS)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    async def open(self, path: str = "/") -> None:
        answer = await self.page.goto(self.home + path)
        assert answer is not None
        assert answer.status == 200, (path, answer.status)

    async def go(self, key: str, path: str) -> None:
        """To a page by its key, once this one's script listens."""
        await self.page.wait_for_load_state()
        await self.page.evaluate("document.activeElement.blur()")
        await self.page.keyboard.press("g")
        await self.page.keyboard.press(key)
        await self.page.wait_for_url(self.home + path)

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def shows(self, words: str | re.Pattern[str]) -> None:
        await expect(self.page.get_by_text(words).first).to_be_visible(timeout=LIMIT_MS)


@asynccontextmanager
async def window(browser: Browser, address: str, key: str, **options: Any) -> AsyncIterator[Window]:
    """Sign in by hand, at the form."""
    context: BrowserContext = await browser.new_context(**options)
    window = Window(await context.new_page(), f"{address}/dashboard")
    await window.open()
    await window.page.get_by_label("API key").fill(key)
    await window.page.keyboard.press("Enter")
    await window.page.wait_for_url(f"{window.home}/")
    yield window
    assert window.complaints == []
    await context.close()


async def fill(database: Database, api: Api, worker: Worker) -> list[str]:
    """A little of everything; every page there is."""
    for n in range(3):
        await api.create(url="https://shop.acme.com/orders", queue="billing", json={"n": n})
        await fail(worker, Report("http_error", "the target answered 422", 422), DeadReason.PERMANENT)
    retried = await api.create(queue="mail", json={"n": 1}, tags=["blue"], metadata={"a": 1}, headers={"X-A": "b"})
    phases = {"dns": 3.0, "connect": 8.0, "tls": 15.0, "first_byte": 50.0, "total": 90.0}
    detail = {"phases": phases, "response_headers": [["content-type", "text/plain"]]}
    await fail(worker, Report("http_error", "the target answered 503", 503, excerpt=b"down", detail=detail))
    await api.create(queue="reports")
    await worker.succeed()
    await api.create(queue="slow")
    await worker.claim()
    await api.create(queue="mail")
    await api.create(delay="1h")
    second = timedelta(seconds=1)
    await breaker.open_breaker(database, api.project.owner.account_id, "held.acme.com", 20, "e", second, 60 * second)
    async with Visitor(str(api.client.base_url)) as visitor:
        await visitor.sign_in(api.key)
        group = (await visitor.get("/dead")).split("redrive?group=")[1].split('"')[0]
    return [
        *("/", "/jobs", "/jobs?state=dead&queue=billing", "/queues", "/workers", "/breakers", "/dead", "/operations"),
        *(f"/dead?group={group}", f"/dead/redrive?group={group}", f"/jobs/{retried['id']}"),
    ]


async def fill_administration(database: Database, api: Api, worker: Worker) -> list[str]:
    """Schedules in every state, queues with settings, a customer near its limits, keys and secrets; their pages."""
    project = api.project.owner.project_id
    now = await server_now(database)
    nightly = await new_schedule(
        database, api, "nightly report", timing=Timing(now, cron="30 2 * * mon-fri", timezone="Europe/Berlin")
    )
    fired = await new_schedule(database, api, "poll the shop", timing=Timing(now, every=timedelta(minutes=5)))
    late = await new_schedule(database, api, "late")
    parked = await new_schedule(database, api, "invoices-of-a-customer-with-a-name-" + "that-goes-on-" * 5)
    await park(database, parked, "http://10.0.0.7/: 10.0.0.7 lies in 10.0.0.0/8, which is closed to deliveries")
    paused = await new_schedule(database, api, None)
    await pause_schedule(database, api.project.owner, paused)
    await database.execute(
        "update duly.schedule_turn set next_fire_at = now() - interval '5 minutes' where schedule_id = $1", late
    )
    async with Visitor(str(api.client.base_url)) as visitor:
        await visitor.sign_in(api.key)
        for end in worker.succeed, worker.bury, worker.claim:
            await visitor.said(await visitor.post(f"/schedules/{fired}/run"))
            await end()
    await database.execute(
        """insert into duly.fire (schedule_id, fire_at, trigger, outcome, covers, why)
           select $1, now() - n * interval '1 hour', 'schedule', o, 3, w
           from (values (1, 'missed', null), (2, 'skipped', 'the job before it has not ended')) v (n, o, w)""",
        fired,
    )
    defaults = JobDefaults(timedelta(seconds=10), 5, Backoff(), timedelta(hours=2), (404, "5xx"))
    await queue.set_queue(
        database, project, "mail", QueueSettings(20, 1, rate=Rate(100, timedelta(minutes=1)), defaults=defaults)
    )
    await queue.set_queue(database, project, "paused", QueueSettings(paused=True))
    await put_plan(database, "small", {"running": 5, "monthly_quota": 1000, "keep": 86_400})
    await change_account(database, api.project.account_id, {"plan": "small", "limits": {"stored": 2}})
    gone = await create_account(database, "gone")
    await disable_account(database, gone.id)
    await create_key(database, project, "ci", scopes=["read"], expires_at=now + timedelta(days=30))
    old = await create_key(database, project, "old")
    await revoke_key(database, project, old.info.id)
    await rotate_secret(database, project)
    secret = (await list_secrets(database, project))[0]
    of = f"project={api.project.id}"
    return [
        *("/schedules", f"/schedules/{nightly}", f"/schedules/{fired}", f"/schedules/{late}", f"/schedules/{parked}"),
        *("/queues", f"/queues/one?name=mail&{of}", "/accounts", f"/accounts/{api.project.account_id}"),
        *(f"/accounts/{api.project.account_id}/disable", f"/accounts/{gone.id}", "/keys", f"/keys?{of}"),
        *("/secrets", f"/secrets?{of}", f"/secrets/{secret.id}/end?{of}"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("filled", [fill, fill_administration], ids=["work", "administration"])
async def test_every_page_is_accessible_and_fits_in_light_and_dark(
    database: Database, address: str, api: Api, worker: Worker, browser: Browser, filled: Any
) -> None:
    """axe finds nothing, at 1280 and at 360 pixels, in both schemes; no page is wider than its window."""
    pages = await filled(database, api, worker)
    found: list[tuple[Any, ...]] = []
    for scheme in ("light", "dark"):
        for width in (1280, 360):
            token = await make_operator_token(database, scopes=SCOPES)
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
            async with window(browser, address, token, **options) as tab:
                for path in pages:
                    await tab.open(path)
                    for problem in (await Axe().run(tab.page)).response["violations"]:
                        nodes = [node["html"][:120] for node in problem["nodes"][:2]]
                        found.append((path, scheme, width, problem["id"], nodes))
                    wider = await tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if wider > 0:
                        found.append((path, scheme, width, "wider than the window", [wider]))
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{address}/dashboard/sign-in")
    found += [("sign-in", problem["id"]) for problem in (await Axe().run(page)).response["violations"]]
    await context.close()
    assert found == []


@pytest.mark.slow
async def test_hostile_texts_run_nothing(
    database: Database, address: str, api: Api, worker: Worker, browser: Browser
) -> None:
    """On no page, at first and after it took over its live parts; they are seen as they are."""
    pages = await fill_with_hostile_texts(database, api, worker)
    token = await make_operator_token(database, scopes=SCOPES)
    async with window(browser, address, token) as tab:
        for path, times in pages.items():
            await tab.open(path)
            if await tab.page.locator("[data-live]").count():
                async with tab.page.expect_response(lambda answer: "x-duly-live" in answer.request.headers):
                    pass
            assert await tab.page.evaluate("window.pwned") is None, path
            assert (await tab.page.evaluate("document.body.textContent")).count(SHOWN) >= min(times, 1), path
            assert await tab.page.locator("img").count() == 0


async def test_a_page_is_live(address: str, api: Api, worker: Worker, browser: Browser) -> None:
    """What happens elsewhere shows without a reload, what is open stays open, and a field in use is left alone."""
    async with window(browser, address, api.key) as tab:
        await tab.shows("All is well: it keeps up, and nothing is dead.")
        await tab.page.evaluate("window.same = true")
        job = await api.create(url="https://shop.acme.com/orders", queue="billing")
        await fail(worker, Report("http_error", "the target answered 422", 422), DeadReason.PERMANENT)
        await tab.shows(re.compile("1 dead letter at shop.acme.com: the target answered 422"))
        assert await tab.page.evaluate("window.same") is True
        await tab.open(f"/jobs/{job['id']}")
        details = tab.page.locator("#attempt-1")
        await details.locator("summary").click()
        assert await details.get_attribute("open") is None
        await tab.page.evaluate("document.activeElement.blur()")
        answer = await api.post(f"/v1/jobs/{job['id']}/redrive")
        assert answer.status_code == 202
        await tab.shows("ready")
        assert await details.get_attribute("open") is None


async def test_a_page_says_when_it_is_not_live_and_when_its_session_has_ended(
    database: Database, address: str, api: Api, browser: Browser
) -> None:
    """A server that does not answer; a key that was revoked: back to the sign-in."""
    async with window(browser, address, api.key) as tab:
        await tab.page.route("**/dashboard/", lambda route: route.fulfill(status=503, body="no"))
        await tab.shows("Not live: Duly does not answer. Trying again.")
        await tab.page.unroute("**/dashboard/")
        await expect(tab.page.locator("#liveness")).to_be_empty(timeout=LIMIT_MS)
        await database.execute("update duly.api_key set revoked_at = now()")
        await tab.page.wait_for_url(f"{tab.home}/sign-in")
        tab.complaints = [said for said in tab.complaints if "503" not in said and "401" not in said]


async def test_everything_goes_by_keyboard(address: str, api: Api, browser: Browser) -> None:
    """g and a letter go to a page, / to the filters, Tab first to the content; not while something is typed."""
    await api.create(queue="mail")
    async with window(browser, address, api.key) as tab:
        keyboard = tab.page.keyboard
        await tab.page.evaluate("document.activeElement.blur()")
        await keyboard.press("g")
        await keyboard.press("j")
        await tab.page.wait_for_url(f"{tab.home}/jobs")
        await keyboard.press("/")
        await expect(tab.page.get_by_label("Queue")).to_be_focused()
        await keyboard.type("gd")
        assert tab.page.url == f"{tab.home}/jobs"
        await tab.page.get_by_label("Queue").fill("mail")
        await keyboard.press("Enter")
        await tab.page.wait_for_url(re.compile("queue=mail"))
        await tab.shows("http://127.0.0.1:9999/hook")
        await tab.page.evaluate("document.activeElement.blur()")
        await keyboard.press("Tab")
        await expect(tab.page.get_by_role("link", name="To the content")).to_be_focused()
        await keyboard.press("Enter")
        await expect(tab.page.locator("main")).to_be_focused()


async def test_buttons_do_what_they_say(database: Database, address: str, api: Api, browser: Browser) -> None:
    """Run now, cancel, redrive, copy, sign out: as a hand would do it."""
    job = await api.create(delay="1h", json={"id": 1970670598291982290})
    token = await make_operator_token(database, scopes=SCOPES)
    async with window(browser, address, token) as tab:
        await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await tab.open(f"/jobs/{job['id']}")
        await tab.press("Run now")
        await tab.shows("It is due now.")
        await tab.press("Cancel")
        await tab.shows("Cancelled. It will not run.")
        await tab.press("Redrive")
        await tab.shows("Redriven: it is due now, with a fresh budget of attempts.")
        await tab.page.get_by_text("As a curl command").click()
        await tab.press("Copy")
        await tab.shows("Copied")
        copied = await tab.page.evaluate("navigator.clipboard.readText()")
        assert '{"id": 1970670598291982290}' in copied
        await tab.press("Sign out")
        await tab.shows("You are signed out.")
        await tab.page.go_back()
        await tab.page.goto(f"{tab.home}/jobs/{job['id']}")
        assert tab.page.url == f"{tab.home}/sign-in"


async def test_schedules_and_queues_are_turned_by_hand(
    address: str, api: Api, database: Database, browser: Browser
) -> None:
    """Pause, resume, run now; a limit set, wrong at first; by keyboard from page to page."""
    schedule = await new_schedule(database, api, "nightly")
    await api.create(queue="mail")
    async with window(browser, address, api.key) as tab:
        await tab.go("s", "/schedules")
        await tab.page.get_by_role("link", name="nightly").click()
        await tab.press("Pause")
        await tab.shows("Paused: no fires until it is resumed.")
        await tab.press("Resume")
        await tab.shows("It fires again.")
        await tab.press("Run now")
        await tab.shows("A job was made of it; it is the first fire below.")
        await tab.page.locator("#fires a.id").click()
        await tab.shows("ready")
        await tab.go("q", "/queues")
        await tab.page.get_by_role("link", name="mail", exact=True).click()
        await tab.page.get_by_label("Jobs at once").fill("x")
        await tab.page.get_by_label("Time limit").fill("10s")
        await tab.press("Set")
        await tab.shows(re.compile("Concurrency must be a valid integer"))
        await tab.page.get_by_label("Jobs at once").fill("3")
        await tab.press("Set")
        await tab.shows("Set. It binds from now on; what runs goes on.")
        await tab.press("Pause")
        await tab.shows("Paused: none of its jobs starts. What runs goes on.")
        tab.complaints = [said for said in tab.complaints if "422" not in said]
    settings = await queue.get_queue(database, api.project.owner.project_id, "mail")
    assert (settings.concurrency, settings.paused) == (3, True)
    assert settings.defaults.timeout == timedelta(seconds=10)
    assert len(await list_fires(database, schedule)) == 1


async def test_an_installation_is_administered_by_hand(
    database: Database, address: str, api: Api, worker: Worker, browser: Browser
) -> None:
    """From a customer to a key that works; a secret shown, rotated and ended; the account disabled; a job replayed."""
    job = await api.create(json={"n": 1})
    await worker.succeed()
    async with window(browser, address, await make_operator_token(database)) as tab:
        await tab.go("a", "/accounts")
        await tab.page.get_by_label("Name").fill("acme")
        await tab.press("Make the account")
        await tab.shows("Made. It needs a project and a key next.")
        await tab.page.get_by_label("Name").fill("production")
        await tab.press("Make the project")
        await tab.shows("A new project")
        assert [one["id"] for one in (await Axe().run(tab.page)).response["violations"]] == []
        await tab.page.get_by_role("link", name="Done").click()
        await tab.page.get_by_role("link", name="keys", exact=True).click()
        await tab.page.get_by_label("Name").fill("shop")
        await tab.press("Make the key")
        key = await tab.page.locator("#secret").inner_text()
        assert await authenticate(database, key)
        await tab.page.get_by_role("link", name="Done").click()
        assert key not in await tab.page.content()
        await tab.page.get_by_role("link", name="Revoke…").click()
        await tab.press("Revoke")
        await tab.shows("Revoked: the key is refused everywhere.")
        assert await authenticate(database, key) is None
        await tab.go("e", "/secrets")
        await tab.page.locator("table a.id").last.click()
        await tab.press("Show")
        shown = await tab.page.locator("#secret").inner_text()
        await tab.page.get_by_role("link", name="Done").click()
        await tab.press("Rotate")
        assert await tab.page.locator("#secret").inner_text() != shown
        await tab.page.get_by_role("link", name="Done").click()
        await tab.page.get_by_role("link", name="End…").first.click()
        await tab.press("End it")
        await tab.shows("Ended: it signs no more, within ten seconds.")
        await tab.go("a", "/accounts")
        await tab.page.get_by_role("link", name="acme").click()
        await tab.page.get_by_role("link", name="Disable…").click()
        await tab.press("Disable")
        await tab.press("Enable")
        await tab.shows("Enabled: what waited goes on.")
        await tab.open(f"/jobs/{job['id']}")
        await tab.page.get_by_role("link", name="Replay…").click()
        await tab.press("Replay")
        await tab.shows("This is the new job: a copy, due now.")
    await worker.succeed()


async def test_names_of_ten_thousand_characters_fit(
    database: Database, address: str, api: Api, browser: Browser
) -> None:
    """In a window of 360 pixels, whatever put them there."""
    schedule = await new_schedule(database, api, "x" * 10_000)
    for table in "account", "project", "api_key":
        await database.execute(f"update duly.{table} set name = $1", "x" * 10_000)
    account, of = api.project.account_id, f"project={api.project.id}"
    token = await make_operator_token(database)
    async with window(browser, address, token, viewport={"width": 360, "height": 800}) as tab:
        for path in (
            "/schedules",
            f"/schedules/{schedule}",
            "/accounts",
            f"/accounts/{account}",
            f"/keys?{of}",
            f"/secrets?{of}",
        ):
            await tab.open(path)
            assert await tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path


async def test_pages_work_without_javascript(
    database: Database, address: str, api: Api, worker: Worker, browser: Browser
) -> None:
    """Looking, filtering, redriving, setting, rotating; only liveness is missing."""
    await fill(database, api, worker)
    async with window(browser, address, api.key, java_script_enabled=False) as tab:
        await tab.page.get_by_role("link", name="Redrive…").first.click()
        await tab.press("Redrive")
        await tab.shows("Redriven: 3.")
        await tab.page.get_by_role("link", name="Jobs", exact=True).click()
        await tab.page.get_by_label("State").select_option("ready")
        await tab.press("Filter")
        await expect(tab.page.locator("tbody tr")).to_have_count(4)
        await tab.open("/queues/one?name=mail")
        await tab.page.get_by_label("Rate").fill("5/1m")
        await tab.press("Set")
        await tab.shows("Set. It binds from now on; what runs goes on.")
    async with window(browser, address, await make_operator_token(database), java_script_enabled=False) as tab:
        await tab.open(f"/secrets?project={api.project.id}")
        await tab.press("Rotate")
        await tab.shows("A new signing secret")


async def test_the_drill_in_docs(
    database: Database, database_url: str, address: str, api: Api, browser: Browser
) -> None:
    """docs/how-to/drill.md, as written: a real target breaks, a real worker fills the dead letters, the first page says
    which, why and since when; the target is mended, one is tried, the others follow, and all is well again.
    """
    broken = True

    def answer(_: Received) -> bytes:
        status = "422 Unprocessable Content" if broken else "200 OK"
        return f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode()

    stop = asyncio.Event()
    policy = EgressPolicy.parse(allow_loopback=True)
    working = asyncio.create_task(work(database, database_url, policy, WorkerSettings(), stop, asyncio.Event()))
    try:
        async with recording_target(answer) as target:
            made = [await api.create(url=target.url("/orders"), json={"order": n}) for n in range(12)]
            async with window(browser, address, api.key) as tab:
                what = f"12 dead letters at 127.0.0.1:{target.port}: the target answered 422"
                await tab.shows(re.compile(re.escape(what) + r" \(since .*\)"))
                await tab.page.get_by_role("link", name="Redrive…").first.click()
                await tab.shows("Redrive 12 dead letters?")
                await tab.press("Try one first")
                await tab.shows(re.compile("Redriven: 1"))
                broken = False
                await tab.page.get_by_role("link", name="Dead letters").click()
                await expect(tab.page.locator("#groups tbody td").first).to_have_text("12", timeout=LIMIT_MS)
                await tab.page.get_by_role("link", name="Redrive…").first.click()
                await tab.page.get_by_label("A second").fill("100")
                await tab.press("Redrive at this rate")
                await tab.shows("12 of at most 1,000")
                await tab.shows("finished")
                await tab.page.get_by_role("link", name="Overview").click()
                await expect(tab.page.get_by_text("dead letters at")).to_have_count(0, timeout=LIMIT_MS)
                await tab.open("/dead")
                await tab.shows("No dead letters.")
            assert len(target.received) == 12 + 1 + 12
            for job in made:
                while (await api.job(job["id"]))["state"] != "succeeded":
                    await asyncio.sleep(0.05)
    finally:
        stop.set()
        await working
