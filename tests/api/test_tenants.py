"""None can meet another: every call that the application lists, with every kind of key and with foreign ids."""

from __future__ import annotations

import asyncpg
import httpx
import pytest

from api.harness import TARGET, Api, assert_problem
from api.tenants import NOBODY, Tenant, ask, bearer, calls, new_operator, new_tenant
from duly.api import ApiServer, ApiSettings, create_app
from duly.http import EgressPolicy
from duly.queue import Database
from duly.service import SCOPES, create_key, create_project, disable_account, get_account
from support.proxy import proxied

SECRET = "a-word-of-the-victim"
TABLES = (
    *("plan", "account", "project", "signing_secret", "queue", "notice", "schedule", "schedule_turn"),
    *("job", "scheduled", "ready", "outcome"),
)


@pytest.fixture
async def victim(database: Database, client: httpx.AsyncClient) -> Tenant:
    tenant = await new_tenant(database, client, f"{SECRET}-name")
    job = await tenant.api.create(
        body=f"{SECRET}-body", tags=[SECRET], unique_key=SECRET, delay="1h", headers={"X-Plain": SECRET}
    )
    tenant.ids["jobs"] = job["id"]
    schedule = await tenant.api.post("/v1/schedules", {"every": 3600, "name": SECRET, "job": {"url": TARGET}})
    bulk = await tenant.api.post("/v1/jobs/bulk/redrive", {"filter": {"tag": SECRET}})
    tenant.ids.update(schedules=schedule.json()["id"], operations=bulk.json()["id"])
    return tenant


async def everything(database: Database) -> list[list[asyncpg.Record]]:
    """What stands in the tables, but for when keys were used and what was counted."""
    return [await database.fetch(f"select * from duly.{table} order by 1") for table in TABLES] + [
        await database.fetch("select id, revoked_at, expires_at, name from duly.api_key order by 1")
    ]


async def test_another_accounts_ids_name_nothing(database: Database, client: httpx.AsyncClient, victim: Tenant) -> None:
    """FO-080: with another account's ids every call answers as with ids that nobody has: 404, or 403 for what only
    operators may do. It shows nothing of the other's and changes nothing. So do another project's jobs of one account.
    """
    stranger = await new_tenant(database, client, "stranger")
    sibling_project = await create_project(database, stranger.api.project.account_id, "sibling")
    sibling_key = await create_key(database, sibling_project.owner.project_id, "sibling", scopes=SCOPES)
    own_job = await stranger.api.create(body=SECRET, delay="1h")
    nobodys = dict.fromkeys(victim.ids, NOBODY)
    for call in calls():
        before = await everything(database)
        foreign = await stranger.call(call, victim.ids)
        assert SECRET not in foreign.text, call
        assert not any(one in foreign.text for one in victim.ids.values()), call
        if not call.takes_an_id:
            continue
        missing = await stranger.call(call, nobodys)
        assert foreign.status_code == (403 if missing.status_code == 403 else 404), (call, foreign.text)
        assert foreign.text == missing.text, call
        if call.path.startswith("/v1/jobs"):
            assert_problem(await ask(client, call, {"jobs": own_job["id"]}, sibling_key.key), 404)
        assert await everything(database) == before, call
    assert (await victim.api.job(victim.ids["jobs"]))["state"] == "scheduled"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/keys", {"name": "mine", "project_id": "projects"}),
        ("POST", "/v1/projects", {"name": "mine", "account_id": "accounts"}),
        ("POST", "/v1/signing-secrets", {"project_id": "projects"}),
        ("POST", "/v1/signing-secrets/rotate", {"project_id": "projects", "overlap": 0}),
        ("PUT", "/v1/notices", {"project_id": "projects", "url": TARGET}),
        ("PUT", "/v1/notices", {"account_id": "accounts", "about": "account", "url": TARGET}),
    ],
)
async def test_another_accounts_ids_in_a_body_name_nothing(
    method: str, path: str, body: dict[str, str], database: Database, client: httpx.AsyncClient, victim: Tenant
) -> None:
    """FO-080: An admin cannot make a key, a project, a secret or a notice for somebody else, nor be told of them."""
    stranger = await new_tenant(database, client, "stranger")
    before = await everything(database)

    async def ask(ids: dict[str, str]) -> httpx.Response:
        given = {name: ids.get(str(value), value) for name, value in body.items()}
        return await client.request(method, path, json=given, headers=bearer(stranger.api.key))

    foreign, missing = await ask(victim.ids), await ask(dict.fromkeys(victim.ids, NOBODY))
    assert_problem(foreign, 404)
    assert foreign.text == missing.text
    assert await everything(database) == before


