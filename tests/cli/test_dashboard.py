"""`duly dashboard token`, and the dashboard that `duly api` and `duly up` serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from cli.harness import Starter, assert_misused, assert_refused, duly, new_key, put_job, sql


@contextmanager
def signed_in(url: str, key: str) -> Iterator[httpx.Client]:
    """A browser in a session that began with this key."""
    with httpx.Client(base_url=f"{url}/dashboard", timeout=30) as client:
        answer = client.post("/sign-in", data={"key": key})
        assert answer.status_code == 303, answer.text
        yield client


def test_a_token_lets_an_operator_in_and_a_key_its_own_project(database_url: str, start: Starter) -> None:
    """The one sees every project and the workers, the other its own jobs only; the token signs in once."""
    job = put_job(database_url)
    other = duly("keys", "create", "--account", "other", "--database-url", database_url).out.strip()
    made = duly("dashboard", "token", "--scope", "read", "--hours", 1, "--database-url", database_url)
    token = made.out.strip()
    assert token.startswith("duly_operator_")
    assert "signs in once, within 1 h" in made.said
    assert token not in str(sql(database_url, "select * from duly.dashboard_session"))
    api = start("api", "--port", 0, "--database-url", database_url)
    api.says("API on ")
    found = re.search(r"API on (\S+)", api.err)
    assert found
    with signed_in(found[1], token) as operator:
        assert job in operator.get("/jobs").text
        assert operator.get("/workers").status_code == 200
        assert f"/jobs/{job}/cancel" not in operator.get(f"/jobs/{job}").text
        assert operator.post("/sign-in", data={"key": token}).status_code == 403
    with signed_in(found[1], other) as stranger:
        assert job not in stranger.get("/jobs").text
        assert stranger.get("/workers").status_code == 403
    with signed_in(found[1], new_key(database_url)) as member:
        assert job in member.get("/jobs").text


def test_what_is_no_scope_and_no_time_is_refused(database_url: str) -> None:
    """By name."""
    assert_refused(
        duly("dashboard", "token", "--scope", "root", "--database-url", database_url), "root", "read_payloads"
    )
    assert_misused(duly("dashboard", "token", "--hours", "0", "--database-url", database_url), "--hours")


def test_up_prints_a_token_that_signs_in(home: Path, start: Starter) -> None:
    """Beside the address; not into the file of credentials."""
    up = start("up", "--home", home, "--port", 0)
    up.says("Stop with Ctrl-C.")
    found = re.search(r"Dashboard: (\S+)/dashboard/ .*?(duly_operator_[\w-]+)", " ".join(up.out.split()))
    assert found, up.out
    with signed_in(found[1], found[2]) as operator:
        assert "All is well" in operator.get("/").text or "Looking" in operator.get("/").text
    assert found[2] not in (home / "credentials.json").read_text()
