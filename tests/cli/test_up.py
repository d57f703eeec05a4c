"""`duly up`: one command from nothing to a running service, and back to nothing."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cli.harness import (
    Client,
    Running,
    Starter,
    Target,
    duly,
    free_port,
    no_postgres_left,
    outcomes,
    postgres_of,
    read_credentials,
    starter,
    wait_until,
)
from duly.cli.stopping import SAME_SIGNAL_S

UP = "Stop with Ctrl-C."
CLUSTERS = Path("/var/lib/duly/clusters")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")


class Up:
    """A service that is up: its home, its process, a client with the key it made."""

    def __init__(self, home: Path, port: int, process: Running) -> None:
        self.home = home
        self.port = port
        self.process = process
        self.credentials = read_credentials(home)
        self.client = Client(self.credentials["url"], self.credentials["api_key"])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One service from a fresh home, for the tests that only use it."""
    folder = Path(tempfile.mkdtemp(prefix="duly-test-", dir="/tmp"))
    folder.chmod(0o755)
    home, port = folder / "home", free_port()
    with starter(tmp_path_factory.mktemp("up")) as start:
        process = start("up", "--home", home, "--port", port)
        process.says(UP)
        running = Up(home, port, process)
        yield running
        running.client.close()
        process.stop()
    shutil.rmtree(folder)


def test_the_start_shows_its_progress_on_stderr(up: Up) -> None:
    """Whoever waits for the first start reads what takes so long; stdout holds only the result."""
    for step in ("making a PostgreSQL", "is ready", "schema duly is at version"):
        assert step in up.process.err
        assert step not in up.process.out


def test_credentials_are_for_the_owner_alone_and_complete(up: Up) -> None:
    """credentials.json has mode 0600 and says where the API is, with which key, and where the database is."""
    file = up.home / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(up.credentials) == {"url", "api_key", "admin_key", "database_url"}
    assert up.credentials["url"] == f"http://127.0.0.1:{up.port}"
    assert up.credentials["api_key"].startswith("duly_")
    assert up.credentials["admin_key"].startswith("duly_")
    assert up.credentials["database_url"].startswith("postgresql://")
    assert [path.name for path in up.home.iterdir() if path.name.startswith(".credentials")] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_printed_curl_line_works_when_pasted(up: Up) -> None:
    """It makes a job; that succeeds within a second; its attempt shows status, phases and the answer's first bytes."""
    [line] = [line for line in up.process.out.splitlines() if line.strip().startswith("curl ")]
    pasted = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert pasted.returncode == 0, pasted
    made = up.client.http.get("/v1/jobs").json()["data"][0]
    assert f'"{made["id"]}"' in pasted.stdout
    job = up.client.ends(made["id"], "succeeded")
    created, finished = (datetime.fromisoformat(job[name]) for name in ("created_at", "finished_at"))
    assert (finished - created).total_seconds() < 1
    [attempt] = up.client.attempts(job["id"])
    assert (attempt["number"], attempt["status_code"], attempt["outcome"]) == (1, 200, "success")
    assert {"connect", "first_byte", "total"} <= set(attempt["phases"])
    assert '"path": "/hello"' in attempt["response_excerpt"]


def test_the_other_commands_find_the_service_by_its_home(up: Up, target: Target) -> None:
    """With --home or DULY_HOME no database needs to be named."""
    job_id = up.client.create(target.url)
    up.client.ends(job_id, "succeeded")
    assert duly("jobs", "show", job_id, "--home", up.home, "--json").json["job"]["state"] == "succeeded"
    sound = duly("doctor", DULY_HOME=str(up.home))
    assert (sound.code, "the ledger adds up" in sound.out) == (0, True), sound


def test_a_delayed_job_starts_when_it_is_due(up: Up, target: Target) -> None:
    """`delay: 3` reaches the target three seconds after it was made. (A benchmark proves the 50 ms promised.)"""
    job_id = up.client.create(target.url, delay=3)
    assert up.client.job(job_id)["state"] == "scheduled"
    job = up.client.ends(job_id, "succeeded")
    due = datetime.fromisoformat(job["run_at"])
    assert (due - datetime.fromisoformat(job["created_at"])).total_seconds() == pytest.approx(3, abs=0.1)
    assert 0 <= target.arrivals[0] - due.timestamp() < 0.25
    assert job["lag_ms"] < 250


def test_a_target_that_recovers_is_retried_until_it_answers(up: Up, target: Target) -> None:
    """500, 500, 200: succeeded, with three attempts that tell the story."""
    target.answers = [500, 500]
    job_id = up.client.create(target.url, retry={"backoff": {"kind": "fixed", "base": 0.1, "jitter": 0}})
    job = up.client.ends(job_id, "succeeded")
    assert job["attempts"] == 3
    assert [a["status_code"] for a in up.client.attempts(job_id)] == [500, 500, 200]
    assert target.attempts == [(job_id, 1), (job_id, 2), (job_id, 3)]


def test_a_refusal_ends_dead_at_once_and_runs_again_on_redrive(up: Up, target: Target) -> None:
    """400 is permanent: one attempt, dead. Redriven by the API, then by the command, it runs again each time."""
    target.answers = [400, 400, 200]
    job_id = up.client.create(target.url)
    dead = up.client.ends(job_id, "dead")
    assert (dead["attempts"], dead["reason"], dead["last_status_code"]) == (1, "permanent", 400)

    assert up.client.http.post(f"/v1/jobs/{job_id}/redrive").status_code == 202
    target.came(2)
    assert up.client.ends(job_id, "dead")["attempts"] == 2

    redriven = duly("dead", "redrive", job_id, "--home", up.home)
    assert (redriven.code, redriven.out) == (0, "redriven: 1\n"), redriven
    assert up.client.ends(job_id, "succeeded")["attempts"] == 3
    assert [a["trigger"] for a in up.client.attempts(job_id)] == ["schedule", "redrive", "redrive"]


