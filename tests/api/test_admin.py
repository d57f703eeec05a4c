"""Accounts, plans, projects, keys and signing secrets over the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from api.harness import TARGET, Api, Worker, assert_problem, pointers
from api.tenants import NOBODY, Tenant, bearer, new_operator, new_tenant
from duly.queue import Database
from duly.service import SCOPES, list_secrets
from duly.service.accounts import MOST_PROJECTS
from duly.service.keys import MOST_KEYS
from duly.service.secrets import MOST_SECRETS


@pytest.fixture
async def operator(database: Database, client: httpx.AsyncClient) -> Api:
    return await new_operator(database, client)


@pytest.fixture
async def tenant(database: Database, client: httpx.AsyncClient) -> Tenant:
    return await new_tenant(database, client, "acme")


async def send(api: Api, method: str, path: str, body: Any = None) -> httpx.Response:
    return await api.client.request(method, path, json=body, headers=bearer(api.key))


async def made(api: Api, path: str, body: Any) -> dict[str, Any]:
    answer = await api.post(path, body)
    assert answer.status_code == 201, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_from_an_operators_key_to_a_tenants_first_job(operator: Api) -> None:
    """A plan, an account, a project, a key: and the account works, within its plan."""
    answer = await send(operator, "PUT", "/v1/plans/small", {"limits": {"running": 5, "horizon": "30d"}})
    assert answer.status_code == 200
    assert answer.json()["limits"] == {"running": 5, "horizon": 2_592_000}
    account = await made(operator, "/v1/accounts", {"name": "acme", "plan": "small", "limits": {"stored": 9}})
    assert account["effective_limits"]["running"] == 5
    assert account["effective_limits"]["stored"] == 9
    project = await made(operator, "/v1/projects", {"name": "live", "account_id": account["id"]})
    assert project["signing_secret"]["secret"].startswith("whsec_")
    key = await made(operator, "/v1/keys", {"name": "app", "project_id": project["id"]})
    assert key["scopes"] == ["read", "write"]
    headers = bearer(key["key"])
    answer = await operator.client.post("/v1/jobs", json={"url": TARGET}, headers=headers)
    assert answer.status_code == 201
    usage = (await operator.client.get("/v1/usage", headers=headers)).json()
    assert (usage["due_backlog"], usage["stored"], usage["limits"]["running"]) == (1, 1, 5)
    assert_problem(await operator.client.get("/v1/keys", headers=headers), 403)


async def test_a_plan_reaches_its_accounts_at_once(database: Database, operator: Api) -> None:
    """What claiming and pruning go by follows the plan, unless the account has a limit of its own; null of its own is
    no limit.
    """

    async def columns() -> tuple[Any, ...]:
        row = await database.fetchrow(
            "select concurrency, extract(epoch from keep) as keep from duly.account where name = 'acme'"
        )
        assert row is not None
        return row["concurrency"], row["keep"]

    await send(operator, "PUT", "/v1/plans/p", {"limits": {"running": 5, "keep": "2d"}})
    account = await made(operator, "/v1/accounts", {"name": "acme", "plan": "p"})
    assert await columns() == (5, 172_800)
    await send(operator, "PUT", "/v1/plans/p", {"limits": {"running": 7}})
    assert await columns() == (7, None)
    path = f"/v1/accounts/{account['id']}"
    await send(operator, "PATCH", path, {"limits": {"running": 3}})
    await send(operator, "PUT", "/v1/plans/p", {"limits": {"running": 8, "keep": 3600}})
    assert await columns() == (3, 3600)
    answer = await send(operator, "PATCH", path, {"limits": {"running": None}})
    assert answer.json()["effective_limits"]["running"] is None
    assert await columns() == (None, 3600)
    answer = await send(operator, "PATCH", path, {"plan": None, "limits": {}})
    assert answer.json()["plan"] is None
    assert await columns() == (None, None)
    answer = await send(operator, "PATCH", path, {"name": "acme ltd"})
    assert (answer.json()["name"], answer.json()["plan"]) == ("acme ltd", None)


async def test_a_plan_in_use_stays(operator: Api) -> None:
    """Deleted only when no account has it; unknown ones are 404."""
    await send(operator, "PUT", "/v1/plans/p", {"limits": {}})
    account = await made(operator, "/v1/accounts", {"name": "acme", "plan": "p"})
    assert_problem(await send(operator, "DELETE", "/v1/plans/p"), 409)
    await send(operator, "PATCH", f"/v1/accounts/{account['id']}", {"plan": None})
    assert (await send(operator, "DELETE", "/v1/plans/p")).status_code == 204
    assert_problem(await send(operator, "DELETE", "/v1/plans/p"), 404)
    assert_problem(await send(operator, "GET", "/v1/plans/p"), 404)
    assert_problem(await send(operator, "GET", "/v1/plans/a%00b"), 404)
    assert (await operator.get("/v1/plans")).json() == {"data": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "wrong"),
    [
        ("POST", "/v1/accounts", {}, {"/name"}),
        ("POST", "/v1/accounts", {"name": " x"}, {"/name"}),
        ("POST", "/v1/accounts", {"name": "x\u0000"}, {"/name"}),
        ("POST", "/v1/accounts", {"name": 1, "plan": 2, "more": 3}, {"/name", "/plan", "/more"}),
        ("POST", "/v1/accounts", {"name": "x", "plan": "none"}, {"/plan"}),
        ("POST", "/v1/accounts", {"name": "operator"}, {"/name"}),
        (
            "POST",
            "/v1/accounts",
            {"name": "x", "limits": {"running": 0, "stored": -1, "horizon": "x", "keep": "1m", "other": 1}},
            {"/limits/running", "/limits/stored", "/limits/horizon", "/limits/keep", "/limits/other"},
        ),
        (
            "PUT",
            "/v1/plans/p",
            {"limits": {"running": True, "request_rate": "x", "monthly_quota": 1.5, "body_bytes": "1"}},
            {"/limits/running", "/limits/request_rate", "/limits/monthly_quota", "/limits/body_bytes"},
        ),
        ("PUT", "/v1/plans/p", {}, {"/limits"}),
        ("PUT", "/v1/plans/-p", {"limits": {}}, {"/name"}),
        ("PUT", "/v1/plans/a%20b", {"limits": {}}, {"/name"}),
        ("POST", "/v1/projects", {"name": "x", "account_id": "me"}, {"/account_id"}),
        ("POST", "/v1/projects", {"name": "operator"}, {"/name"}),
        ("POST", "/v1/keys", {"name": "x", "scopes": []}, {"/scopes"}),
        ("POST", "/v1/keys", {"name": "x", "scopes": ["read", "root"]}, {"/scopes"}),
        ("POST", "/v1/keys", {"name": "x", "scopes": "admin"}, {"/scopes"}),
        ("POST", "/v1/keys", {"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, {"/expires_at"}),
        ("POST", "/v1/keys", {"name": "x", "expires_at": "2030-01-01"}, {"/expires_at"}),
        ("POST", "/v1/keys", {"name": "x", "expires_in": "99999d"}, {"/expires_in"}),
        ("POST", "/v1/keys", {"name": "x", "expires_in": 5, "expires_at": "2999-01-01T00:00:00Z"}, {"/expires_in"}),
        ("POST", "/v1/signing-secrets/rotate", {"overlap": -1}, {"/overlap"}),
        ("POST", "/v1/signing-secrets/rotate", {"overlap": "1000d"}, {"/overlap"}),
    ],
)
async def test_what_is_wrong_is_named(method: str, path: str, body: Any, wrong: set[str], operator: Api) -> None:
    """422 with every fault at its pointer, and nothing is made."""
    answer = await send(operator, method, path, body)
    assert pointers(assert_problem(answer, 422)) == wrong
    assert len((await operator.get("/v1/accounts")).json()["data"]) == 1
    assert (await operator.get("/v1/plans")).json()["data"] == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": NaN}'])
async def test_bodies_that_are_no_object(text: str, operator: Api) -> None:
    """400 where a body is needed; one that is not sent at all, too."""
    answer = await operator.post("/v1/accounts", text)
    assert answer.status_code in (400, 422)
    assert_problem(answer, answer.status_code)


async def test_a_header_that_does_nothing_is_refused(operator: Api) -> None:
    """Idempotency-Key is for jobs: made twice under one key, a key would be two, and nobody be told."""
    answer = await operator.post("/v1/keys", {"name": "k"}, headers={"idempotency-key": "x"})
    assert_problem(answer, 422)


async def test_a_member_that_is_given_twice_is_refused(operator: Api) -> None:
    """Also where nothing else is wrong."""
    answer = await operator.post("/v1/accounts", '{"name": "x", "plan": null, "plan": null}')
    assert pointers(assert_problem(answer, 422)) == {"/plan"}


async def test_a_key_is_shown_once_and_refused_at_once(client: httpx.AsyncClient, tenant: Tenant) -> None:
    """The list has everything but the key; a revoked key, an expired key and one of a deleted project are 401."""
    key = await made(tenant.api, "/v1/keys", {"name": "app", "scopes": ["write", "read"], "expires_in": "1h"})
    assert key["key"].startswith(key["hint"])
    assert len(key["key"]) == len("duly_") + 43
    ends = datetime.fromisoformat(key["expires_at"])
    assert timedelta(minutes=59) < ends - datetime.now(UTC) <= timedelta(hours=1)
    listed = await tenant.api.get("/v1/keys")
    assert key["key"] not in listed.text
    assert [one["name"] for one in listed.json()["data"]] == ["acme-key", "app"]
    assert listed.json()["data"][1] | {"key": key["key"]} == key
    assert (await client.get("/v1/jobs", headers=bearer(key["key"]))).status_code == 200
    used = (await tenant.api.get(f"/v1/keys/{key['id']}")).json()["last_used_at"]
    assert used is not None
    for _ in range(2):
        revoked = await tenant.api.post(f"/v1/keys/{key['id']}/revoke")
        assert revoked.json()["revoked_at"] is not None
        assert_problem(await client.get("/v1/jobs", headers=bearer(key["key"])), 401)
    assert_problem(await tenant.api.post(f"/v1/keys/{key['id']}/rotate"), 409)


async def test_rotation_of_a_key_overlaps(database: Database, client: httpx.AsyncClient, tenant: Tenant) -> None:
    """The new key has what the old one had; the old one works until the overlap ends, and with none not at all."""
    old = await made(tenant.api, "/v1/keys", {"name": "app", "scopes": ["read"], "expires_in": "30d"})
    new = await made(tenant.api, f"/v1/keys/{old['id']}/rotate", {"overlap": "1h"})
    assert (new["name"], new["scopes"], new["project_id"]) == ("app", ["read"], old["project_id"])
    assert new["key"] != old["key"]
    lives = datetime.fromisoformat(new["expires_at"]) - datetime.fromisoformat(new["created_at"])
    assert abs(lives - timedelta(days=30)) < timedelta(seconds=5)
    for key in (old, new):
        assert (await client.get("/v1/jobs", headers=bearer(key["key"]))).status_code == 200
    shown = (await tenant.api.get(f"/v1/keys/{old['id']}")).json()
    assert datetime.fromisoformat(shown["expires_at"]) <= datetime.now(UTC) + timedelta(hours=1)
    last = await made(tenant.api, f"/v1/keys/{new['id']}/rotate", {"overlap": 0})
    assert_problem(await client.get("/v1/jobs", headers=bearer(new["key"])), 401)
    assert (await client.get("/v1/jobs", headers=bearer(last["key"]))).status_code == 200


async def test_the_members_of_the_admin_scope(operator: Api, tenant: Tenant) -> None:
    """Who administers: the keys with that scope, of the account, or for an operator of all accounts."""
    await made(tenant.api, "/v1/keys", {"name": "reader", "scopes": ["read"]})
    answer = await tenant.api.get("/v1/keys", params={"scope": "admin"})
    assert [key["name"] for key in answer.json()["data"]] == ["acme-key"]
    answer = await operator.get("/v1/keys", params={"scope": "admin"})
    assert {key["name"] for key in answer.json()["data"]} == {"operator", "acme-key"}
    assert_problem(await operator.get("/v1/keys", params={"scope": "root"}), 422)


async def test_lists_go_page_by_page(operator: Api) -> None:
    """Every item once, in the order of creation, whatever the size of a page; bad parameters are named."""
    names = [f"a{n}" for n in range(7)]
    for name in names:
        await made(operator, "/v1/accounts", {"name": name})
    for limit in (1, 3, 200):
        seen, cursor = [], None
        while True:
            query = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            page = (await operator.get("/v1/accounts", params=query)).json()
            assert len(page["data"]) <= limit
            seen += [account["name"] for account in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == ["operator", *names]
    for query in ({"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"cursor": "x"}, {"cursor": "a" * 24}, {"x": "1"}):
        assert_problem(await operator.get("/v1/accounts", params=query), 422)
    assert_problem(await operator.get("/v1/projects?account_id=1&account_id=2"), 422)
    assert_problem(await operator.get("/v1/projects?account_id=%00"), 422)


async def test_a_project_goes_when_nothing_of_it_is_left_to_do(
    database: Database, client: httpx.AsyncClient, tenant: Tenant
) -> None:
    """Refused while a job has not ended, wherever it stands; then its keys are nobody's and its name is free."""
    project = await made(tenant.api, "/v1/projects", {"name": "trial"})
    renamed = await send(tenant.api, "PATCH", f"/v1/projects/{project['id']}", {"name": "trial 2"})
    assert renamed.json()["name"] == "trial 2"
    assert_problem(await send(tenant.api, "PATCH", f"/v1/projects/{project['id']}", {"name": "acme-project"}), 422)
    key = await made(tenant.api, "/v1/keys", {"name": "k", "project_id": project["id"], "scopes": ["read", "write"]})
    path = f"/v1/projects/{project['id']}"
    await tenant.api.create()  # another project's is no hindrance
    for members in ({"delay": "1h"}, {"delay": 0}):
        job = await client.post("/v1/jobs", json={"url": TARGET, **members}, headers=bearer(key["key"]))
        assert_problem(await send(tenant.api, "DELETE", path), 409)
        answer = await client.post(f"/v1/jobs/{job.json()['id']}/cancel", headers=bearer(key["key"]))
        assert answer.status_code == 200
    assert (await send(tenant.api, "DELETE", path)).status_code == 204
    assert_problem(await client.get("/v1/jobs", headers=bearer(key["key"])), 401)
    assert_problem(await send(tenant.api, "DELETE", path), 404)
    assert_problem(await send(tenant.api, "GET", path), 404)
    assert_problem(await send(tenant.api, "GET", f"/v1/keys/{key['id']}"), 404)
    assert (await made(tenant.api, "/v1/projects", {"name": "trial 2"}))["id"] != project["id"]


