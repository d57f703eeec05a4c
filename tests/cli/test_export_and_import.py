"""`duly export` and `duly import`: jobs out of one database and into another, no job twice, nothing half-done."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cli.harness import (
    LIMIT_S,
    Result,
    Starter,
    assert_refused,
    command,
    duly,
    environment,
    in_database,
    put_job,
    run_by_hand,
    sql,
    wait_until,
)
from cli.test_send_and_tail import STRANGE, fed
from duly.model import NewJob, uuid7
from duly.queue import Database, enqueue
from duly.service import ensure_default

OPEN = ["--allow", "127.0.0.0/8"]
TARGET = "http://127.0.0.1:8099/"


def send(url: str, *options: object) -> str:
    """Store a job by the command line; its id."""
    sent = duly("send", TARGET, *options, *OPEN, "--database-url", url)
    assert sent.code == 0, sent
    return sent.out.strip()


def exported(url: str, *options: object) -> list[dict[str, Any]]:
    done = duly("export", *options, "--database-url", url)
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def imported(url: str, lines: list[Any], *options: object, code: int = 0) -> dict[str, Any]:
    """Import lines; the summary."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = fed(text.encode(), "import", "--json", *options, *OPEN, "--database-url", url)
    assert done.code == code, done
    return dict(json.loads(done.out))


def jobs_in(url: str) -> int:
    return int(sql(url, "select count(*) from duly.job")[0])


def forget_all(url: str) -> None:
    """As if this were another database: no job, no state."""
    states = "duly.ready, duly.scheduled, duly.lease, duly.outcome, duly.attempt, duly.unique_key, duly.job_tag"
    sql(url, f"truncate duly.job, {states}")


def test_a_round_trip_keeps_everything(database_url: str, tmp_path: Path) -> None:
    """What was sealed, strange bytes, keys, plans: all of it is there after the import, under the same young id."""
    body = tmp_path / "strange"
    body.write_bytes(STRANGE)
    options = ["--queue", "mail", "--priority", 1, "--tag", "a", "--unique-key", "k", "--timeout", "7s"]
    one = send(database_url, "-d", f"@{body}", "-H", "Authorization: Bearer s3cret", "--delay", "1h", *options)
    two = send(database_url, "--json-data", '{"n": 1.50}', "--max-attempts", 3)
    file = tmp_path / "jobs.ndjson"
    done = duly("export", "--secrets", "-o", file, "--database-url", database_url)
    assert (done.code, done.out, "secrets in the clear" in done.err) == (0, "", True), done
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    before = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in before] == [two, one]
    forget_all(database_url)
    again = duly("import", file, *OPEN, "--database-url", database_url)
    assert (again.code, again.out) == (0, "imported 2, there already 0; 2 lines\n"), again
    after = exported(database_url, "--secrets")
    for line in (*before, *after):
        line.pop("was"), line.pop("run_at")
    assert sorted(after, key=lambda line: line["id"]) == sorted(before, key=lambda line: line["id"])
    assert "s3cret" not in str(sql(database_url, "select payload::text from duly.job"))  # sealed again


def test_a_file_that_is_imported_again_makes_nothing(database_url: str) -> None:
    """Lines with an id, old or young, and lines without one, also two that are alike."""
    lines = [
        {"url": TARGET, "id": str(uuid4())},
        {"url": TARGET, "id": "01890a5d-ac96-774b-bcce-b302099a8057"},
        {"url": TARGET, "body": "alike"},
        {"url": TARGET, "body": "alike"},
        {"url": TARGET, "id": "01890a5d-ac96-774b-bcce-b302099a8057"},
    ]
    first = imported(database_url, lines)
    assert (first["imported"], first["there"], first["refused_lines"]) == (4, 1, 0)
    assert (imported(database_url, lines)["imported"], jobs_in(database_url)) == (0, 4)
    for job_id in sql(database_url, "select id from duly.job"):  # a day later: in other half days than this one
        day_before = UUID(int=job_id.int - (86_400_000 << 80))
        sql(database_url, "update duly.job set id = $2 where id = $1 returning 1", job_id, day_before)
    more = imported(database_url, [*lines, {"url": TARGET, "body": "alike"}])
    assert (more["imported"], more["there"]) == (1, 5)
    assert imported(database_url, lines[2:4], "--label", "second")["imported"] == 2
    dry = imported(database_url, [{"url": TARGET, "body": "new"}, lines[0]], "--dry-run")
    assert (dry["imported"], dry["there"], dry["is_dry_run"], jobs_in(database_url)) == (1, 1, True, 7)


