"""`duly send` and `duly tail`: one HTTP job from the command line, followed to its end."""

from __future__ import annotations

import json
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest

from cli.harness import (
    LIMIT_S,
    Result,
    Starter,
    Target,
    assert_refused,
    command,
    duly,
    environment,
    put_job,
    run_by_hand,
    sql,
    state_of,
    wait_until,
)
from cli.test_api_and_worker import new_worker
from duly.model import RetryPolicy

OPEN = ["--allow", "127.0.0.0/8"]
STRANGE = bytes(range(256)) + b"\r\n\x00last"


def fed(data: bytes, *args: object) -> Result:
    """Run a command with something on its stdin."""
    done = subprocess.run(command(*args), capture_output=True, timeout=LIMIT_S, input=data, env=environment())
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def kinds(said: str) -> list[str]:
    return [json.loads(line)["kind"] for line in said.splitlines()]


class Keeper:
    """A target that keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            def _keep(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                keeper.requests.append((self.command, self.path, list(self.headers.items()), body))
                self.send_response(204)
                self.end_headers()

            do_POST = do_PUT = do_DELETE = do_GET = _keep  # noqa: N815  the names that http.server looks for

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_every_way_to_give_a_body_keeps_its_bytes(database_url: str, start: Starter, tmp_path: Path) -> None:
    """Words, a file, stdin, JSON: the target gets exactly these bytes, the method and the headers."""
    file = tmp_path / "body"
    file.write_bytes(STRANGE)
    keeper = Keeper()
    try:
        given = [*OPEN, "--database-url", database_url, "--wait"]
        new_worker(start, database_url)
        runs = [
            duly("send", f"{keeper.url}/words?q=1", "-d", "a=1&b=ü", "-H", "X-One: 1", "-H", "X-One:2", *given),
            duly("send", f"{keeper.url}/file", "-X", "put", "-d", f"@{file}", *given),
            fed(STRANGE, "send", f"{keeper.url}/stdin", "-d", "-", *given),
            duly("send", f"{keeper.url}/json", "--json-data", '{"n": 1.50,  "big": 12345678901234567890}', *given),
            duly("send", f"{keeper.url}/none", "-X", "DELETE", *given),
        ]
        assert [run.code for run in runs] == [0] * 5, runs
    finally:
        keeper.close()
    by_path = {path: (method, headers, body) for method, path, headers, body in keeper.requests}
    method, headers, body = by_path["/words?q=1"]
    assert (method, body) == ("POST", "a=1&b=ü".encode())
    assert [value for name, value in headers if name == "X-One"] == ["1", "2"]
    assert not [name for name, _ in headers if name.lower() == "content-type"]
    assert (by_path["/file"][0], by_path["/file"][2]) == ("PUT", STRANGE)
    assert by_path["/stdin"][2] == STRANGE
    assert by_path["/json"][2] == b'{"n": 1.50,  "big": 12345678901234567890}'
    assert dict(by_path["/json"][1])["Content-Type"] == "application/json"
    assert (by_path["/none"][0], by_path["/none"][2]) == ("DELETE", b"")


def test_what_is_sent_is_stored_as_asked(database_url: str) -> None:
    """Queue, priority, time, limits, tags and key; sealed at rest; a key that is held is told, or content."""
    given = ["http://127.0.0.1:8099/", *OPEN, "--database-url", database_url, "-H", "Authorization: Bearer s3cret"]
    options = ["--queue", "mail", "--priority", 2, "--delay", "90", "--timeout", "5s", "--max-attempts", 3]
    sent = duly("send", *given, *options, "--tag", "a", "--tag", "b", "--unique-key", "k", "-d", "hush", "--json")
    job = sent.json
    assert (job["state"], job["queue"], job["priority"], job["timeout"]) == ("scheduled", "mail", 2, 5)
    assert (job["max_attempts"], job["tags"], job["unique_key"]) == (3, ["a", "b"], "k")
    assert job["headers"] == [["Authorization", "***"]]
    assert sql(database_url, "select extract(epoch from run_at - created_at)::int from duly.job") == [90]
    stored = sql(database_url, "select payload::text || encode(body, 'escape') from duly.job")[0]
    assert "s3cret" not in stored
    assert "hush" not in stored
    assert_refused(duly("send", *given, "--unique-key", "k"), "'k' is held by job")
    kept = duly("send", *given, "--unique-key", "k", "--on-conflict", "keep")
    assert (kept.code, kept.out.strip(), "no other was made" in kept.err) == (0, job["id"], True)
    at = duly("send", *given, "--at", "2199-01-31T09:00:00Z")
    assert_refused(at, "--at: is more than 366d ahead")


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["http://127.0.0.1:9/"], ["URL: target address not allowed", "DULY_EGRESS_ALLOW"]),
        (["ftp://example.com/"], ["URL:"]),
        (["https://example.com/", "-X", "BREW"], ["--method: must be"]),
        (["https://example.com/", "-X", "GET", "-d", "x"], ["--data: a GET request has no body"]),
        (["https://example.com/", "-H", "no colon"], ["--header has no colon"]),
        (["https://example.com/", "-H", "Host: x"], ["--header:"]),
        (["https://example.com/", "--json-data", "{"], ["--json-data is not JSON"]),
        (["https://example.com/", "--json-data", '1, "url": "x"'], ["--json-data is not JSON"]),
        (["https://example.com/", "--json-data", "NaN"], ["--json-data: is no JSON value"]),
        (["https://example.com/", "-d", "@/nonexistent"], ["--data: /nonexistent cannot be read"]),
        (["https://example.com/", "-d", "x", "--json-data", "1"], ["excludes"]),
        (["https://example.com/", "-d", "@/dev/zero"], ["--data: the body is longer than 262144 bytes"]),
        (["https://example.com/", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], ["excludes"]),
        (["https://example.com/", "--delay", "soon"], ["--delay: must be a duration"]),
        (["https://example.com/", "--at", "tomorrow"], ["--at: must be"]),
        (["https://example.com/", "--queue", "a b"], ["--queue: must be"]),
        (["https://example.com/", "--on-conflict", "keep"], ["--on-conflict: goes together with unique_key"]),
        (["https://example.com/", "--account", "nobody"], ["account nobody does not exist"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith(("http", "ftp")) else "",
)
def test_what_cannot_be_sent_says_which_option(database_url: str, words: list[str], about: list[str]) -> None:
    """One sentence with the option's name, and nothing is stored."""
    assert_refused(duly("send", *words, "--database-url", database_url), *about)
    assert sql(database_url, "select count(*) from duly.job") == [0]


