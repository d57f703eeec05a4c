"""`duly jobs`, `duly dead`, `duly doctor`, `--version`, `--help`: an operator's look."""

from __future__ import annotations

import fcntl
import os
import pty
import pwd
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from cli.harness import ACCEPTED, command, duly, environment, put_job, run_by_hand, sql, state_of
from duly.model import Unique


def put_dead(url: str, queue: str = "default") -> str:
    """A dead letter, while nothing else is ready; its id."""
    job_id = put_job(url, queue=queue)
    run_by_hand(url, "dead")
    return job_id


def test_jobs_are_listed_shown_and_cancelled(database_url: str) -> None:
    """Newest first, by state and queue, as JSON for scripts; a cancelled job says so."""
    given = ["--database-url", database_url]
    first = put_job(database_url, queue="mail")
    second = put_job(database_url, delay=timedelta(hours=1))
    for options, found in (
        ([], [second, first]),
        (["--limit", 1], [second]),
        (["--queue", "mail", "--state", "ready"], [first]),
    ):
        assert [job["id"] for job in duly("jobs", "list", "--json", *options, *given).json] == found

    cancelled = duly("jobs", "cancel", second, *given)
    assert (cancelled.code, cancelled.out, cancelled.err) == (0, "cancelled\n", "")
    shown = duly("jobs", "show", second, "--json", *given)
    assert (shown.json["job"]["state"], shown.json["attempts"]) == ("cancelled", [])
    assert duly("jobs", "cancel", second, *given).code == 0  # what is asked for is so already


def test_an_id_in_a_table_can_be_copied(database_url: str) -> None:
    """Through a pipe each job is one line; in a terminal of 80 columns its id stays whole."""
    job_id = put_job(database_url)
    piped = duly("jobs", "list", "--database-url", database_url)
    assert [line.split()[0] for line in piped.out.splitlines()[1:]] == [job_id]
    assert job_id in in_terminal("jobs", "list", "--database-url", database_url)


def in_terminal(*args: str) -> str:
    """What a command prints in a terminal of 80 columns."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command(*args), stdin=subprocess.DEVNULL, stdout=inside, env=environment(NO_COLOR="1", TERM="xterm")
    )
    os.close(inside)
    said = b""
    try:
        while chunk := os.read(outside, 4096):
            said += chunk
    except OSError:  # Linux: the other side is closed
        pass
    os.close(outside)
    assert process.wait(30) == 0
    return said.decode()


def test_what_a_user_wrote_is_shown_as_it_is(database_url: str) -> None:
    """A URL is no place for emoji codes or colour markup."""
    url = "http://127.0.0.1:9/:smile:/[red]x"
    job_id = put_job(database_url, url)
    assert f"POST {url}\n" in duly("jobs", "show", job_id, "--database-url", database_url).out


def test_dead_letters_are_listed_and_redriven(database_url: str) -> None:
    """By id, by --all with a queue, by --all; each gets a fresh budget, and who did it is noted."""
    given = ["--database-url", database_url]
    one, mail, other = (put_dead(database_url, queue) for queue in ("default", "mail", "default"))
    put_job(database_url)
    assert [job["id"] for job in duly("dead", "list", "--json", *given).json] == [other, mail, one]
    assert duly("dead", "redrive", one, *given).out == "redriven: 1\n"
    assert duly("dead", "redrive", "--all", "--queue", "mail", *given).out == "redriven: 1\n"
    assert duly("dead", "redrive", "--all", *given).out == "redriven: 1\n"
    assert duly("dead", "list", "--json", *given).json == []
    assert [state_of(database_url, job_id) for job_id in (one, mail, other)] == ["ready"] * 3
    assert set(sql(database_url, "select redriven_by from duly.redrive")) == {
        f"{pwd.getpwuid(os.geteuid()).pw_name} (command line)"
    }


def test_what_cannot_be_redriven_says_why(database_url: str) -> None:
    """Its key is another's, it has expired, it is not dead: exit code 1, one line, and it stays as it is."""
    given = ["--database-url", database_url]
    keyed = put_job(database_url, unique=Unique("k"))
    run_by_hand(database_url, "dead")
    put_job(database_url, unique=Unique("k"), delay=timedelta(hours=1))
    late = put_job(database_url, expires_at=datetime.now(UTC) + timedelta(hours=1))
    run_by_hand(database_url, "dead")
    sql(database_url, f"update duly.job set expires_at = now() where id = '{late}' returning 1")
    for job_id, why in ((keyed, "is held by another job"), (late, "has expired")):
        refused = duly("dead", "redrive", job_id, *given)
        assert (refused.code, refused.err.count("\n"), why in refused.err) == (1, 1, True), refused
        assert state_of(database_url, job_id) == "dead"
    assert duly("dead", "redrive", "--all", *given).out == "redriven: 0\n"