def test_into_the_database_it_came_from(database_url: str) -> None:
    """Every job is known: nothing is made. Into another project of it: all are, since their ids are taken."""
    ids = {send(database_url) for _ in range(3)}
    lines = exported(database_url, "--secrets")
    assert (imported(database_url, lines)["there"], jobs_in(database_url)) == (3, 3)
    account = duly("admin", "accounts", "create", "other", "--json", "--database-url", database_url).json
    name = (account[0] if isinstance(account, list) else account)["id"]
    assert duly("admin", "projects", "create", name, "other", "--database-url", database_url).code == 0
    for made in (3, 0):
        assert imported(database_url, lines, "--account", "other")["imported"] == made
    others = exported(database_url, "--account", "other")
    assert len(others) == 3
    assert not ids & {line["id"] for line in others}


def test_what_is_masked_cannot_be_imported(database_url: str) -> None:
    """Without --secrets no secret is written, and a line without its values is refused, not made without them."""
    send(database_url, "-d", "hush", "-H", "Authorization: Bearer s3cret", "-H", "X-Plain: open")
    done = duly("export", "--database-url", database_url)
    assert "s3cret" not in done.out
    assert "hush" not in done.out
    assert "masked" in done.err
    line = json.loads(done.out)
    assert line["was"]["masked"] == ["headers/0", "headers/1", "body"]  # sealed: no value is known
    forget_all(database_url)
    refused = fed(done.out.encode(), "import", *OPEN, "--database-url", database_url)
    assert_wrong(refused, 1, "line 1 /headers/0: was masked", "--secrets")
    assert jobs_in(database_url) == 0
    wrong_key = "other:" + "A" * 43 + "="
    sent = send(database_url, "-d", "hush")
    blind = duly("export", "--secrets", "--database-url", database_url, DULY_ENCRYPTION_KEYS=wrong_key)
    assert (blind.code, json.loads(blind.out)["id"], "could not be opened" in blind.err) == (1, sent, True)


def assert_wrong(result: Result, lines: int, *words: str) -> None:
    assert result.code == 1, result
    assert "Traceback" not in result.err, result.err
    assert f"{lines} of " in result.err, result.err
    assert "nothing was imported" in result.err
    for word in words:
        assert word in result.err, result.err


WRONG: list[tuple[str, str]] = [
    ("{", "line 2: "),
    ("[]", "line 2: it must be one JSON object"),
    ('{"url": "ftp://x/"}', "line 2 /url: "),
    ('{"url": "http://10.0.0.1/"}', "line 2 /url: target address not allowed"),
    ('{"url": "https://example.com/", "queu": "a"}', "line 2 /queu: is not a member"),
    ('{"url": "https://example.com/", "priority": 10}', "line 2 /priority: "),
    ('{"url": "https://example.com/", "id": "x"}', "line 2 /id: must be a UUID"),
    ('{"url": "https://example.com/", "account": "nobody"}', "line 2 /account: account nobody does not exist"),
    ('{"url": "https://example.com/", "account": 1}', "line 2 /account: must be a string"),
    ('{"url": "https://example.com/", "was": 1}', "line 2 /was: must be an object"),
    ('{"url": "https://example.com/", "body": "x", "json": 1}', "line 2 /body: excludes json"),
    ('{"kind": "task"}', "line 2 /payload: is required"),
    ('{"kind": "", "payload": 1}', "line 2 /kind: "),
    ('{"kind": "task", "payload": 1, "url": "https://example.com/"}', "line 2 /url: is for jobs of kind http"),
    ('{"kind": "task", "payload": 1, "timeout": "x"}', "line 2 /timeout: must be a duration"),
    ('{"kind": "task", "payload": 1, "retry": 5}', "line 2 /retry: must be an object"),
    ('{"url": "https://example.com/", "body": "' + "x" * 262_145 + '"}', "line 2 /body: the body is longer"),
    ('{"a": "' + "x" * (5 * 1024 * 1024) + '"}', "line 2: is longer than"),
]


