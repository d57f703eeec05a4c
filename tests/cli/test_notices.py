"""`duly notices`: from the operator's hand to a receiver that verifies what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from standardwebhooks import Webhook

from cli.harness import Starter, assert_refused, duly, new_key, put_job, sql, wait_until
from duly.model import RetryPolicy

LOOPBACK = ("--allow", "127.0.0.0/8")


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that keeps what it is told, whole."""
    came: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/told", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_test_and_a_real_notice_arrive_signed(database_url: str, start: Starter, home: Path) -> None:
    """A test says what came of it; then jobs die, two workers look, and the receiver, who verifies each with the
    project's secret, is told once."""
    given = ("--database-url", database_url, "--home", str(home))
    new_key(database_url)
    [secret] = duly("keys", "signing", *given).out.split()
    workers = [start("worker", "--database-url", database_url, *LOOPBACK) for _ in range(2)]
    with receiver() as (url, came):
        made = duly("notices", "set", url, "--dead-letters", "1", *LOOPBACK, "--json", *given)
        [notice] = made.json
        assert (notice["url"], notice["about"], notice["dead_within"]) == (url, "project", 600)
        tried = duly("notices", "test", notice["id"], *LOOPBACK, *given)
        assert (tried.code, tried.out.endswith(": delivered, the answer was 204\n")) == (0, True), tried
        [(headers, body)] = came
        assert Webhook(secret).verify(body, headers)["type"] == "test"
        put_job(database_url, "http://no-such-host.invalid/x", retry=RetryPolicy(max_attempts=1))
        wait_until(
            lambda: sql(database_url, "select count(*) from duly.outcome where state = 'dead'") == [1], "it dies"
        )
        sql(database_url, "update duly.notice_watch set next_at = now() returning 1")
        wait_until(lambda: len(came) >= 2, "a worker looks, and the notice arrives", 60)
        told = [Webhook(secret).verify(body, headers) for headers, body in came[1:]]
        assert [one["type"] for one in told] == ["dead_letters"]
        assert told[0]["figures"]["hosts"] == [{"host": "no-such-host.invalid", "dead": 1}]
        assert json.loads(came[1][1]) == told[0]
    assert [worker.stop().code for worker in workers] == [0, 0]


def test_set_again_it_is_changed_and_removed_it_is_gone(database_url: str, home: Path) -> None:
    """One URL is one notice; without a worker a test says that nobody delivers."""
    given = ("--database-url", database_url, "--home", str(home))
    new_key(database_url)
    url = "https://hooks.dev/duly"
    assert "told from now on" in duly("notices", "set", url, *given).err
    changed = duly("notices", "set", url, "--tell", "quota_near", "--dead-within", "1h", *given)
    assert "changed" in changed.err
    [notice] = duly("notices", "list", "--json", *given).json
    assert (notice["types"], notice["dead_within"]) == (["quota_near"], 3600)
    assert url in duly("notices", "list", *given).out
    tried = duly("notices", "test", notice["id"], "--wait", "0s", *given)
    assert (tried.code, "is there a worker" in tried.out) == (1, True)
    assert duly("notices", "remove", notice["id"], *given).out == "removed\n"
    assert duly("notices", "list", "--json", *given).json == []
    assert_refused(duly("notices", "remove", notice["id"], *given), "notice", notice["id"])


def test_what_makes_no_sense_is_refused(database_url: str, home: Path) -> None:
    """Before anything is stored: hostile URLs, by the same rules as for jobs, and unknown words."""
    given = ("--database-url", database_url, "--home", str(home))
    new_key(database_url)
    for url in ("http://127.0.0.1/x", "http://169.254.169.254/latest", "ftp://a.dev/", "http://[::ffff:10.0.0.1]/"):
        assert_refused(duly("notices", "set", url, *given), "/url")
    good = "https://hooks.dev/"
    assert_refused(duly("notices", "set", good, "--tell", "all", *given), "--tell")
    assert_refused(duly("notices", "set", good, "--about", "me", *given), "--about")
    assert_refused(duly("notices", "set", good, "--of", "default", *given), "--of")
    assert_refused(duly("notices", "set", good, "--dead-within", "2d", *given), "--dead-within")
    assert_refused(duly("notices", "set", good, "--queue", " ", *given), "--queue")
    assert_refused(duly("notices", "set", good, "--account", "nobody", *given), "nobody")
    assert_refused(duly("notices", "set", good, "--project", "nothing", *given), "nothing")
    assert sql(database_url, "select count(*) from duly.notice") == [0]
