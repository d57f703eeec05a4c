"""Accounts, keys and signing secrets on the pages: what is shown to whom, once or never, and what is changed."""

from __future__ import annotations

import logging
import re

import httpx
import pytest

from api.harness import Api, new_api
from dashboard.harness import Visitor, text_of
from duly.dashboard import accounts, keys, secrets
from duly.model import uuid7
from duly.queue import Database
from duly.service import (
    Keyring,
    authenticate,
    create_account,
    create_key,
    create_project,
    create_secret,
    get_account,
    list_keys,
    list_projects,
    list_secrets,
    put_plan,
)
from duly.service.sessions import make_operator_token


async def secret_of(answer: httpx.Response, status: int = 201) -> str:
    """What a page shows once."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["cache-control"] == "no-store"
    assert "data-live" not in answer.text
    found = re.search(r'<pre id="secret"[^>]*>([^<]+)</pre>', answer.text)
    assert found
    return found[1]


async def test_keys_are_listed_without_the_keys(database: Database, api: Api, admin: Visitor) -> None:
    """How they begin, their scopes and times; revoked and expired ones say so and cannot be revoked again."""
    project = api.project.owner.project_id
    old = await create_key(database, project, "old", scopes=["read_payloads"])
    await database.execute("update duly.api_key set expires_at = now() where id = $1", old.info.id)
    gone = await create_key(database, project, "gone")
    await database.execute("update duly.api_key set revoked_at = now() where id = $1", gone.info.id)
    page = await admin.get("/keys")
    text = text_of(page)
    assert f"test {api.key[:11]}… read write" in text
    assert re.search(r"admin this session's duly_.{6}… read admin \d{4}", text)
    assert re.search(r"old duly_.{6}… read_payloads .*? never expired", text)
    assert re.search(r"gone duly_.{6}… read write .*? never revoked", text)
    assert page.count("Revoke…") == 2
    for key in api.key, old.key, gone.key:
        assert key not in page


async def test_a_key_is_made_and_shown_once(database: Database, api: Api, admin: Visitor) -> None:
    """It works, with the scopes and the end that were chosen; no other page has it."""
    await admin.get("/keys")
    answer = await admin.post("/keys", name=" robot ", scope_read="1", scope_admin="1", expires_in="90d")
    key = await secret_of(answer)
    principal = await authenticate(database, key)
    assert principal is not None
    assert principal.scopes == {"read", "admin"}
    assert principal.owner == api.project.owner
    assert key not in await admin.get("/keys")
    assert "robot" in await admin.get("/keys")
    [made] = [one for one in await list_keys(database, api.project.owner.project_id) if one.name == "robot"]
    assert made.expires_at is not None
    assert 89 < (made.expires_at - made.created_at).total_seconds() / 86_400 < 91


async def test_what_is_wrong_with_a_new_key_is_said_beside_the_form(
    database: Database, api: Api, admin: Visitor
) -> None:
    """By the API's rules; nothing is made, and what was written stays, as text."""
    await admin.get("/keys")
    answer = await admin.post("/keys", name="\u202e<script>", expires_in="soon")
    assert answer.status_code == 422
    text = text_of(answer.text)
    assert "Name must be 1 to 100 printable characters" in text
    assert "Scopes must be an array of one or more" in text
    assert "Expires in must be a duration" in text
    assert 'value="\\u{202e}&lt;script&gt;"' in answer.text
    for fields in {}, {"name": "x" * 10_000}, {"name": "n", "expires_in": "0s"}, {"name": "a\x00b"}:
        assert (await admin.post("/keys", scope_read="1", **fields)).status_code == 422
    assert len(await list_keys(database, api.project.owner.project_id)) == 2


async def test_revoking_asks_first_and_ends_at_once(database: Database, api: Api, admin: Visitor) -> None:
    """The key and its sessions; one's own key says so and leads to the sign-in."""
    made = {one.name: one.id for one in await list_keys(database, api.project.owner.project_id)}
    page = text_of(await admin.get(f"/keys/{made['test']}/revoke"))
    assert "Revoke this key? Name test" in page
    assert "your session ends" not in page
    assert await authenticate(database, api.key)
    said = await admin.said(await admin.post(f"/keys/{made['test']}/revoke"))
    assert said == "Revoked: the key is refused everywhere."
    assert await authenticate(database, api.key) is None
    assert "your session ends, too" in await admin.get(f"/keys/{made['admin']}/revoke")
    assert (await admin.post(f"/keys/{made['admin']}/revoke")).status_code == 303
    await admin.get("/keys", 303)