def test_a_second_start_in_the_same_home_is_refused_while_the_first_runs(up: Up) -> None:
    """The second says who has the folder; the first goes on."""
    before = (up.home / "credentials.json").read_bytes()
    second = duly("up", "--home", up.home, "--port", free_port())
    assert (second.code, "already has an owner" in second.err) == (1, True), second
    assert "Traceback" not in second.err
    assert (up.home / "credentials.json").read_bytes() == before
    assert up.client.http.get("/readyz").status_code == 200


def test_jobs_and_key_outlive_the_process(home: Path, target: Target, start: Starter) -> None:
    """Ctrl-C and SIGTERM end with exit code 0 and leave no PostgreSQL; the next start has the jobs and the same key."""
    first = start("up", "--home", home, "--port", port := free_port())
    first.says(UP)
    before = read_credentials(home)
    client = Client(before["url"], before["api_key"])
    done = client.create(target.url)
    client.ends(done, "succeeded")
    waiting = client.create(target.url, delay=3600)
    client.close()
    assert postgres_of(home)
    ended = first.stop(signal.SIGINT)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err
    assert "stopped" in ended.err
    no_postgres_left(home)

    second = start("up", "--home", home, "--port", port)
    second.says(UP)
    assert "making a PostgreSQL" not in second.err
    after = read_credentials(home)
    assert after["api_key"] == before["api_key"]
    client = Client(after["url"], before["api_key"])
    assert client.job(done)["state"] == "succeeded"
    assert client.job(waiting)["state"] == "scheduled"
    client.ends(client.create(target.url), "succeeded")
    client.close()
    ended = second.stop(signal.SIGTERM)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err
    no_postgres_left(home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_stop_during_the_start_leaves_nothing_running(home: Path, start: Starter, number: signal.Signals) -> None:
    """Stopped while the cluster is made: no process is left, no half of a cluster counts as one, no traceback."""
    process = start("up", "--home", home, "--port", free_port())
    wait_until(lambda: bool(postgres_of(home)), "initdb runs")
    ended = process.stop(number)
    assert ended.code != 0
    assert "Traceback" not in ended.err, ended.err
    no_postgres_left(home)
    assert not (home / "postgres" / "data").exists()
    assert not (home / "credentials.json").exists()


@as_root
def test_a_home_that_postgres_cannot_enter_still_works(start: Starter) -> None:
    """A folder of mode 0700, as /root is: the database is kept elsewhere, and the command says where."""
    with tempfile.TemporaryDirectory(prefix="duly-test-", dir="/tmp") as closed:  # mode 0700
        home = Path(closed) / "home"
        existed = CLUSTERS.parent.exists(), CLUSTERS.exists()
        before = set(CLUSTERS.iterdir()) if CLUSTERS.exists() else set()
        try:
            process = start("up", "--home", home, "--port", free_port())
            process.says(UP)
            [made] = set(CLUSTERS.iterdir()) - before
            assert f"is closed to the account that PostgreSQL runs as: the database is kept in {made}" in process.err
            assert sorted(path.name for path in home.iterdir()) == ["credentials.json"]
            assert (made / "data" / "PG_VERSION").exists()
            assert duly("doctor", "--home", home).code == 0
            assert process.stop().code == 0
            no_postgres_left(made)
        finally:
            for cluster in set(CLUSTERS.iterdir() if CLUSTERS.exists() else ()) - before:
                shutil.rmtree(cluster)
            for folder, was_there in ((CLUSTERS, existed[1]), (CLUSTERS.parent, existed[0])):
                if not was_there and folder.exists() and not any(folder.iterdir()):
                    folder.rmdir()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_given_database_means_no_private_one(
    by: str, empty_database_url: str, home: Path, target: Target, start: Starter
) -> None:
    """With --database-url or DULY_DATABASE_URL no server is started; the rest is the same. A stop waits for a running
    job (first case); a second signal does not (second case).
    """
    given = ["--database-url", empty_database_url] if by == "option" else []
    variables = {} if by == "option" else {"DULY_DATABASE_URL": empty_database_url}
    process = start("up", "--home", home, "--port", free_port(), *given, **variables)
    process.says(UP)
    assert [path.name for path in home.iterdir()] == ["credentials.json"]
    assert not postgres_of(home)
    credentials = read_credentials(home)
    assert credentials["database_url"] == empty_database_url
    client = Client(credentials["url"], credentials["api_key"])
    target.hold()
    job_id = client.create(target.url)
    target.came(1)
    client.close()
    process.send(signal.SIGINT)
    process.says("draining; once more to abort")
    time.sleep(1.5 * SAME_SIGNAL_S)  # after it was handled: the next one is not taken for its echo
    if by == "option":
        target.release()
        ended = process.ends()
        assert (ended.code, outcomes(empty_database_url, job_id)) == (0, ["success"]), ended
    else:
        ended = process.stop(signal.SIGINT)
        assert (ended.code, outcomes(empty_database_url, job_id)) == (1, ["interrupted"]), ended
    assert "Traceback" not in ended.err, ended.err
