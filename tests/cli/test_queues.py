"""`duly queues`: set, show, list, pause, resume, unset."""

from __future__ import annotations

import pytest

from cli.harness import duly, put_job


def test_queues_are_set_shown_paused_and_unset(database_url: str) -> None:
    """Only what is given changes; none takes away; JSON for scripts."""
    given = ["--database-url", database_url]
    put_job(database_url, queue="mail")
    made = duly(
        "queues", "set", "mail", "--rate", "100/1m", "--concurrency", "5", "--retry-on", "404,5xx", "--json", *given
    )
    assert made.json["settings"]["rate"] == {"limit": 100, "per": 60.0}
    changed = duly("queues", "set", "mail", "--timeout", "10s", "--max-attempts", "3", "--max-age", "1h", *given)
    assert changed.code == 0
    assert "100/1m" in changed.out
    duly("queues", "set", "mail", "--concurrency", "none", *given)
    shown = duly("queues", "show", "mail", "--json", *given).json
    assert shown == {
        "name": "mail",
        "settings": {
            "concurrency": None,
            "key_concurrency": None,
            "paused": False,
            "rate": {"limit": 100, "per": 60.0},
            "defaults": {"timeout": 10.0, "max_attempts": 3, "backoff": None, "max_age": 3600.0, "on": [404, "5xx"]},
        },
    }
    assert duly("queues", "pause", "mail", *given).out == "queue mail is paused\n"
    assert duly("queues", "list", "--json", *given).json[0]["settings"]["paused"] is True
    assert duly("queues", "resume", "mail", "--json", *given).json["settings"]["paused"] is False
    assert "mail" in duly("queues", "list", *given).out
    assert duly("queues", "unset", "mail", *given).code == 0
    assert duly("queues", "show", "mail", *given).out.split()[-8:] == ["-"] * 8
    gone = duly("queues", "unset", "mail", *given)
    assert (gone.code, gone.err) == (1, "duly: a setting of queue mail does not exist\n")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["set", "q"], "nothing to set"),
        (["set", "q", "--concurrency", "0"], "--concurrency must be a whole number from 1 to 1000000; or none"),
        (["set", "q", "--rate", "fast"], "--rate must be"),
        (["set", "q", "--timeout", "1h"], "--timeout must be from 1s to 15m; or none"),
        (["set", "q", "--retry-on", "404,9xx"], "--retry-on must be default"),
        (["show", "no such"], "a queue's name is"),
        (["show", "q"], "queue q does not exist"),
        (["show", "q", "--account", "nobody"], "account nobody does not exist"),
        (["show", "q", "--project", "none"], "in account default a project none does not exist"),
    ],
)
def test_what_is_wrong_is_said(database_url: str, options: list[str], word: str) -> None:
    """One sentence, and not 0."""
    put_job(database_url, queue="other")
    answer = duly("queues", *options, "--database-url", database_url)
    assert answer.code != 0
    assert word in answer.err
