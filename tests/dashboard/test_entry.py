"""Who gets in, for how long, and what keeps others from acting in their name."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest

from api.harness import Api, Worker, new_api
from dashboard.harness import COOKIE, Visitor, text_of
from duly.api import ApiSettings
from duly.model.errors import InvalidInputError
from duly.queue import Database
from duly.service import authenticate, create_key, delete_project, disable_account, enable_account, revoke_key
from duly.service.sessions import begin_with_key, begin_with_token, make_operator_token, viewer_of

PAGES = (
    *("/", "/jobs", "/dead", "/dead/redrive", "/queues", "/workers", "/breakers", "/jobs/x", "/jobs/x/replay"),
    *("/schedules", "/schedules/x", "/queues/one", "/accounts", "/accounts/x", "/accounts/x/disable"),
    *("/keys", "/keys/x/revoke", "/secrets", "/secrets/x/end"),
)
POSTS = (
    *("/jobs/x/cancel", "/jobs/x/replay", "/dead/redrive", "/schedules/x/run", "/queues/one", "/queues/pause"),
    *("/accounts", "/accounts/x/projects", "/accounts/x/disable", "/keys", "/keys/x/revoke"),
    *("/secrets/rotate", "/secrets/x/reveal", "/secrets/x/end"),
)


async def test_every_page_asks_for_a_session_and_says_what_no_browser_may_do(client: httpx.AsyncClient) -> None:
    """To the sign-in without one; every answer forbids scripts from elsewhere, frames and keeping."""
    for path in PAGES:
        answer = await client.get(f"/dashboard{path}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in"), path
        live = await client.get(f"/dashboard{path}", headers={"x-duly-live": "1"})
        assert live.status_code == 401
        for one in answer, live, await client.get("/dashboard/sign-in"), await client.get("/dashboard/nothing"):
            assert "default-src 'none'" in one.headers["content-security-policy"]
            assert "unsafe" not in one.headers["content-security-policy"]
            assert one.headers["x-frame-options"] == "DENY"
            assert one.headers["cache-control"] == "no-store"
            assert one.headers["x-content-type-options"] == "nosniff"
    for path in POSTS:
        assert (await client.post(f"/dashboard{path}", data={})).headers["location"] == "/dashboard/sign-in"
    assert (await client.get("/dashboard")).headers["location"] == "/dashboard/"
    assert (await client.get("/dashboard/static/duly.js")).status_code == 200
    assert (await client.get("/dashboard/static/..%2f..%2fapp.py")).status_code == 404


async def test_a_key_signs_in_and_the_cookie_is_for_this_site_only(database: Database, address: str, api: Api) -> None:
    """HttpOnly, SameSite=Strict, below /dashboard; nothing that could be used is stored."""
    async with Visitor(address) as visitor:
        answer = await visitor.sign_in(f"  {api.key}\n")
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/")
        said = answer.headers["set-cookie"].lower()
        assert all(part in said for part in ("httponly", "samesite=strict", "path=/dashboard"))
        assert "secure" not in said
        assert visitor.cookie is not None
        stored = await database.fetchval("select string_agg(s::text, '') from duly.dashboard_session s")
        assert visitor.cookie not in stored
        assert "Sign out" in await visitor.get()
        assert (await visitor.http.get("/dashboard/sign-in")).status_code == 303


async def test_the_cookie_is_secure_where_the_browser_came_by_https(address: str, api: Api) -> None:
    """A proxy says so; who lies only makes their own cookie stricter."""
    async with Visitor(address) as visitor:
        answer = await visitor.sign_in(api.key, headers={"x-forwarded-proto": "https"})
        assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("settings", [ApiSettings(base_url="https://jobs.example.com")])
async def test_the_cookie_is_secure_where_the_operator_says_https(address: str, api: Api) -> None:
    """By base_url."""
    async with Visitor(address) as visitor:
        assert "secure" in (await visitor.sign_in(api.key)).headers["set-cookie"].lower()


async def test_what_is_no_key_is_refused_without_being_repeated(address: str) -> None:
    """Empty, too long, unknown, not a text, not a form, too large a form."""
    async with Visitor(address) as visitor:
        for key in ("", "x" * 500, "duly_unknown", "duly_operator_unknown", "\udcff<script>"):
            answer = await visitor.http.post(
                "/dashboard/sign-in", content=f"key={key}".encode("utf-8", "surrogateescape"), headers=FORM
            )
            assert answer.status_code in (400, 403), key
            assert "<script>" not in answer.text
        assert visitor.cookie is None
        post = visitor.http.post
        assert (await post("/dashboard/sign-in", json={"key": "x"})).status_code == 400
        assert (await post("/dashboard/sign-in", content=b"key=" + b"x" * 70_000, headers=FORM)).status_code == 413
        assert (await post("/dashboard/sign-in", content=b"&".join([b"a=b"] * 99), headers=FORM)).status_code == 400


FORM = {"content-type": "application/x-www-form-urlencoded"}


async def test_a_key_without_the_scope_read_may_not_look(database: Database, address: str, api: Api) -> None:
    """Its scopes decide, here as in the API."""
    key = await create_key(database, api.project.owner.project_id, "writer", scopes=["write"])
    async with Visitor(address) as visitor:
        answer = await visitor.sign_in(key.key)
        assert answer.status_code == 403
        assert "lacks the scope read" in text_of(answer.text)


async def test_wrong_keys_are_limited_by_the_real_peer(address: str, api: Api) -> None:
    """FO-082: 50 wrong sign-ins, each with another X-Forwarded-For: after ten the answer is 429, whatever the header
    says, for the right key too.
    """
    async with Visitor(address) as visitor:
        codes = []
        for n in range(50):
            answer = await visitor.sign_in("duly_wrong", headers={"x-forwarded-for": f"198.51.100.{n}"})
            codes.append(answer.status_code)
        assert codes == [403] * 10 + [429] * 40
        assert 0 < int(answer.headers["retry-after"]) <= 61
        assert (await visitor.sign_in(api.key)).status_code == 429


async def test_a_right_key_forgets_the_wrong_ones(address: str, api: Api) -> None:
    """Nine typos, then in; and nine more."""
    async with Visitor(address) as visitor:
        for _ in range(2):
            for _ in range(9):
                assert (await visitor.sign_in("duly_wrong")).status_code == 403
            assert (await visitor.sign_in(api.key)).status_code == 303


async def test_sessions_end_with_their_key(database: Database, address: str, api: Api) -> None:
    """FO-081: Two sessions of one key and one of another: revoking the first ends both of its sessions at once, and
    only those. So does the key's expiry.
    """
    other = await create_key(database, api.project.owner.project_id, "other", scopes=["read"])
    async with Visitor(address) as one, Visitor(address) as two, Visitor(address) as three:
        await one.sign_in(api.key)
        await two.sign_in(api.key)
        await three.sign_in(other.key)
        for visitor in one, two, three:
            await visitor.get()
        key_id = await database.fetchval("select id from duly.api_key where id <> $1", other.info.id)
        await revoke_key(database, api.project.owner.project_id, key_id)
        await one.get(status=303)
        await two.get(status=303)
        await three.get()
        await database.execute("update duly.api_key set expires_at = now() where id = $1", other.info.id)
        await three.get(status=303)


async def test_a_disabled_account_gets_in_no_more(database: Database, address: str, visitor: Visitor, api: Api) -> None:
    """Its keys are refused at the sign-in, and a session that began before may neither look nor act, as the key itself;
    enabled again it goes on.
    """
    job = await api.create()
    await visitor.get()
    await disable_account(database, api.project.account_id)
    for answer in await visitor.http.get("/dashboard/jobs"), await visitor.post(f"/jobs/{job['id']}/cancel"):
        assert answer.status_code == 403
        assert "The account is disabled" in answer.text
    async with Visitor(address) as late:
        assert "The account is disabled" in (await late.sign_in(api.key)).text
    await enable_account(database, api.project.account_id)
    assert job["id"] in await visitor.get("/jobs")


async def test_sessions_end_with_their_project(database: Database, visitor: Visitor, api: Api) -> None:
    """A deleted one has no keys, so no sessions."""
    await visitor.get()
    await delete_project(database, api.project.id)
    await visitor.get(status=303)


async def test_scopes_count_as_they_are_now(database: Database, visitor: Visitor) -> None:
    """A key that may not look any more does not, in a session that began before."""
    await database.execute("update duly.api_key set scopes = '{write}'")
    assert "lacks the scope read" in text_of(await visitor.get(status=403))


async def test_signing_out_ends_the_session_for_every_holder_of_the_cookie(address: str, visitor: Visitor) -> None:
    """The row is gone, so that a copy of the cookie is worth nothing."""
    copy = visitor.cookie
    assert copy is not None
    assert (await visitor.http.post("/dashboard/sign-out", data={"csrf": "no"})).status_code == 403
    await visitor.get()
    assert await visitor.said(await visitor.post("/sign-out")) == "You are signed out."
    assert visitor.cookie is None
    async with Visitor(address) as thief:
        thief.http.cookies.set(COOKIE, copy)
        await thief.get(status=303)


async def test_signing_in_again_ends_the_session_before(database: Database, visitor: Visitor, api: Api) -> None:
    """One browser, one session: no fixed or forgotten one lives on."""
    await visitor.sign_in(api.key)
    assert await database.fetchval("select count(*) from duly.dashboard_session") == 1


async def test_sessions_end_after_inactivity_and_pages_that_fetch_themselves_are_none(
    database: Database, visitor: Visitor
) -> None:
    """A click an hour ago makes it last on; a live page does not; twelve hours without a click end it, seven days in
    any case.
    """

    async def seen_ago() -> timedelta:
        ago: timedelta = await database.fetchval("select now() - seen_at from duly.dashboard_session")
        return ago

    async def set_seen(ago: str) -> None:
        await database.execute(f"update duly.dashboard_session set seen_at = now() - interval '{ago}'")

    await set_seen("1 hour")
    await visitor.get("/", headers={"x-duly-live": "1"})
    assert await seen_ago() > timedelta(minutes=59)
    await visitor.get()
    assert await seen_ago() < timedelta(minutes=1)
    await set_seen("12 hours 1 second")
    await visitor.get(status=303)
    await set_seen("1 hour")
    await visitor.get()
    await database.execute("update duly.dashboard_session set ends_at = now()")
    await visitor.get(status=303)


async def test_ended_sessions_are_forgotten_when_others_begin(database: Database, address: str, api: Api) -> None:
    """No sweep is needed: who comes in takes out what is old."""
    async with Visitor(address) as visitor:
        await visitor.sign_in(api.key)
        await database.execute("update duly.dashboard_session set seen_at = now() - interval '1 day'")
        visitor.http.cookies.clear()
        await visitor.sign_in(api.key)
    assert await database.fetchval("select count(*) from duly.dashboard_session") == 1


async def test_another_process_knows_the_session(database: Database, visitor: Visitor) -> None:
    """It lives in the database: who asks there knows who it is."""
    assert visitor.cookie is not None
    viewer = await viewer_of(database, visitor.cookie)
    assert viewer is not None
    assert (viewer.name, viewer.is_operator) == ("test", False)
    assert visitor.cookie not in repr(viewer)
    assert await viewer_of(database, "something else") is None


async def test_an_operators_token_signs_in_once(database: Database, address: str, api: Api) -> None:
    """Of ten who use it at once one gets in; it is no cookie itself; it ends; its scopes are the operator's."""
    token = await make_operator_token(database, scopes=["read"])
    async with Visitor(address) as visitor:
        visitor.http.cookies.set(COOKIE, token)
        await visitor.get(status=303)
    begun = await asyncio.gather(*(begin_with_token(database, token) for _ in range(10)))
    [secret] = [one for one in begun if one]
    viewer = await viewer_of(database, secret)
    assert viewer is not None
    assert (viewer.owner, viewer.scopes, viewer.by) == (None, frozenset({"read"}), "operator (dashboard)")
    old = await make_operator_token(database)
    await database.execute("update duly.dashboard_session set ends_at = now() where is_token")
    assert await begin_with_token(database, old) is None
    with pytest.raises(InvalidInputError, match="scopes"):
        await make_operator_token(database, scopes=[])


