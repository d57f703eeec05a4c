"""`duly admin`: everything an operator does, without a key, as tables for people and as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.harness import Result, Starter, duly, free_port


@pytest.fixture
def admin(database_url: str) -> Any:
    """Run `duly admin …` on the test's database."""

    def run(*args: object) -> Result:
        return duly("admin", *args, "--database-url", database_url)

    return run


def told(result: Result) -> Any:
    assert result.code == 0, result.said
    return result.json


def test_from_an_empty_installation_to_a_tenants_key(admin: Any, database_url: str, start: Starter) -> None:
    """FO-081: The first admin key, a plan, an account, a project, a key: over the API they do what they say, and a key
    that is revoked here is refused by the running API at once. All keys are listed.
    """
    first = told(admin("bootstrap", "--json"))
    assert first["scopes"] == ["admin"]
    plan = told(admin("plans", "set", "small", "--limit", "running=5", "--limit", "horizon=30d", "--json"))
    assert plan[0]["limits"] == {"running": 5, "horizon": 2_592_000}
    [account] = told(admin("accounts", "create", "acme", "--plan", "small", "--limit", "stored=none", "--json"))
    assert account["limits"] == {"stored": None}
    project = told(admin("projects", "create", "acme", "live", "--json"))
    assert project["signing_secret"]["secret"].startswith("whsec_")
    key = told(admin("keys", "create", project["id"], "app", "--days", "30", "--json"))
    port = free_port()
    running = start("api", "--port", port, "--database-url", database_url)
    running.says("API on")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def asks(path: str, key: str) -> httpx.Response:
            return client.get(path, headers={"authorization": f"Bearer {key}"})

        assert asks("/v1/usage", key["key"]).json()["limits"]["running"] == 5
        names = [one["name"] for one in asks("/v1/accounts", first["key"]).json()["data"]]
        assert names == ["operator", "acme"]
        listed = told(admin("keys", "list", "--project", project["id"], "--json"))
        assert [(one["id"], one["name"]) for one in listed] == [(key["id"], "app")]
        assert key["key"] not in json.dumps(listed)
        new = told(admin("keys", "rotate", key["id"], "--overlap", "1h", "--json"))
        assert {asks("/v1/usage", one["key"]).status_code for one in (key, new)} == {200}
        assert told(admin("keys", "revoke", key["id"], "--json"))[0]["revoked_at"]
        assert asks("/v1/usage", key["key"]).status_code == 401
        told(admin("accounts", "disable", "acme", "--json"))
        assert asks("/v1/usage", new["key"]).status_code == 403
        told(admin("accounts", "enable", account["id"], "--json"))
        assert asks("/v1/usage", new["key"]).status_code == 200
    members = told(admin("keys", "list", "--scope", "admin", "--json"))
    assert [one["name"] for one in members] == ["operator"]


def test_limits_of_an_account(admin: Any) -> None:
    """Set one by one; one that goes back to the plan; what is wrong is said, all of it."""
    told(admin("plans", "set", "p", "--limit", "running=5", "--json"))
    told(admin("accounts", "create", "acme", "--json"))
    [account] = told(admin("accounts", "set", "acme", "--limit", "running=3", "--limit", "keep=2d", "--json"))
    assert account["limits"] == {"running": 3, "keep": 172_800}
    set_more = ("--plan", "p", "--limit", "running=plan", "--limit", "request_rate=0.5", "--name", "acme ltd")
    [account] = told(admin("accounts", "set", "acme", *set_more, "--json"))
    assert account["limits"] == {"keep": 172_800, "request_rate": 0.5}
    assert (account["name"], account["effective"]["running"]) == ("acme ltd", 5)
    found = admin("usage", "acme ltd", "--json")
    assert told(found)["slots_in_use"] == 0
    wrong = admin("accounts", "set", "acme ltd", "--limit", "running=many", "--limit", "size=1")
    assert wrong.code == 1
    assert "--limit/running: must be a whole number" in wrong.said
    assert "--limit/size: is not a limit" in wrong.said
    for said in (
        admin("accounts", "set", "acme ltd", "--limit", "running"),
        admin("accounts", "set", "acme ltd", "--limit", "running=1", "--limit", "running=2"),
        admin("accounts", "set", "nobody", "--limit", "running=1"),
        admin("plans", "delete", "p"),
        admin("accounts", "delete", "acme ltd"),
        admin("keys", "list", "--scope", "root"),
    ):
        assert said.code == 1
        assert said.said.startswith("duly: ")


def test_signing_secrets_and_the_end_of_things(admin: Any) -> None:
    """Made, listed without the secret, rotated, revoked; then the project and the plan go."""
    told(admin("plans", "set", "p", "--json"))
    told(admin("accounts", "create", "acme", "--json"))
    project = told(admin("projects", "create", "acme", "live", "--json"))
    more = admin("secrets", "create", project["id"])
    assert more.out.startswith("whsec_")
    rotated = told(admin("secrets", "rotate", project["id"], "--overlap", "1h", "--json"))
    listed = told(admin("secrets", "list", "--project", project["id"], "--json"))
    assert listed[-1]["id"] == rotated["id"]
    assert len(listed) == 3
    assert "whsec" not in json.dumps(listed)
    assert admin("secrets", "revoke", listed[0]["id"]).code == 0
    assert "last signing secret" in admin("secrets", "revoke", rotated["id"]).said
    for table in ("accounts", "plans", "projects", "keys", "secrets"):
        assert admin(table, "list").code == 0
    assert admin("projects", "delete", project["id"]).out == "deleted\n"
    assert admin("plans", "delete", "p").out == "deleted\n"


def test_up_makes_an_admin_key(start: Starter, home: Path) -> None:
    """`duly up` leaves one in its credentials, and a second start keeps it."""
    keys: list[str] = []
    for _ in range(2):
        port = free_port()
        running = start("up", "--home", home, "--port", port)
        running.says("Duly is up")
        credentials = json.loads((home / "credentials.json").read_text())
        headers = {"authorization": f"Bearer {credentials['admin_key']}"}
        answer = httpx.post(f"{credentials['url']}/v1/accounts", json={"name": f"a{len(keys)}"}, headers=headers)
        assert answer.status_code == 201, answer.text
        keys.append(credentials["admin_key"])
        assert running.stop().code == 0
    assert keys[0] == keys[1]