async def test_a_running_job_keeps_its_project(client: httpx.AsyncClient, tenant: Tenant, worker: Worker) -> None:
    """Also one that a worker has, until it ends."""
    job = await tenant.api.create()
    await worker.claim()
    assert (await tenant.api.job(job["id"]))["state"] == "running"
    assert_problem(await send(tenant.api, "DELETE", f"/v1/projects/{tenant.ids['projects']}"), 409)


async def test_a_disabled_account_starts_nothing_and_loses_nothing(
    database: Database, operator: Api, tenant: Tenant, worker: Worker
) -> None:
    """What runs ends as ever; what waits waits, and goes on when the account is enabled."""
    first, second = await tenant.api.create(), await tenant.api.create()
    running = await worker.claim()
    assert str(running.id) == first["id"]
    path = f"/v1/accounts/{tenant.ids['accounts']}"
    answer = await send(operator, "POST", f"{path}/disable")
    assert answer.json()["disabled_at"] is not None
    assert answer.json() == (await send(operator, "POST", f"{path}/disable")).json()
    with pytest.raises(ValueError, match="not enough values"):
        await worker.claim()
    await send(operator, "PATCH", path, {"limits": {"running": 5}})
    with pytest.raises(ValueError, match="not enough values"):
        await worker.claim()
    assert (await send(operator, "POST", f"{path}/enable")).json()["disabled_at"] is None
    assert str((await worker.claim()).id) == second["id"]
    assert await database.fetchval("select concurrency from duly.account where name = 'acme'") == 5