async def test_a_key_with_the_scope_admin_is_no_operator_yet(database: Database, api: Api) -> None:
    """It sees its own project, as every key."""
    key = await create_key(database, api.project.owner.project_id, "admin", scopes=["admin", "read"])
    principal = await authenticate(database, key.key)
    assert principal is not None
    viewer = await viewer_of(database, await begin_with_key(database, principal))
    assert viewer is not None
    assert viewer.owner == api.project.owner


async def test_forms_of_other_sites_and_other_sessions_change_nothing(
    database: Database, address: str, visitor: Visitor, api: Api
) -> None:
    """Without the token, with that of another session, from another origin: 403 each, for every action."""
    job = await api.create(delay="1h")
    other = await new_api(database, api.client, "other")
    async with Visitor(address) as stranger:
        await stranger.sign_in(other.key)
        await stranger.get()
    await visitor.get()
    right = visitor.csrf
    attempts = [
        ({}, {}),
        ({"csrf": stranger.csrf}, {}),
        ({"csrf": "ü"}, {}),
        ({"csrf": right}, {"origin": "https://evil.example"}),
        ({"csrf": right}, {"origin": "null"}),
        ({"csrf": right}, {"origin": "http://["}),
        ({"csrf": right}, {"origin": ""}),
        ({"csrf": right}, {"sec-fetch-site": "cross-site"}),
        ({"csrf": right}, {"sec-fetch-site": "same-site"}),
    ]
    for path in (f"/jobs/{job['id']}/cancel", f"/jobs/{job['id']}/run", "/dead/redrive", "/sign-out"):
        for fields, headers in attempts:
            answer = await visitor.http.post(f"/dashboard{path}", data={"limit": "1", **fields}, headers=headers)
            assert answer.status_code == 403, (path, fields, headers)
    assert (await api.job(job["id"]))["state"] == "scheduled"
    login = await visitor.http.post(
        "/dashboard/sign-in", data={"key": api.key}, headers={"origin": "https://e.example"}
    )
    assert login.status_code == 403, "nobody is signed in as somebody else by another site"
    fine = await visitor.http.post(
        f"/dashboard/jobs/{job['id']}/cancel",
        data={"csrf": right},
        headers={"origin": address, "sec-fetch-site": "same-origin"},
    )
    assert fine.status_code == 303