async def test_secrets_are_masked_until_one_asks(
    database: Database, api: Api, admin: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    """A list never has them; a POST of its own shows one, and the log says who asked; a GET does not."""
    [secret] = await list_secrets(database, api.project.owner.project_id)
    page = await admin.get("/secrets")
    assert "whsec_***" in page
    assert secret.text not in page
    await admin.get(f"/secrets/{secret.id}/reveal", 405)
    with caplog.at_level(logging.INFO, "duly.dashboard"):
        assert await secret_of(await admin.post(f"/secrets/{secret.id}/reveal"), 200) == secret.text
    [record] = [one for one in caplog.records if one.message == "a signing secret was shown"]
    assert record.__dict__["secret_id"] == str(secret.id)
    assert record.__dict__["by"].endswith("(dashboard)")
    assert secret.text not in caplog.text
    assert (await admin.post(f"/secrets/{uuid7()}/reveal")).status_code == 404


async def test_rotating_with_an_overlap_and_ending_one(database: Database, api: Api, admin: Visitor) -> None:
    """Both sign for the overlap; the old one can be ended before; the last one cannot."""
    project = api.project.owner.project_id
    [old] = await list_secrets(database, project)
    await admin.get("/secrets")
    new = await secret_of(await admin.post("/secrets/rotate", overlap="2d"))
    assert {one.text for one in await list_secrets(database, project)} == {old.text, new}
    assert re.search(
        r"in (1 d 23 h|2 d) Show End… whsec_\*\*\* …[0-9a-f]{8} .*? the next rotation",
        text_of(await admin.get("/secrets")),
    )
    answer = await admin.post("/secrets/rotate", overlap="91d")
    assert answer.status_code == 422
    assert "Overlap must be from 0s to 90d" in answer.text
    assert "End this signing secret?" in await admin.get(f"/secrets/{old.id}/end")
    said = await admin.said(await admin.post(f"/secrets/{old.id}/end"))
    assert said == "Ended: it signs no more, within ten seconds."
    [left] = await list_secrets(database, project)
    assert left.text == new
    await admin.get(f"/secrets/{old.id}/end", 404)
    assert (await admin.post(f"/secrets/{old.id}/end")).status_code == 404
    answer = await admin.post(f"/secrets/{left.id}/end")
    assert answer.status_code == 409
    assert "last signing secret without an end" in answer.text
    assert await secret_of(await admin.post("/secrets/rotate", overlap="0")) != new
    assert len(await list_secrets(database, project)) == 1
    for _ in range(9):
        assert (await admin.post("/secrets/rotate", overlap="1h")).status_code == 201
    answer = await admin.post("/secrets/rotate", overlap="1h")
    assert answer.status_code == 409
    assert "the most there may be" in answer.text


async def test_a_secret_that_cannot_be_decrypted_here_is_told(database: Database, api: Api, admin: Visitor) -> None:
    """503, without a word about the key's bytes."""
    keyring = Keyring([("elsewhere", bytes(32))])
    sealed = await create_secret(database, api.project.owner.project_id, keyring=keyring)
    answer = await admin.post(f"/secrets/{sealed.id}/reveal")
    assert answer.status_code == 503
    assert "encrypted with a key that this process does not have" in answer.text


async def test_a_project_administers_itself_and_nothing_else(
    database: Database, address: str, api: Api, admin: Visitor, visitor: Visitor
) -> None:
    """Another project's things are not there, be it of the same account; accounts are the operator's; without the scope
    admin nothing of it is, also in the menu; without the token nothing is done.
    """
    stranger = await new_api(database, api.client, "second")
    [secret] = await list_secrets(database, stranger.project.owner.project_id)
    [key] = await list_keys(database, stranger.project.owner.project_id)
    await admin.get("/keys")
    for foreign in str(stranger.project.id), str(uuid7()), "x":
        for path in (
            f"/keys?project={foreign}",
            f"/secrets?project={foreign}",
            f"/secrets/{secret.id}/end?project={foreign}",
        ):
            await admin.get(path, 404)
        for path in "/keys", "/secrets/rotate", f"/secrets/{secret.id}/reveal", f"/secrets/{secret.id}/end":
            answer = await admin.post(path, project=foreign, name="n", scope_read="1")
            assert answer.status_code == 404, path
    for path in f"/keys/{key.id}/revoke", f"/keys/{uuid7()}/revoke", "/keys/x/revoke", f"/secrets/{secret.id}/end":
        await admin.get(path, 404)
        assert (await admin.post(path)).status_code == 404
    own = (await list_keys(database, api.project.owner.project_id))[0].id
    account = api.project.account_id
    for path in "/accounts", f"/accounts/{account}", f"/accounts/{account}/disable":
        await admin.get(path, 403)
    for path in "/accounts", f"/accounts/{account}/projects", f"/accounts/{account}/disable":
        assert (await admin.post(path, name="n")).status_code == 403
    menu = await admin.get()
    assert 'href="/dashboard/keys"' in menu
    assert 'href="/dashboard/accounts"' not in menu
    posts = (
        "/keys",
        f"/keys/{own}/revoke",
        "/secrets/rotate",
        f"/secrets/{secret.id}/reveal",
        f"/secrets/{secret.id}/end",
    )
    menu = await visitor.get()
    assert 'href="/dashboard/keys"' not in menu
    for path in "/keys", "/secrets", f"/keys/{own}/revoke", f"/secrets/{secret.id}/end", "/accounts":
        assert "lacks the scope admin" in await visitor.get(path, 403)
    for path in (*posts, "/accounts"):
        assert (await visitor.post(path, name="n", scope_read="1")).status_code == 403
        assert (await admin.http.post(f"/dashboard{path}", data={"name": "n", "scope_read": "1"})).status_code == 403
    assert len(await list_keys(database, api.project.owner.project_id)) == 2
    assert len(await list_keys(database, stranger.project.owner.project_id)) == 1
    assert not (await get_account(database, account)).disabled_at


async def test_a_project_does_not_see_its_siblings(database: Database, api: Api, admin: Visitor) -> None:
    """The scope admin is for the account in the API; a session stays in its project."""
    sibling = await create_project(database, api.project.account_id, "sibling")
    key = await create_key(database, sibling.owner.project_id, "sibling's")
    [secret] = await list_secrets(database, sibling.owner.project_id)
    assert "sibling" not in await admin.get("/keys")
    assert str(secret.id)[-8:] not in await admin.get("/secrets")
    await admin.get(f"/keys/{key.info.id}/revoke", 404)
    assert (await admin.post(f"/keys/{key.info.id}/revoke")).status_code == 404
    assert (await admin.post(f"/secrets/{secret.id}/end")).status_code == 404
    assert (await admin.post(f"/secrets/{secret.id}/reveal", project=str(sibling.id))).status_code == 404
    assert await authenticate(database, key.key)
    assert len(await list_secrets(database, sibling.owner.project_id)) == 1


async def test_an_operator_sees_accounts_with_plan_limits_and_use(
    database: Database, api: Api, operator: Visitor
) -> None:
    """Its own limits and its plan's, what it uses of them, its projects with the ways to their things."""
    await put_plan(database, "small", {"running": 5, "monthly_quota": 1000, "horizon": 86_400, "keep": 3_600})
    limited = await create_account(database, "limited", plan="small", limits={"stored": 10, "body_bytes": 65_536})
    await api.create()
    text = text_of(await operator.get("/accounts"))
    assert re.search(r"first enabled – – – – – \d{4}", text)
    assert re.search(r"limited enabled small 5 10 1,000 – \d{4}", text)
    text = text_of(await operator.get(f"/accounts/{limited.id}"))
    assert "Running 0 / 5" in text
    assert "Stored 0 / 10" in text
    assert "This month 0 / 1,000" in text
    for words in ("Plan small", "Jobs at once 5", "Jobs stored 10 its own", "Longest body 64 KiB its own"):
        assert words in text, words
    assert "Due at most 1d ahead" in text
    assert "No project" in text
    page = await operator.get(f"/accounts/{api.project.account_id}")
    assert "Stored 1 jobs that have not ended" in text_of(page)
    for kind in "keys", "secrets", "queues", "schedules":
        await operator.get(f"/{kind}?project={api.project.id}")
        assert f'href="/dashboard/{kind}?project={api.project.id}"' in page


async def test_accounts_and_projects_are_made(database: Database, operator: Visitor) -> None:
    """From nothing to a key that works; names that are taken or unusable are told beside the form."""
    await put_plan(database, "small", {})
    await operator.get("/accounts")
    answer = await operator.post("/accounts", name="acme", plan="small")
    account = answer.headers["location"].split("/accounts/")[1].split("?")[0]
    assert await operator.said(answer) == "Made. It needs a project and a key next."
    for fields in {"name": "acme"}, {"name": ""}, {"name": "x" * 10_000}, {"name": "new", "plan": "none"}:
        assert (await operator.post("/accounts", **fields)).status_code == 422, fields
    secret = await secret_of(await operator.post(f"/accounts/{account}/projects", name="production"))
    assert secret.startswith("whsec_")
    answer = await operator.post(f"/accounts/{account}/projects", name="production")
    assert answer.status_code == 422
    assert "has a project of this name already" in answer.text
    [project] = [one for one in await list_projects(database) if one.name == "production"]
    key = await secret_of(await operator.post("/keys", project=str(project.id), name="k", scope_write="1"))
    principal = await authenticate(database, key)
    assert principal is not None
    assert principal.owner == project.owner
    assert (await operator.post(f"/accounts/{uuid7()}/projects", name="n")).status_code == 404


async def test_disabling_asks_first(database: Database, api: Api, operator: Visitor) -> None:
    """Then its keys are refused; enabled again they are not. Not the operator's own account."""
    account = api.project.account_id
    assert "Disable this account?" in await operator.get(f"/accounts/{account}/disable")
    said = await operator.said(await operator.post(f"/accounts/{account}/disable"))
    assert said.startswith("Disabled: its keys are refused")
    assert (await api.get("/v1/jobs")).status_code == 403
    assert "disabled since" in text_of(await operator.get(f"/accounts/{account}"))
    assert await operator.said(await operator.post(f"/accounts/{account}/enable")) == "Enabled: what waited goes on."
    assert (await api.get("/v1/jobs")).status_code == 200
    await database.execute("update duly.account set operator = true")
    assert (await operator.post(f"/accounts/{account}/disable")).status_code == 409
    assert (await operator.post(f"/accounts/{account}/delete")).status_code == 404
    for unknown in str(uuid7()), "x":
        await operator.get(f"/accounts/{unknown}", 404)
        assert (await operator.post(f"/accounts/{unknown}/disable")).status_code == 404


async def test_an_operator_administers_any_project(database: Database, api: Api, operator: Visitor) -> None:
    """Keys and secrets of all together or of one; making needs one to be chosen; the scope admin is needed here too."""
    stranger = await new_api(database, api.client, "second")
    [key] = await list_keys(database, stranger.project.owner.project_id)
    page = await operator.get("/keys")
    assert page.count("Revoke…") == 2
    assert "Choose a project" in page
    page = await operator.get(f"/keys?project={stranger.project.id}")
    assert page.count("Revoke…") == 1
    assert (await operator.post("/keys", name="n", scope_read="1")).status_code == 404
    answer = await operator.post(f"/keys/{key.id}/revoke")
    assert answer.headers["location"] == f"/dashboard/keys?project={stranger.project.id}&said=key_revoked"
    assert (await operator.get("/secrets")).count("whsec_***") == 2
    [secret] = await list_secrets(database, stranger.project.owner.project_id)
    project = str(stranger.project.id)
    assert await secret_of(await operator.post(f"/secrets/{secret.id}/reveal", project=project), 200) == secret.text
    assert (await operator.post(f"/secrets/{secret.id}/reveal")).status_code == 404
    assert (await operator.post(f"/secrets/{secret.id}/reveal", project=str(api.project.id))).status_code == 404
    await secret_of(await operator.post("/secrets/rotate", project=project, overlap="1h"))
    await operator.said(await operator.post(f"/secrets/{secret.id}/end", project=project))
    async with Visitor(str(api.client.base_url)) as looking:
        await looking.sign_in(await make_operator_token(database, scopes=["read", "write"]))
        for path in "/accounts", "/keys", "/secrets":
            await looking.get(path, 403)


async def test_lists_go_on_page_by_page(
    database: Database, api: Api, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded page each, in the order in which they were made."""
    await new_api(database, api.client, "second")
    for module in accounts, keys, secrets:
        monkeypatch.setattr(module, "PAGE", 1)
    for path in "/accounts", "/keys", "/secrets":
        page = await operator.get(path)
        following = page.split('rel="next"')[0].rpartition('href="/dashboard')[2].rstrip('" ')
        assert following.startswith(f"{path}?after=")
        assert 'rel="next"' not in await operator.get(following)
        await operator.get(f"{path}?after=x", 404)


async def test_names_of_ten_thousand_characters_are_shown(database: Database, api: Api, operator: Visitor) -> None:
    """Whatever put them there."""
    long = "x" * 5_000 + "<b>" + "y" * 5_000
    for table in "account", "project", "api_key":
        await database.execute(f"update duly.{table} set name = $1", long)
    for path in "/accounts", f"/accounts/{api.project.account_id}", "/keys", f"/keys?project={api.project.id}":
        page = await operator.get(path)
        assert "&lt;b&gt;yyy" in page
        assert "<b>yyy" not in page