async def test_an_account_is_deleted_in_safe_steps(
    database: Database, client: httpx.AsyncClient, operator: Api, tenant: Tenant
) -> None:
    """Disabled for a minute, since a request may be that late, and with no job that has not ended; then it is gone and
    its name is free.
    """
    job = await tenant.api.create(delay="1h")
    path = f"/v1/accounts/{tenant.ids['accounts']}"
    assert_problem(await send(operator, "DELETE", path), 409)
    await send(operator, "POST", f"{path}/disable")
    assert_problem(await send(operator, "DELETE", path), 409)
    await database.execute("update duly.account set disabled_at = now() - interval '61 seconds' where not operator")
    assert_problem(await send(operator, "DELETE", path), 409)
    await send(operator, "POST", f"{path}/enable")
    assert (await tenant.api.post(f"/v1/jobs/{job['id']}/cancel")).status_code == 200
    await send(operator, "POST", f"{path}/disable")
    await database.execute("update duly.account set disabled_at = now() - interval '61 seconds' where not operator")
    assert (await send(operator, "DELETE", path)).status_code == 204
    assert_problem(await tenant.api.get("/v1/jobs"), 401)
    for method, tail in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/enable"), ("POST", "/disable")):
        assert_problem(await send(operator, method, f"{path}{tail}", {"name": "x"}), 404)
    assert (await made(operator, "/v1/accounts", {"name": "acme"}))["id"] != tenant.ids["accounts"]