async def test_another_projects_jobs_are_not_there(database: Database, address: str, api: Api, worker: Worker) -> None:
    """Every page and action with a foreign id: 404, the same as for an unknown one, and nothing is shown elsewhere."""
    job = await api.create(tags=["secret-tag"], queue="secret-queue")
    await worker.bury()
    other = await new_api(database, api.client, "other")
    async with Visitor(address) as stranger:
        await stranger.sign_in(other.key)
        for path in ("/", "/jobs", "/dead", "/queues", "/breakers", "/jobs?queue=secret-queue", "/jobs?tag=secret-tag"):
            assert job["id"] not in await stranger.get(path)
        foreign = await stranger.get(f"/jobs/{job['id']}", 404)
        unknown = await stranger.get("/jobs/01890a5d-ac96-774b-bcce-b302099a8057", 404)
        assert text_of(foreign).split("As of")[0] == text_of(unknown).split("As of")[0]
        for action in ("cancel", "abort", "run", "redrive"):
            assert (await stranger.post(f"/jobs/{job['id']}/{action}")).status_code == 404
        async with Visitor(address) as owner:
            await owner.sign_in(api.key)
            page = await owner.get("/dead")
            group = page.split("redrive?group=")[1].split('"')[0]
            await owner.get(f"/dead/redrive?group={group}")
        await stranger.get(f"/dead/redrive?group={group}", 404)
        done = await stranger.post("/dead/redrive", group=group, limit="10")
        assert "Redriven: 0." in await stranger.said(done)
        assert "only operators" in text_of(await stranger.get("/workers", 403))
    assert (await api.job(job["id"]))["state"] == "dead"


async def test_a_reader_changes_nothing_and_sees_no_buttons(database: Database, address: str, api: Api) -> None:
    """Without the scope write: no forms but signing out, and 403 for who sends one."""
    job = await api.create(delay="1h", json={"n": 1})
    key = await create_key(database, api.project.owner.project_id, "reader", scopes=["read"])
    async with Visitor(address) as reader:
        await reader.sign_in(key.key)
        page = await reader.get(f"/jobs/{job['id']}")
        assert "/cancel" not in page
        assert "lacks the scope read_payloads" in text_of(page)
        assert (await reader.post(f"/jobs/{job['id']}/cancel")).status_code == 403
        assert (await reader.post("/dead/redrive", group="x", limit="1")).status_code == 403
