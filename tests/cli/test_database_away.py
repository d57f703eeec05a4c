"""The database goes away while jobs run, and comes back."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cli.harness import Client, Starter, Target, duly, free_port, new_key, outcomes, serve_target, sql, wait_until
from duly.embedded import EmbeddedPostgres

LEASE_S = 2.0


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, to stop and start."""
    with tempfile.TemporaryDirectory(prefix="duly-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "pg") as server:
            yield server


@pytest.fixture
def finishing() -> Iterator[Target]:
    """A target that answers while the database is away."""
    with serve_target() as target:
        yield target


@pytest.fixture
def quick() -> Iterator[Target]:
    """A target that answers at once."""
    with serve_target() as target:
        yield target


class Insistent:
    """A client that goes on creating jobs, whatever it is answered, and notes every answer."""

    def __init__(self, client: Client, target: Target) -> None:
        self._client = client
        self._target = target
        self._stop = threading.Event()
        self.answers: list[httpx.Response] = []
        self.unanswered: list[httpx.HTTPError] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self.answers.append(self._client.http.post("/v1/jobs", json={"url": self._target.url}))
            except httpx.HTTPError as error:
                self.unanswered.append(error)

    def end(self) -> tuple[list[str], list[httpx.Response]]:
        """Stop; the ids that were acknowledged, and the refusals."""
        self._stop.set()
        self._thread.join()
        assert self.unanswered == []
        acknowledged = [str(answer.json()["id"]) for answer in self.answers if answer.status_code == 201]
        return acknowledged, [answer for answer in self.answers if answer.status_code != 201]


@pytest.mark.slow
def test_an_outage_of_three_leases_loses_nothing(
    server: EmbeddedPostgres, target: Target, finishing: Target, quick: Target, start: Starter
) -> None:
    """Meanwhile the API answers 503 with Retry-After and takes nothing in. Afterwards API and worker go on by
    themselves, everything acknowledged is done, and no attempt was burnt: not of jobs that waited, nor of one that was
    answered meanwhile; one that ran may have been interrupted.
    """
    url = server.dsn()
    assert duly("migrate", "--database-url", url).code == 0
    api = start("api", "--database-url", url, "--port", port := free_port(), "--allow", "127.0.0.0/8")
    worker = start("worker", "--database-url", url, "--lease", LEASE_S, "--concurrency", 3, "--allow", "127.0.0.0/8")
    api.says("API on")
    worker.says("worker started")
    client = Client(f"http://127.0.0.1:{port}", new_key(url))
    insistent_client = Client(f"http://127.0.0.1:{port}", client.http.headers["authorization"].removeprefix("Bearer "))

    client.ends(client.create(target.url), "succeeded")
    finishing.hold()
    target.hold()
    long_running = client.create(target.url)
    ends_meanwhile = client.create(finishing.url)
    target.came(2)
    finishing.came(1)
    due_meanwhile = client.create(target.url, delay=3)
    insistent = Insistent(insistent_client, quick)
    wait_until(lambda: len(insistent.answers) > 3, "the API takes jobs in")

    server.stop()
    stopped = time.monotonic()
    finishing.release()
    wait_until(lambda: finishing.answered != [], "the delivery ends while the database is away")
    wait_until(lambda: time.monotonic() > stopped + 3 * LEASE_S, "three leases have passed")
    assert (api.process.poll(), worker.process.poll()) == (None, None), api.err + worker.err
    alive = client.http.get("/healthz").status_code, client.http.get("/readyz").status_code
    server.start()
    started = time.monotonic()
    wait_until(lambda: insistent.answers[-1].status_code == 201, "the API takes jobs in again")
    target.release()
    acknowledged, refused = insistent.end()

    assert alive == (200, 503)
    assert refused
    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
    jobs = [*acknowledged, due_meanwhile, long_running, ends_meanwhile]
    for job_id in jobs:
        client.ends(job_id, "succeeded")
    assert time.monotonic() - started < 30
    assert sql(url, "select count(*) from duly.job") == [len(jobs) + 1]
    for job_id in (*acknowledged, due_meanwhile, ends_meanwhile):
        assert outcomes(url, job_id) == ["success"], (job_id, outcomes(url, job_id))
    assert outcomes(url, long_running) in (["success"], ["interrupted", "success"])
    assert duly("doctor", "--database-url", url).code == 0
    client.close()
    insistent_client.close()
    assert (worker.stop().code, api.stop().code) == (0, 0)
    assert "Traceback" not in worker.err + api.err