async def test_nobody_locks_the_operator_out(operator: Api) -> None:
    """The operator's account can be neither disabled nor deleted."""
    [account] = (await operator.get("/v1/accounts")).json()["data"]
    assert account["operator"]
    assert_problem(await send(operator, "POST", f"/v1/accounts/{account['id']}/disable"), 409)
    assert_problem(await send(operator, "DELETE", f"/v1/accounts/{account['id']}"), 409)


async def test_signing_secrets(database: Database, tenant: Tenant) -> None:
    """Shown once; rotated with an overlap, beside those that there are; the last one without an end cannot go."""
    project = tenant.api.project.owner.project_id
    [first] = await list_secrets(database, project)
    new = await made(tenant.api, "/v1/signing-secrets/rotate", {"overlap": "2h"})
    listed = await list_secrets(database, project)
    assert [new["secret"], first.text] == [secret.text for secret in listed]
    shown = await tenant.api.get("/v1/signing-secrets")
    assert [one["id"] for one in shown.json()["data"]] == [str(first.id), new["id"]]
    assert "whsec" not in shown.text
    assert_problem(await tenant.api.post(f"/v1/signing-secrets/{new['id']}/revoke"), 409)
    assert (await tenant.api.post(f"/v1/signing-secrets/{first.id}/revoke")).status_code == 204
    assert_problem(await tenant.api.post(f"/v1/signing-secrets/{first.id}/revoke"), 404)
    more = await made(tenant.api, "/v1/signing-secrets", {"project_id": tenant.ids["projects"]})
    assert (await tenant.api.post(f"/v1/signing-secrets/{new['id']}/revoke")).status_code == 204
    assert [secret.text for secret in await list_secrets(database, project)] == [more["secret"]]
    assert_problem(await tenant.api.post(f"/v1/signing-secrets/{NOBODY}/revoke"), 404)
    assert_problem(await tenant.api.post("/v1/signing-secrets/no-id/revoke"), 404)
    rotated = await made(tenant.api, "/v1/signing-secrets/rotate", {"overlap": 0})
    assert [secret.text for secret in await list_secrets(database, project)] == [rotated["secret"]]