@pytest.mark.parametrize(("line", "about"), WRONG, ids=[about for _, about in WRONG])
def test_a_wrong_line_is_told_and_nothing_is_imported(database_url: str, line: str, about: str) -> None:
    """Its number, the field and what is wrong; the lines around it are not imported either."""
    text = f'{{"url": "{TARGET}"}}\n{line}\n\n{{"url": "{TARGET}"}}\n'
    assert_wrong(fed(text.encode(), "import", *OPEN, "--database-url", database_url), 1, about)
    assert jobs_in(database_url) == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"url": "https://example.com/", "account": "\\u001b]0;pwn\\u0007"}',
        '{"url": "https://example.com/", "x\\u001b[31m": 1}',
        '{"url": "https://example.com/", "retry": {"\\u001b[2J": 1}}',
    ],
)
def test_what_a_file_says_does_not_drive_the_terminal(database_url: str, line: str) -> None:
    """Whoever reads what is wrong with a stranger's file sees signs where its control characters are."""
    done = fed(line.encode() + b"\n", "import", *OPEN, "--database-url", database_url)
    assert done.code == 1
    assert not [c for c in done.out + done.err if not c.isprintable() and c != "\n"], done


def test_the_lines_that_are_right_can_be_imported(database_url: str) -> None:
    """--continue: the others are told and counted; mended and imported again, only they are made."""
    good = [{"url": TARGET, "body": str(n)} for n in range(5)]
    some = imported(database_url, [*good[:3], {"url": "x"}, "\ufeff", *good[3:]], "--continue", "--batch", 2, code=1)
    assert (some["lines"], some["imported"], some["refused_lines"]) == (7, 5, 2)
    assert [one["line"] for one in some["refused"]] == [4, 5]
    all_ = imported(database_url, [*good, {"url": TARGET, "body": "mended"}])
    assert (all_["imported"], all_["there"]) == (1, 5)


def test_a_batch_that_is_refused_is_not_half_done(database_url: str) -> None:
    """A key that another job holds: the batch is not stored, those before it are, and it says so; then it goes on."""
    send(database_url, "--unique-key", "held")
    lines = [{"url": TARGET, "body": str(n)} for n in range(3)] + [{"url": TARGET, "unique_key": "held"}]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    given = ["import", "--batch", 2, *OPEN, "--database-url", database_url]
    stopped = fed(text, *given)
    assert stopped.code == 1
    assert "line 4: the unique key 'held' is held by job" in stopped.err
    assert "nothing of lines 3 to 4 was imported" in stopped.err
    assert "imported 2" in stopped.err
    assert jobs_in(database_url) == 3
    went_on = fed(text, *given, "--continue")
    assert (went_on.code, went_on.out) == (1, "imported 1, there already 2, refused 1; 4 lines\n")


def test_jobs_that_ended_are_left_out_unless_asked_for(database_url: str) -> None:
    """They would run again; so would one that was to start by a time that has passed."""
    put_job(database_url, TARGET)
    run_by_hand(database_url, "dead")
    put_job(database_url, TARGET, delay=timedelta(hours=1))
    lines = exported(database_url, "--secrets")
    assert [line["was"]["state"] for line in lines] == ["scheduled", "dead"]
    assert lines[1]["was"]["reason"] == "permanent"
    assert (lines[1]["was"]["attempts"], lines[1]["was"]["last_outcome"]) == (1, "http_error")
    expired = {**lines[0], "id": str(uuid4()), "expires_at": "2020-01-01T00:00:00Z"}
    forget_all(database_url)
    first = imported(database_url, [*lines, expired])
    assert (first["imported"], first["ended"], first["expired"]) == (1, 1, 1)
    assert imported(database_url, [*lines, expired], "--ended")["imported"] == 1