def test_waiting_tells_how_it_ended(database_url: str, target: Target, start: Starter) -> None:
    """0 succeeded, 3 dead, 4 cancelled, 124 not yet; as JSON one line for each thing that happened."""
    given = [*OPEN, "--database-url", database_url, "--wait"]
    new_worker(start, database_url)
    fine = duly("send", target.url, "--json", *given)
    assert (fine.code, kinds(fine.out)[-3:]) == (0, ["attempt.began", "attempt.ended", "job.succeeded"])
    target.answers = [400]
    dead = duly("send", target.url, *given)
    assert (dead.code, "the target answered 400" in dead.out, "dead (permanent) after 1 attempt" in dead.out) == (
        3,
        True,
        True,
    )
    late = duly("send", target.url, "--delay", "1h", "--wait-limit", "0.3s", *given)
    assert (late.code, "it goes on" in late.err) == (124, True)
    job_id = late.out.splitlines()[0]
    assert state_of(database_url, job_id) == "scheduled"
    duly("jobs", "cancel", job_id, "--database-url", database_url)
    assert duly("tail", job_id, "--database-url", database_url).code == 4


def test_tail_follows_attempts_as_they_come(database_url: str, target: Target, start: Starter) -> None:
    """An attempt that runs is told before it ends, a retry with its time, then the end; each once."""
    target.hold()
    target.answers = [503, 200]
    worker = new_worker(start, database_url)
    job_id = put_job(database_url, target.url, retry=RetryPolicy(max_attempts=2))
    target.came()
    tail = start("tail", job_id, "--json", "--database-url", database_url)
    tail.says("attempt.began")
    target.release()
    tail.says("job.waits")
    sql(database_url, f"select duly.run_now(account_id, project_id, id) from duly.job where id = '{job_id}'")
    ended = tail.ends()
    assert ended.code == 0, ended
    steps = [json.loads(line) for line in ended.out.splitlines()]
    told = [(step["kind"], step.get("number")) for step in steps if step["kind"] != "job.waits"]
    assert told == [
        ("attempt.began", 1),
        ("attempt.ended", 1),
        ("attempt.began", 2),
        ("attempt.ended", 2),
        ("job.succeeded", None),
    ]
    assert {step["job_id"] for step in steps} == {job_id}
    again = duly("tail", job_id, "--database-url", database_url)
    assert (again.code, again.out.count("\n")) == (0, 5)
    assert worker.stop().code == 0


def test_tail_of_what_is_not_there(database_url: str) -> None:
    """No id, an unknown id, no duration: one sentence."""
    given = ["--database-url", database_url]
    assert_refused(duly("tail", "nonsense", *given), "'nonsense' is not a job id")
    unknown = uuid4()
    assert_refused(duly("tail", unknown, *given), f"job {unknown} does not exist")
    assert_refused(duly("tail", unknown, "--timeout", "soon", *given), "--timeout must be a duration")


def test_tail_waits_for_a_database_that_is_away(database_url: str, start: Starter) -> None:
    """Its connections are cut: it says so, if at all, once, and tells the end all the same."""
    job_id = put_job(database_url)
    tail = start("tail", job_id, "--database-url", database_url)
    tail.says("ready")
    cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'duly-cli'"
    wait_until(lambda: sql(database_url, cut)[0] > 0, "a connection is cut")
    run_by_hand(database_url, "succeeded")
    ended = tail.ends()
    assert (ended.code, "succeeded after 1 attempt" in ended.out) == (0, True), ended