async def test_nothing_grows_without_bound(database: Database, tenant: Tenant) -> None:
    """A tenant's admin can make so many signing secrets, keys and projects, and not one more."""
    for _ in range(MOST_SECRETS - 1):
        await made(tenant.api, "/v1/signing-secrets", {})
    assert_problem(await tenant.api.post("/v1/signing-secrets", {}), 409)
    assert_problem(await tenant.api.post("/v1/signing-secrets/rotate", {}), 409)
    await made(tenant.api, "/v1/signing-secrets/rotate", {"overlap": 0})
    await database.execute(
        """insert into duly.api_key (id, project_id, name, hint, secret_hash, scopes)
           select duly.uuid7(), $1, 'k', 'h', sha256(n::text::bytea), '{read}'
             from generate_series(2, $2::integer) n""",
        tenant.api.project.owner.project_id,
        MOST_KEYS,
    )
    assert_problem(await tenant.api.post("/v1/keys", {"name": "one more"}), 409)
    await database.execute(
        """insert into duly.project (public_id, account_id, name)
           select duly.uuid7(), $1, 'p' || n from generate_series(2, $2::integer) n""",
        tenant.api.project.owner.account_id,
        MOST_PROJECTS,
    )
    assert_problem(await tenant.api.post("/v1/projects", {"name": "one more"}), 409)


async def test_scopes_are_all_that_there_are(tenant: Tenant) -> None:
    """A key may have all of them, once each."""
    key = await made(tenant.api, "/v1/keys", {"name": "all", "scopes": [*sorted(SCOPES), "read"]})
    assert set(key["scopes"]) == SCOPES
    assert len(key["scopes"]) == len(SCOPES)