def test_export_by_filters(database_url: str) -> None:
    """State, queue, kind, time, account and limit; newest first, more than a page."""
    for n in range(4):
        put_job(database_url, TARGET, queue="mail" if n % 2 else "web")

    async def put(db: Database) -> None:
        owner = (await ensure_default(db)).owner
        task = NewJob("task", {"a": [1.5, "x"]}, b"\0\xff", queue="bulk")
        await enqueue(db, [(owner, replace(task, id=uuid7())) for _ in range(230)])

    in_database(database_url, put)
    tasks = exported(database_url, "--kind", "task")
    assert len(tasks) == 230
    assert [line["id"] for line in tasks] == sorted((line["id"] for line in tasks), reverse=True)
    assert (tasks[0]["payload"], tasks[0]["body_base64"]) == ({"a": [1.5, "x"]}, "AP8=")
    assert len(exported(database_url, "--queue", "mail")) == 2
    assert len(exported(database_url, "--state", "ready", "--state", "dead", "--kind", "http")) == 4
    assert len(exported(database_url, "--limit", 7)) == 7
    assert exported(database_url, "--until", "1h") == []
    assert len(exported(database_url, "--since", "1h", "--account", "default")) == 234
    assert_refused(duly("export", "--since", "soon", "--database-url", database_url), "--since must be a time")
    assert_refused(duly("export", "--account", "x", "--database-url", database_url), "account x does not exist")
    assert_refused(duly("export", "-o", "/nonexistent/x", "--database-url", database_url), "--output:")
    forget_all(database_url)
    assert imported(database_url, tasks, "--batch", 100)["imported"] == 230
    assert sql(database_url, "select distinct payload::text || kind || encode(body, 'hex') from duly.job") == [
        '{"a": [1.5, "x"]}task00ff'
    ]


def test_an_import_that_is_killed_goes_on(database_url: str, start: Starter, tmp_path: Path) -> None:
    """SIGKILL in the middle: what was committed is there, and the second run makes exactly the rest."""
    file = tmp_path / "many.ndjson"
    file.write_text("".join(json.dumps({"url": TARGET, "body": str(n)}) + "\n" for n in range(3000)))
    given = ["import", file, "--batch", 50, *OPEN, "--database-url", database_url]
    running = start(*given)
    wait_until(lambda: jobs_in(database_url) > 0, "a batch is stored")
    running.kill()
    wait_until(
        lambda: sql(database_url, "select count(*) from pg_stat_activity where application_name = 'duly-cli'") == [0],
        "the server has noticed",
    )
    stored = jobs_in(database_url)
    assert 0 < stored < 3000
    assert stored % 50 == 0
    done = duly(*given)
    assert (done.code, done.out) == (0, f"imported {3000 - stored}, there already {stored}; 3000 lines\n")
    assert jobs_in(database_url) == 3000


def test_a_reader_that_leaves_is_no_fault(database_url: str) -> None:
    """`duly export | head -1` says nothing of a broken pipe."""
    for _ in range(3):
        put_job(database_url, TARGET)
    process = subprocess.Popen(
        command("export", "--database-url", database_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=LIMIT_S)
    assert b"Traceback" not in said
    assert b"Broken" not in said


def test_files_that_are_none(database_url: str, tmp_path: Path) -> None:
    """No such file, a folder, an account that is not there: one sentence. Nothing in it: nothing made."""
    given = ["--database-url", database_url]
    assert_refused(duly("import", tmp_path / "none", *given), "cannot be read")
    assert_refused(duly("import", tmp_path, *given), "cannot be read")
    assert_refused(fed(b"", "import", "--account", "nobody", *given), "account nobody does not exist")
    assert fed(b"", "import", *given).out == "imported 0, there already 0; 0 lines\n"
    assert jobs_in(database_url) == 0
