"""`duly queues`: set, show, list, pause, resume, unset."""

from __future__ import annotations

import pytest

from cli.harness import duly, put_job, sql


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
        (["set", "q", "--tasks", "--timeout", "1m"], "tasks take no defaults from their queue"),
        (["show", "q", "--tasks", "--project", "x"], "--tasks names account and project"),
    ],
)
def test_what_is_wrong_is_said(database_url: str, options: list[str], word: str) -> None:
    """One sentence, and not 0."""
    put_job(database_url, queue="other")
    answer = duly("queues", *options, "--database-url", database_url)
    assert answer.code != 0
    assert word in answer.err


def test_queues_of_tasks(database_url: str) -> None:
    """--tasks reaches them before the first task is there; the same name without it is another queue, and that is
    said; defaults, which tasks do not take, are refused.
    """
    given = ["--database-url", database_url]
    made = duly("queues", "set", "mail", "--tasks", "--concurrency", "2", "--rate", "5/1s", "--json", *given)
    assert made.code == 0, made.err
    assert duly("queues", "show", "mail", "--project", "tasks", "--json", *given).json == made.json
    sql(database_url, "select duly.enqueue_task('some.task', queue => 'mail')")
    put_job(database_url, queue="mail")
    assert [one["name"] for one in duly("queues", "list", "--tasks", "--json", *given).json] == ["mail"]
    other = duly("queues", "set", "mail", "--concurrency", "3", "--json", *given)
    assert "say it again with --tasks" in " ".join(other.err.split())
    assert duly("queues", "show", "mail", "--tasks", "--json", *given).json["settings"]["concurrency"] == 2
    assert "--tasks" in duly("queues", "pause", "mail", *given).err
    assert duly("queues", "pause", "mail", "--tasks", *given).err == ""
    assert duly("queues", "show", "mail", "--tasks", "--json", *given).json["settings"]["paused"] is True
    assert duly("queues", "unset", "mail", "--tasks", *given).code == 0
