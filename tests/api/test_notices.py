"""/v1/notices: set, changed, tried and removed; what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.harness import Api, assert_problem, new_api, pointers
from api.tenants import NOBODY, new_operator, new_tenant
from duly.queue import Database
from duly.service import SCOPES
from duly.service.notices import MOST_NOTICES, TYPES

URL = "https://hooks.dev/duly"


@pytest.fixture
async def admin(database: Database, client: httpx.AsyncClient) -> Api:
    return await new_api(database, client, "admin", sorted(SCOPES))


async def put(api: Api, **members: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {api.key}"}
    return await api.client.put("/v1/notices", json={"url": URL, **members}, headers=headers)


async def test_a_notice_is_put_read_changed_and_deleted(admin: Api) -> None:
    """201 with all defaults; the same URL again is the same notice, 200; then it is gone."""
    made = await put(admin)
    assert made.status_code == 201
    notice = made.json()
    assert (
        notice
        | {
            "url": URL,
            "about": "project",
            "project_id": str(admin.project.id),
            "account_id": str(admin.project.account_id),
            "types": list(TYPES),
            "dead_letters": 10,
            "dead_within": 600.0,
            "queue": "notices",
        }
        == notice
    )
    changed = await put(admin, types=["quota_near", "dead_letters"], dead_letters=3, dead_within="1h", queue="ops")
    assert (changed.status_code, changed.json()["id"]) == (200, notice["id"])
    assert changed.json()["types"] == ["dead_letters", "quota_near"]
    path = f"/v1/notices/{notice['id']}"
    assert (await admin.get(path)).json() == changed.json()
    assert (await put(admin, about="account")).status_code == 201  # about something else it is another
    [first, second] = (await admin.get("/v1/notices")).json()["data"]
    assert (first["about"], second["about"]) == ("project", "account")
    headers = {"authorization": f"Bearer {admin.key}"}
    assert (await admin.client.delete(path, headers=headers)).status_code == 204
    assert_problem(await admin.client.delete(path, headers=headers), 404)
    assert len((await admin.get("/v1/notices", params={"project_id": str(admin.project.id)})).json()["data"]) == 1


async def test_a_test_makes_a_job_of_the_project(admin: Api) -> None:
    """Visible in its history as every notice, and it counts as any job."""
    notice = (await put(admin)).json()
    answer = await admin.post(f"/v1/notices/{notice['id']}/test")
    assert answer.status_code == 201
    job = await admin.job(answer.json()["job_id"])
    assert (job["url"], job["queue"], job["tags"]) == (URL, "notices", ["notice"])
    assert job["metadata"] == {"notice_id": notice["id"], "type": "test"}
    assert_problem(await admin.post(f"/v1/notices/{NOBODY}/test"), 404)


async def test_a_test_is_bound_by_the_accounts_limits(database: Database, client: httpx.AsyncClient) -> None:
    """It is no way round a quota; an operator's test of a customer's notice is not the customer's job to pay for."""
    tenant = await new_tenant(database, client, "tenant", limits={"monthly_quota": 1})
    path = f"/v1/notices/{(await put(tenant.api)).json()['id']}/test"
    assert (await tenant.api.post(path)).status_code == 201
    assert_problem(await tenant.api.post(path), 429)
    operator = await new_operator(database, client)
    assert (await operator.post(path)).status_code == 201


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"url": "http://10.0.0.1/"}, "/url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "/url"),
        ({"url": "http://[::ffff:192.168.0.1]/"}, "/url"),
        ({"url": "http://2130706433:22/"}, "/url"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"url": "https://hooks.dev:22/"}, "/url"),
        ({"url": "x\u0000"}, "/url"),
        ({"url": 7}, "/url"),
        ({"types": []}, "/types"),
        ({"types": ["dead_letters", "all"]}, "/types"),
        ({"types": "dead_letters"}, "/types"),
        ({"about": "me"}, "/about"),
        ({"about": "project", "account_id": NOBODY}, "/account_id"),
        ({"dead_letters": 0}, "/dead_letters"),
        ({"dead_letters": True}, "/dead_letters"),
        ({"dead_letters": 5001}, "/dead_letters"),
        ({"dead_within": "2d"}, "/dead_within"),
        ({"dead_within": 0}, "/dead_within"),
        ({"queue": " "}, "/queue"),
        ({"surprise": 1}, "/surprise"),
    ],
)
async def test_what_is_refused(members: dict[str, Any], where: str, admin: Api) -> None:
    """422 that points at it, without the value; nothing is stored."""
    problem = assert_problem(await put(admin, **members), 422)
    assert pointers(problem) == {where}
    assert "169.254" not in str(problem)
    assert (await admin.get("/v1/notices")).json()["data"] == []


async def test_everything_is_for_operators(admin: Api, database: Database, client: httpx.AsyncClient) -> None:
    """And so is another's account; the customer does not see who is told of it."""
    assert assert_problem(await put(admin, about="everything"), 403)["type"] == "urn:duly:problem:operator-only"
    operator = await new_operator(database, client)
    assert (await put(operator, about="everything")).json()["account_id"] is None
    watched = await put(operator, about="account", account_id=str(admin.project.account_id))
    assert watched.json()["account_id"] == str(admin.project.account_id)
    assert (await admin.get("/v1/notices")).json()["data"] == []
    assert_problem(await admin.get(f"/v1/notices/{watched.json()['id']}"), 404)


async def test_a_project_has_so_many_and_no_more(admin: Api) -> None:
    """409, and one that is there is changed all the same."""
    for n in range(MOST_NOTICES):
        assert (await put(admin, url=f"{URL}/{n}")).status_code == 201
    assert_problem(await put(admin, url=f"{URL}/more"), 409)
    assert (await put(admin, url=f"{URL}/0", dead_letters=7)).status_code == 200
    assert len((await admin.get("/v1/notices")).json()["data"]) == MOST_NOTICES