@pytest.mark.parametrize("query", ["project_id=projects", "account_id=accounts", ""])
async def test_lists_show_ones_own(query: str, database: Database, client: httpx.AsyncClient, victim: Tenant) -> None:
    """FO-080: Whatever a list is filtered by, it has nothing of another account."""
    stranger = await new_tenant(database, client, "stranger")
    name, _, kind = query.partition("=")
    for path in (
        "/v1/accounts",
        "/v1/projects",
        "/v1/keys",
        "/v1/signing-secrets",
        "/v1/notices",
        "/v1/jobs",
        "/v1/usage",
    ):
        answer = await stranger.api.get(path, params={name: victim.ids[kind]} if query else {})
        if answer.status_code == 200 and query:
            assert answer.json()["data"] == []
        assert answer.status_code in (200, 422)
        assert SECRET not in answer.text
        assert victim.ids["accounts"] not in answer.text
        assert victim.ids["projects"] not in answer.text


async def test_each_call_needs_its_scope(database: Database, client: httpx.AsyncClient) -> None:
    """Each scope alone opens just what needs it; what lacks is named. Operators' calls are closed to every other admin,
    and an operator's key that lacks the scope cannot make them either.
    """
    tenant = await new_tenant(database, client, "tenant")
    project_id = tenant.api.project.owner.project_id
    keys = {scope: (await create_key(database, project_id, scope, scopes=[scope])).key for scope in SCOPES}
    operator = await new_operator(database, client)
    reading = await create_key(database, operator.project.owner.project_id, "r", scopes=["read", "write"])
    ids = dict.fromkeys(tenant.ids, NOBODY)

    for call in calls():
        for scope, key in keys.items():
            answer = await ask(client, call, ids, key)
            if scope == call.scope:
                assert answer.status_code != 401, call
                if answer.status_code == 403:
                    assert answer.json()["type"] == "urn:duly:problem:operator-only"
                    assert call.path.startswith(("/v1/accounts", "/v1/plans"))
            else:
                assert assert_problem(answer, 403)["type"] == "urn:duly:problem:missing-scope"
                assert f'scope="{call.scope}"' in answer.headers["www-authenticate"], call
        if call.scope == "admin":
            assert_problem(await ask(client, call, ids, reading.key), 403)
            assert (await ask(client, call, ids, operator.key)).status_code not in (401, 403), call


async def test_a_disabled_accounts_keys_open_nothing(
    database: Database, client: httpx.AsyncClient, victim: Tenant
) -> None:
    """403 whatever is asked, with its own ids, and nothing is shown or changed."""
    await disable_account(database, victim.api.project.account_id)
    before = await everything(database)
    for call in calls():
        answer = await victim.call(call, victim.ids)
        assert assert_problem(answer, 403)["type"] == "urn:duly:problem:account-disabled"
        assert SECRET not in answer.text
    assert await everything(database) == before


async def test_a_key_of_one_account_cannot_take_an_id_of_another(
    database: Database, client: httpx.AsyncClient, victim: Tenant
) -> None:
    """An id that somebody else's job has is a conflict that shows nothing of it, and a unique key is one's own."""
    stranger = await new_tenant(database, client, "stranger")
    answer = await stranger.api.post("/v1/jobs", {"url": TARGET, "id": victim.ids["jobs"]})
    assert_problem(answer, 409)
    assert SECRET not in answer.text
    assert (await stranger.api.create(unique_key=SECRET))["unique_key"] == SECRET


async def test_what_an_admin_gives_away_stays_in_the_account(
    database: Database, client: httpx.AsyncClient, victim: Tenant
) -> None:
    """A key that an account's admin makes, with all scopes there are, is no operator's."""
    made = await victim.api.post("/v1/keys", {"name": "all", "scopes": sorted(SCOPES)})
    key = made.json()["key"]
    answer = await client.get("/v1/accounts", headers=bearer(key))
    assert [account["id"] for account in answer.json()["data"]] == [victim.ids["accounts"]]
    assert_problem(await client.post("/v1/accounts", json={"name": "x"}, headers=bearer(key)), 403)
    change = {"limits": {"running": 1_000_000}}
    answer = await client.patch(f"/v1/accounts/{victim.ids['accounts']}", json=change, headers=bearer(key))
    assert_problem(answer, 403)
    assert (await get_account(database, victim.api.project.account_id)).limits == {}


async def test_every_call_without_the_database_is_503(
    database: Database, database_url: str, policy: EgressPolicy, client: httpx.AsyncClient, victim: Tenant
) -> None:
    """503 with Retry-After from each of them, nothing is accepted; and when the database is back all is well."""
    before = await everything(database)
    async with proxied(database_url) as proxy, await Database.open(proxy.url) as db:
        server = ApiServer(create_app(db, policy, ApiSettings()))
        host, port = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as cut_off:
            tenant = Tenant(Api(cut_off, victim.api.project, victim.api.key), victim.ids)
            proxy.mode = "refuse"
            proxy.cut()
            for call in calls():
                answer = await tenant.call(call, victim.ids)
                assert_problem(answer, 503)
                assert answer.headers["retry-after"]
            proxy.mode = "pass"
            assert (await tenant.api.get("/v1/usage")).status_code == 200
        await server.stop()
    assert await everything(database) == before
