"""`duly top` and `duly workers`: the overview in a terminal and for scripts."""

from __future__ import annotations

import json
import signal
from datetime import timedelta

from cli.harness import Starter, Target, assert_refused, duly, put_job, run_by_hand, sql, state_of, wait_until
from cli.test_api_and_worker import new_worker
from cli.test_jobs_and_dead import in_terminal


def test_top_tells_what_the_overview_tells(database_url: str) -> None:
    """Without a worker that is the first finding; what waits, is due later and is dead is counted, by queue."""
    put_job(database_url, queue="mail")
    run_by_hand(database_url, "dead")
    waiting = put_job(database_url, queue="mail")
    put_job(database_url, delay=timedelta(hours=1))
    sql(database_url, "delete from duly.worker returning 1")
    sql(database_url, "update duly.ready set run_at = now() - interval '2 minutes' returning 1")
    seen = duly("top", "--once", "--json", "--database-url", database_url).json
    assert [finding["level"] for finding in seen["findings"]][:2] == ["bad", "bad"]
    assert "No worker is alive" in seen["findings"][0]["what"]
    assert (seen["waiting"], seen["dead"], seen["dead_by_reason"]) == (1, 1, {"permanent": 1})
    [line] = seen["queues"]
    assert (line["account"], line["project"], line["queue"], line["waiting"]) == ("default", "default", "mail", 1)
    assert 120 <= line["oldest_due_seconds"] < 180
    assert (seen["known"], seen["trouble"]) == (True, [])
    said = duly("top", "--once", "--database-url", database_url)
    assert (said.code, said.err) == (0, "")
    for words in ("✕ No worker is alive: nothing runs. Start one: duly worker.", "permanent failure 1", "mail"):
        assert words in said.said, said.out
    assert state_of(database_url, waiting) == "ready"  # looking changes nothing


def test_top_of_one_project(database_url: str) -> None:
    """Only its figures, and no workers, which serve all; an unknown account is refused."""
    put_job(database_url)
    given = ["--once", "--json", "--database-url", database_url]
    assert duly("admin", "accounts", "create", "other", "--database-url", database_url).code == 0
    assert_refused(duly("top", "--account", "other", *given), "in account other a project")
    assert_refused(duly("top", "--account", "nobody", *given), "account nobody does not exist")
    mine = duly("top", "--account", "default", *given).json
    assert (mine["waiting"], mine["workers"], mine["scheduled"]) == (1, None, None)


def test_top_goes_on_until_it_is_stopped(database_url: str, target: Target, start: Starter) -> None:
    """One line of JSON for each look, each of its moment; a signal ends it with 0."""
    new_worker(start, database_url)
    top = start("top", "--json", "--every", "0.5", "--database-url", database_url)
    wait_until(lambda: top.out.count("\n") >= 2, "two looks")
    put_job(database_url, target.url)
    target.came()
    wait_until(lambda: json.loads(top.out.splitlines()[-1])["attempts"] == 1, "a look shows the attempt")
    ended = top.stop(signal.SIGINT)
    assert (ended.code, ended.err) == (0, "")
    looks = [json.loads(line) for line in ended.out.splitlines()]
    assert looks[0]["attempts"] == 0
    assert [look["at"] for look in looks] == sorted(look["at"] for look in looks)


def test_workers_are_listed(database_url: str, target: Target, start: Starter) -> None:
    """Alive with what it runs; after it fell silent, too."""
    nobody = duly("workers", "--database-url", database_url)
    assert (nobody.code, "no worker is alive" in nobody.err) == (0, True)
    target.hold()
    process = new_worker(start, database_url, "--queues", "mail", "--concurrency", 3)
    put_job(database_url, target.url, queue="mail")
    target.came()
    [worker] = duly("workers", "--json", "--database-url", database_url).json
    assert (worker["alive"], worker["running"], worker["queues"], worker["kinds"]) == (True, 1, ["mail"], ["http"])
    assert "1/3" in in_terminal("workers", "--database-url", database_url)
    process.kill()
    sql(database_url, "update duly.worker set lease_expires_at = now() - interval '1 s' returning 1")
    assert "silent" in duly("workers", "--database-url", database_url).out
