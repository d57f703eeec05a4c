"""`duly api` and `duly worker`: separate processes on one database, stopped, aborted and killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from cli.harness import (
    Client,
    Running,
    Starter,
    Target,
    free_port,
    new_key,
    outcomes,
    put_job,
    sql,
    state_of,
    wait_until,
)
from duly.cli.stopping import SAME_SIGNAL_S
from duly.model import RetryPolicy

OPEN = ["--allow", "127.0.0.0/8"]
LEASE_S = 2
BESIDES_S = 5.0
"""What a rescue takes besides the leases: a look every 2 s, 2 s of backoff, both ± 25 %."""


@pytest.fixture
def client(database_url: str, start: Starter) -> Iterator[Client]:
    """A client of a `duly api` of its own."""
    api = start("api", "--database-url", database_url, "--port", port := free_port(), *OPEN)
    api.says("API on")
    client = Client(f"http://127.0.0.1:{port}", new_key(database_url))
    yield client
    client.close()
    ended = api.stop()
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended


def new_worker(start: Starter, database_url: str, *options: object) -> Running:
    worker = start("worker", "--database-url", database_url, *OPEN, *options)
    worker.says("worker started")
    return worker


def test_two_workers_share_what_one_api_takes_in(
    client: Client, database_url: str, target: Target, start: Starter
) -> None:
    """Every job is delivered once, by one of them; both end cleanly and sign off."""
    workers = [new_worker(start, database_url, "--concurrency", 2) for _ in range(2)]
    jobs = [client.create(target.url) for _ in range(20)]
    for job_id in jobs:
        client.ends(job_id, "succeeded")
    assert sorted(target.attempts) == sorted((job_id, 1) for job_id in jobs)
    assert [worker.stop().code for worker in workers] == [0, 0]
    assert sql(database_url, "select count(*) from duly.worker") == [0]


def test_a_worker_serves_the_queues_it_was_told(database_url: str, target: Target, start: Starter) -> None:
    """--queues mail,reports: others wait for another worker."""
    waiting = put_job(database_url, target.url)
    served = [put_job(database_url, target.url, queue=queue) for queue in ("mail", "reports")]
    worker = new_worker(start, database_url, "--queues", "mail, reports")
    target.came(2)
    assert worker.stop().code == 0
    assert sorted(job for job, _ in target.attempts) == sorted(served)
    assert state_of(database_url, waiting) == "ready"


def test_a_private_target_stays_closed_without_allow(database_url: str, target: Target, start: Starter) -> None:
    """A worker that was not told otherwise calls no private address, whoever stored the job."""
    job_id = put_job(database_url, target.url)
    worker = start("worker", "--database-url", database_url)
    worker.says("worker started")
    wait_until(lambda: outcomes(database_url, job_id) == ["target_not_allowed"], "the attempt is refused")
    assert worker.stop().code == 0
    assert target.attempts == []


def test_sigterm_finishes_what_runs(client: Client, database_url: str, target: Target, start: Starter) -> None:
    """A delivery that takes two seconds more is finished and settled; nothing new is begun; exit code 0."""
    worker = new_worker(start, database_url, "--lease", LEASE_S)
    target.hold()
    running = client.create(target.url)
    target.came(1)
    stopped = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.says("draining; once more to abort")
    waiting = client.create(target.url)
    wait_until(lambda: time.monotonic() > stopped + LEASE_S + 0.5, "the drain is longer than the lease")
    target.release()
    ended = worker.ends()
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended
    assert client.job(running)["state"] == "succeeded"
    assert outcomes(database_url, running) == ["success"]
    assert target.attempts == [(running, 1)]
    assert client.job(waiting)["state"] == "ready"
    assert client.job(waiting)["attempts"] == 0
    assert sql(database_url, "select count(*) from duly.worker") == [0]


def test_a_second_signal_aborts(database_url: str, target: Target, start: Starter) -> None:
    """What runs is given back at once as interrupted, and its budget is not used: the only attempt is had again."""
    worker = new_worker(start, database_url)
    target.hold()
    job_id = put_job(database_url, target.url, retry=RetryPolicy(max_attempts=1))
    target.came(1)
    worker.send(signal.SIGTERM)
    worker.says("draining; once more to abort")
    time.sleep(1.5 * SAME_SIGNAL_S)  # after it was handled: the next one is not taken for its echo
    again = time.monotonic()
    ended = worker.stop(signal.SIGTERM)
    assert time.monotonic() - again < 10
    assert (ended.code, "Traceback" in ended.err) == (1, False), ended
    assert (outcomes(database_url, job_id), state_of(database_url, job_id)) == (["interrupted"], "ready")
    target.release()
    second = new_worker(start, database_url)
    wait_until(lambda: state_of(database_url, job_id) == "succeeded", "another worker runs it")
    assert outcomes(database_url, job_id) == ["interrupted", "success"]
    assert second.stop().code == 0


def test_the_grace_ends_a_drain(database_url: str, target: Target, start: Starter) -> None:
    """--grace 0.5: what still runs then is given back, nothing is lost, and the end counts as clean."""
    worker = new_worker(start, database_url, "--grace", 0.5)
    target.hold()
    job_id = put_job(database_url, target.url)
    target.came(1)
    ended = worker.stop(signal.SIGINT)
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended
    assert (outcomes(database_url, job_id), state_of(database_url, job_id)) == (["interrupted"], "ready")


def test_a_killed_worker_is_replaced(database_url: str, target: Target, start: Starter) -> None:
    """SIGKILL in the middle of a delivery: another worker runs the job again within two leases, and the ledger says
    that attempt 1 lost its worker.
    """
    first = new_worker(start, database_url, "--lease", LEASE_S)
    target.hold()
    job_id = put_job(database_url, target.url)
    target.came(1)
    second = new_worker(start, database_url, "--lease", LEASE_S)
    killed = time.monotonic()
    first.kill()
    target.release()
    target.came(2)
    assert time.monotonic() - killed < 2 * LEASE_S + BESIDES_S
    wait_until(lambda: state_of(database_url, job_id) == "succeeded", "the job succeeds")
    assert outcomes(database_url, job_id) == ["worker_lost", "success"]
    assert [attempt for _, attempt in target.attempts] == [1, 2]
    assert second.stop().code == 0