def test_an_account_without_a_name_may_redrive(database_url: str) -> None:
    """Containers run under bare numbers: the number is noted then."""
    job_id = put_dead(database_url)
    nameless = "import os, pwd; pwd.getpwuid = lambda uid: {}[uid]; from duly.cli.main import run; run()"
    variables = {k: v for k, v in environment().items() if k not in ("LOGNAME", "USER", "LNAME", "USERNAME")}
    done = subprocess.run(
        [sys.executable, "-c", nameless, "dead", "redrive", job_id, "--database-url", database_url],
        capture_output=True,
        text=True,
        timeout=60,
        env=variables,
    )
    assert (done.returncode, done.stdout) == (0, "redriven: 1\n"), done
    assert sql(database_url, "select redriven_by from duly.redrive") == [f"uid {os.getuid()} (command line)"]


def test_the_doctor_finds_what_is_broken(database_url: str) -> None:
    """No worker: a finding. With one the system is sound. A job that is nowhere: a finding again, and exit code 1."""
    given = ["--database-url", database_url]
    alone = duly("doctor", *given, *ACCEPTED)
    assert (alone.code, "! no worker is alive" in alone.out) == (1, True), alone
    sql(database_url, "select duly.register('w', '{http}', null, 1, 3600)")
    job_id = put_job(database_url)
    sound = duly("doctor", "--json", *given, *ACCEPTED)
    assert (sound.code, sound.err) == (0, "")
    assert {finding["code"] for finding in sound.json["findings"]} == set(sound.json["accepted"])
    ledger = sound.json["seen"]["conservation"]
    assert (ledger["jobs"], ledger["ready"]) == (1, 1)
    assert duly("doctor", *given).code == 1
    late = "update duly.ready set run_at = now() - interval '1 hour' returning 1"
    sql(database_url, late)
    warned = duly("doctor", *given, *ACCEPTED)
    assert (warned.code, "? a job has been due for 36" in warned.out) == (3, True), warned
    assert duly("doctor", *given, *ACCEPTED, "--accept", "late").code == 0
    sql(database_url, "delete from duly.ready where job_id = $1", UUID(job_id))
    broken = duly("doctor", *given, *ACCEPTED)
    assert broken.code == 1, broken
    assert "! jobs nowhere: 1" in broken.out
    assert "Traceback" not in broken.err


def test_version() -> None:
    """`python -m duly --version` is one line."""
    said = duly("--version")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("duly ")
    assert said.out.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["up"],
        ["api"],
        ["worker"],
        ["migrate"],
        ["doctor"],
        ["jobs"],
        ["jobs", "list"],
        ["jobs", "show"],
        ["jobs", "cancel"],
        ["dead"],
        ["dead", "list"],
        ["dead", "redrive"],
    ],
    ids=" ".join,
)
def test_help(words: list[str]) -> None:
    """Every command explains itself, needs nothing for it, and names its options and their variables."""
    said = duly(*words, "--help")
    assert (said.code, said.err) == (0, ""), said
    assert "Usage: python -m duly" in said.said
    assert " ".join(words) in said.said
    if words and words[0] in ("up", "api", "worker", "migrate", "doctor"):
        assert "DULY_DATABASE_URL" in said.said
