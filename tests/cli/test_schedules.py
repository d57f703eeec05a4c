"""`duly schedules …` and what the doctor says of them, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

from cli.harness import Starter, Target, duly, sql

FILE = """
[[schedule]]
name = "seconds"
cron = "* * * * * *"
job = {{ url = "{url}", json = {{ n = 1 }}, headers = {{ X-Api-Key = "hush-hush" }} }}

[[schedule]]
name = "nightly"
cron = "30 2 * * *"
timezone = "Europe/London"
job = {{ url = "{url}" }}
"""


def test_declared_in_a_file_and_fired_by_a_worker(
    start: Starter, target: Target, database_url: str, tmp_path: Path
) -> None:
    """The dry run shows the changes, apply makes them, a worker calls the target, the commands show it all; nothing
    secret is printed.
    """
    file = tmp_path / "schedules.toml"
    file.write_text(FILE.format(url=target.url))
    at = ("--database-url", database_url)
    open_to = ("--allow", "127.0.0.0/8")
    dry = duly("schedules", "apply", file, "--dry-run", *at, *open_to)
    assert dry.code == 0, dry.err
    assert dry.out.splitlines() == ["+ nightly", "+ seconds"]
    assert duly("schedules", "list", "--json", *at).json == []
    unasked = duly("schedules", "apply", file, *at, *open_to)
    assert unasked.code == 1
    assert "say --yes" in unasked.err
    assert duly("schedules", "list", "--json", *at).json == []
    assert duly("schedules", "apply", file, "--yes", "--json", *at, *open_to).json["applied"] is True
    assert duly("schedules", "apply", file, "--json", *at, *open_to).json["changes"] == []
    worker = start("worker", *at, *open_to)
    target.came(2)
    listed = duly("schedules", "list", *at)
    assert "nightly" in listed.out
    shown = duly("schedules", "show", "seconds", "--json", *at)
    assert "hush-hush" not in shown.out + listed.out
    assert shown.json["state"] == "active"
    fires = duly("schedules", "fires", "seconds", "--json", *at).json
    assert len({fire["job_id"] for fire in fires}) == len(fires) >= 2
    preview = duly("schedules", "preview", "nightly", "--count", "3", "--json", *at).json
    assert len(preview) == 3
    assert duly("schedules", "pause", "seconds", *at).code == 0
    assert duly("schedules", "resume", "seconds", *at, *open_to).code == 0
    job = duly("schedules", "run", "nightly", *at, *open_to)
    assert job.code == 0, job.err
    assert duly("jobs", "show", job.out.strip(), "--json", *at).json["job"]["id"] == job.out.strip()
    assert duly("schedules", "delete", "nightly", *at).code == 0
    assert duly("schedules", "show", "nightly", *at).code == 1
    assert worker.stop().code == 0


def test_what_is_wrong_with_a_file_is_one_clear_sentence(database_url: str, tmp_path: Path) -> None:
    """It names the file, the schedule and the place; nothing is changed."""
    at = ("--database-url", database_url)
    file = tmp_path / "schedules.json"
    for content, words in (
        ("{", "not valid JSON"),
        ('{"jobs": []}', "must hold schedules"),
        ("[3]", "must hold schedules"),
        (json.dumps([{"name": "a", "cron": "0 0 30 2 *", "job": {"url": "https://example.com/"}}]), "never comes"),
        (json.dumps([{"cron": "@daily", "job": {"url": "https://example.com/"}}]), "/name"),
        (json.dumps([{"name": "a", "cron": "@daily", "job": {"url": "http://10.0.0.1/"}}]), "a/job/url"),
    ):
        file.write_text(content)
        done = duly("schedules", "apply", file, *at)
        assert done.code == 1
        assert words in done.said
        assert "Traceback" not in done.err
    missing = duly("schedules", "apply", tmp_path / "none.toml", *at)
    assert "cannot be read" in missing.said
    assert duly("schedules", "list", "--json", *at).json == []


def test_the_doctor_tells_of_schedules_that_do_not_fire(database_url: str, tmp_path: Path) -> None:
    """FO-054: exit code 1 and how many, while they are overdue or parked."""
    file = tmp_path / "schedules.json"
    file.write_text(json.dumps([{"name": n, "cron": "@hourly", "job": {"url": "https://example.com/"}} for n in "ab"]))
    at = ("--database-url", database_url)
    assert duly("schedules", "apply", file, "--yes", *at).code == 0
    before = duly("doctor", "--json", *at).json
    assert not [finding for finding in before["findings"] if finding["code"].startswith("schedules")]
    assert before["seen"]["schedules"]["active"] == 2
    sql(
        database_url,
        """update duly.schedule_turn set next_fire_at = now() - interval '1 hour', look_at = now() - interval '1 hour'
           where schedule_id = (select id from duly.schedule where name = 'a')""",
    )
    sql(
        database_url,
        """update duly.schedule_turn set state = 'parked', parked_why = 'x', next_fire_at = null, look_at = null
           where schedule_id = (select id from duly.schedule where name = 'b')""",
    )
    done = duly("doctor", "--json", *at)
    assert done.code == 1
    told = {finding["code"]: finding for finding in done.json["findings"]}
    assert told["schedules.overdue"]["severity"] == "critical"
    assert "1 schedules should have fired and did not" in told["schedules.overdue"]["what"]
    assert told["schedules.parked"]["what"] == "1 schedules are parked"
    assert "schedules: active 1, paused 0, parked 1" in duly("doctor", *at).out
