"""The keys that seal secrets, as an operator meets them: where they come from, what is refused, what is shown."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path

import pytest

from cli.harness import (
    ENCRYPTION_KEYS,
    Client,
    Starter,
    Target,
    assert_refused,
    duly,
    free_port,
    in_database,
    new_key,
    read_credentials,
    sql,
    wait_until,
)
from duly.cli.keyrings import found_keyring
from duly.cli.own import own_addresses
from duly.http import EgressPolicy, EgressProxy
from duly.http.url import parse_target
from duly.model.errors import InvalidInputError
from duly.service.keyring import new_key as new_key_entry
from support.dumping import everything, found_in

OPEN = ["--allow", "127.0.0.0/8"]
CANARY = "canary-0a1b2c3d4e5f"


@pytest.mark.parametrize("words", [["api", "--port", "0"], ["worker"]], ids=["api", "worker"])
def test_without_keys_nothing_starts(database_url: str, home: Path, words: list[str]) -> None:
    """It says which setting, and the command that makes a key."""
    refused = duly(*words, "--database-url", database_url, "--home", home, DULY_ENCRYPTION_KEYS="")
    assert_refused(refused, "DULY_ENCRYPTION_KEYS", "`duly keys encryption make`", "--no-encryption")


def test_keys_that_cannot_be_used_are_refused(tmp_path: Path, home: Path) -> None:
    """Bad ones, unreadable ones, and settings that contradict each other; by name, and without repeating a key."""
    good, file = {"DULY_ENCRYPTION_KEYS": new_key_entry()}, tmp_path / "keys"
    cases: list[tuple[Path | None, bool, dict[str, str], str]] = [
        (None, False, {"DULY_ENCRYPTION_KEYS": f"a:{CANARY}"}, "DULY_ENCRYPTION_KEYS: entry 1"),
        (None, True, good, "--no-encryption excludes"),
        (file, False, {}, "keys cannot be read|cannot be read: No such file"),
        (file, False, good, "both given"),
        (tmp_path, False, {}, "cannot be read: Is a directory"),
    ]
    for path, no_encryption, environment, words in cases:
        with pytest.raises(InvalidInputError, match=words) as refused:
            found_keyring(path, no_encryption, home, environment)
        assert CANARY not in str(refused.value)
    for content, words in ((b"\xff", "not ASCII"), (b"", "there is no key")):
        file.write_bytes(content)
        with pytest.raises(InvalidInputError, match=words):
            found_keyring(file, False, home, {})
    assert found_keyring(None, False, home, good).seals
    assert not found_keyring(None, True, home, {}).seals


def test_no_encryption_has_to_be_said(database_url: str, start: Starter, home: Path) -> None:
    """Then it starts, and what it stores is in the clear."""
    none = {"DULY_ENCRYPTION_KEYS": ""}
    port = free_port()
    api = start("api", "--database-url", database_url, "--home", home, "--port", port, *OPEN, "--no-encryption", **none)
    api.says("API on")
    client = Client(f"http://127.0.0.1:{port}", new_key(database_url))
    client.create("http://127.0.0.1:9999/", body=CANARY, delay="1h")
    client.close()
    assert CANARY in bytes(sql(database_url, "select body from duly.job")[0]).decode()


def test_no_log_line_and_no_command_shows_a_secret(
    database_url: str, target: Target, start: Starter, tmp_path: Path
) -> None:
    """API and worker at their most talkative, every command that looks at jobs, and a dump of all tables; the keys are
    changed on the way, from a file, and old jobs are delivered.
    """
    old, new = duly("keys", "encryption", "make").out.strip(), new_key_entry()
    file = tmp_path / "keys"
    file.write_text(f"{old}\n")
    given = ["--database-url", database_url]
    settings = {"DULY_ENCRYPTION_KEYS": "", "DULY_ENCRYPTION_KEYS_FILE": str(file)}
    port = free_port()
    api = start("api", *given, "--port", port, *OPEN, "-v", "--log-format", "json", **settings)
    api.says("API on")
    key = duly("keys", "create", *given, **settings).out.strip()
    client = Client(f"http://127.0.0.1:{port}", key)
    secret = {"headers": {"Authorization": f"Bearer {CANARY}", "X-Plain": CANARY}, "body": CANARY}
    jobs = [client.create(target.url, **secret, retry={"max_attempts": 1}) for _ in range(2)]
    later = client.create(target.url, **secret, delay="1h")

    file.write_text(f"{new}\n{old}\n")
    target.answers[:] = [200, 404]
    worker = start("worker", *given, *OPEN, "-v", "--log-format", "json", **settings)
    target.came(2)
    assert sorted(_final(client, job_id) for job_id in jobs) == ["dead", "succeeded"]

    old_id, new_id = old.partition(":")[0], new.partition(":")[0]
    used = json.loads(duly("keys", "encryption", "used", "--json", *given).out)
    by_key = {row["key"]: row for row in used["keys"]}
    assert (by_key[old_id]["unfinished_jobs"], by_key[old_id]["finished_jobs"]) == (1, 2)
    assert by_key[old_id]["signing_secrets"] == 1
    assert by_key[new_id]["answers"] == 2
    resealed = duly("keys", "encryption", "reseal", *given, **settings)
    assert resealed.out == f"signing secrets sealed with {new_id}: 1\n"
    gone = duly("doctor", *given, DULY_ENCRYPTION_KEYS=new)
    assert (gone.code, f"encryption key {old_id} is missing: 1 unfinished jobs" in gone.out) == (1, True), gone

    said = [
        duly(*words, *given, **settings)
        for words in (
            ["jobs", "show", later],
            ["jobs", "show", jobs[0], "--json"],
            ["jobs", "list", "--json"],
            ["dead", "redrive", "--all"],
        )
    ]
    assert [result.code for result in said] == [0] * len(said)
    client.close()
    ends = [worker.stop(), api.stop(signal.SIGINT)]
    for result in (*said, *ends, gone):
        assert CANARY not in result.out + result.err
        assert new.partition(":")[2] not in result.out + result.err
    assert found_in(in_database(database_url, everything), CANARY) == set()


def _final(client: Client, job_id: str) -> str:
    final = ("succeeded", "dead")
    wait_until(lambda: client.job(job_id)["state"] in final, f"job {job_id} ends")
    return str(client.job(job_id)["state"])


def test_up_makes_its_own_key_once(start: Starter, home: Path) -> None:
    """In its home, for its owner alone; a second start takes the same."""
    none = {"DULY_ENCRYPTION_KEYS": ""}
    keys = home / "encryption.keys"
    texts = []
    for _ in range(2):
        up = start("up", "--home", home, "--port", 0, **none)
        up.says("Duly is up")
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        texts.append(keys.read_text())
        client = Client(read_credentials(home)["url"], read_credentials(home)["api_key"])
        client.create("http://127.0.0.1:9999/", body="words", delay="1h")
        client.close()
        if len(texts) == 2:
            [row] = json.loads(duly("keys", "encryption", "used", "--json", "--home", home).out)["keys"]
            assert (row["key"], row["unfinished_jobs"]) == (texts[0].partition(":")[0], 2)
        assert up.stop().code == 0
    assert texts[0] == texts[1]


def test_a_new_account_needs_keys_and_a_known_one_does_not(database_url: str, home: Path) -> None:
    """Its signing secret would be stored in the clear; where nothing is to be sealed no key is asked for."""
    given = ["keys", "create", "--database-url", database_url, "--home", home]
    none = {"DULY_ENCRYPTION_KEYS": ""}
    assert_refused(duly(*given, **none), "no encryption keys")
    assert sql(database_url, "select count(*) from duly.project") == [0]
    assert duly(*given, DULY_ENCRYPTION_KEYS=ENCRYPTION_KEYS).code == 0
    assert duly(*given, **none).code == 0


# What no job may call ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "environment", "places"),
    [
        ("postgresql://db.localhost.invalid/x", {}, []),
        ("postgresql:///x", {}, ["127.0.0.1:5432", "[::1]:5432"]),
        ("postgresql:///x", {"PGHOST": "10.0.0.7", "PGPORT": "6000"}, ["10.0.0.7:6000"]),
        ("postgresql:///x", {"PGHOST": "10.0.0.7,10.0.0.8", "PGPORT": "6000,6001"}, ["10.0.0.7:6000", "10.0.0.8:6001"]),
        ("postgresql:///x", {"PGHOST": "/run/postgresql", "PGPORT": "6000"}, ["127.0.0.1:6000", "[::1]:6000"]),
        ("postgresql:///x?host=/tmp/s&port=7000", {"PGPORT": "6000"}, ["127.0.0.1:7000"]),
        ("postgresql://10.0.0.9/x", {"PGHOST": "10.0.0.7", "PGPORT": "6000"}, ["10.0.0.9:6000"]),
        ("postgresql://10.0.0.9:5433/x", {"PGPORT": "6000"}, ["10.0.0.9:5433"]),
        ("postgresql://u@%2Frun%2Fpostgresql/x", {}, ["127.0.0.1:5432"]),
        ("postgresql://localhost/x", {"PGPORT": "6000"}, ["127.0.0.1:6000", "[::1]:6000"]),
    ],
)
def test_the_database_is_found_as_its_clients_find_it(url: str, environment: dict[str, str], places: list[str]) -> None:
    """What the URL leaves out is PGHOST's and PGPORT's; the folder of a socket means this machine."""
    own = own_addresses(url, [], environment=environment)
    assert set(places) <= set(own)
    assert bool(places) == bool(own)
    EgressPolicy.parse(own=own)  # and can be read


def test_a_listener_on_every_interface_closes_every_address_of_this_machine() -> None:
    """Loopback above all; and the proxy is no target."""
    own = own_addresses("postgresql://10.0.0.9/x", [("0.0.0.0", 8080)], EgressProxy("10.0.0.4", 3128), {})
    assert {"127.0.0.1:8080", "10.0.0.4:3128", "10.0.0.9:5432"} <= set(own)
    policy = EgressPolicy.parse(["10.0.0.0/8"], own=own)
    for place in ("10.0.0.4:3128", "10.0.0.9:5432"):
        with pytest.raises(Exception, match="not allowed"):
            policy.check_target(parse_target(f"http://{place}/"))
    policy.check_target(parse_target("http://10.0.0.4:3129/"))


def test_a_started_service_refuses_its_database_and_its_listener(database_url: str, start: Starter) -> None:
    """Whatever is opened besides; the tests' database is reached through a socket, which tells no address."""
    port = free_port()
    [db_port] = sql(database_url, "select current_setting('port')::integer")
    api = start("api", "--database-url", database_url, "--port", port, *OPEN, "--allow-port", db_port)
    api.says("API on")
    client = Client(f"http://127.0.0.1:{port}", new_key(database_url))
    for closed in (port, db_port):
        answer = client.http.post("/v1/jobs", json={"url": f"http://127.0.0.1:{closed}/"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/url"), answer.text
    client.create(f"http://127.0.0.1:{free_port()}/")
    client.close()


@pytest.mark.parametrize("words", [["api", "--port", "0"], ["worker"]], ids=lambda w: w[0])
def test_a_bad_proxy_is_refused_at_the_start(database_url: str, words: list[str], home: Path) -> None:
    """By its setting's name, without its password."""
    given = ["--database-url", database_url, "--home", home, "--egress-proxy", f"https://u:{CANARY}@proxy:3128"]
    refused = duly(*words, *given)
    assert_refused(refused, "DULY_EGRESS_PROXY")
    assert CANARY not in refused.err


@pytest.mark.parametrize("words", [["worker"], ["up", "--port", "0"]], ids=lambda w: w[0])
def test_a_ca_file_that_cannot_be_read_is_refused_at_the_start(database_url: str, words: list[str], home: Path) -> None:
    """A worker that trusted something else would be found too late."""
    given = ["--database-url", database_url, "--home", home, "--ca-file", "/nowhere/ca.pem"]
    assert_refused(duly(*words, *given), "DULY_CA_FILE", "/nowhere/ca.pem")
