"""`--metrics-port`: off unless asked for, on a listener of its own, and no target."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx

from cli.harness import (
    Running,
    Starter,
    Target,
    assert_refused,
    duly,
    free_port,
    new_key,
    outcomes,
    put_job,
    state_of,
    wait_until,
)


def scrape(running: Running) -> dict[str, float]:
    """Every sample of a process that said where its metrics are."""
    running.says("metrics on ")
    found = re.search(r"metrics on (http://\S+)", running.err + running.out)
    assert found
    text = httpx.get(found[1], timeout=30).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, _, number in lines}


def test_a_worker_tells_of_its_work(database_url: str, start: Starter, target: Target) -> None:
    """Jobs that are delivered, refused, or dead are told by the process that did it, and the queue's depth beside."""
    good, late = put_job(database_url, target.url), put_job(database_url, target.url)
    target.answers[:] = [200, 404]
    worker = start("worker", "--database-url", database_url, "--allow", "127.0.0.0/8", "--metrics-port", 0)
    target.came(2)
    wait_until(lambda: {state_of(database_url, job_id) for job_id in (good, late)} == {"succeeded", "dead"}, "both end")
    wait_until(lambda: scrape(worker)['duly_attempts_total{outcome="http_error"}'] == 1, "the second is told")
    seen = scrape(worker)
    assert seen['duly_attempts_total{outcome="success"}'] == 1
    assert seen['duly_jobs_dead_total{reason="permanent"}'] == 1
    assert seen["duly_worker_slots"] == 100
    assert seen["duly_attempt_seconds_count"] == 2
    assert seen["duly_database_up"] == 1
    assert "duly_breakers_opened_total" in seen
    assert not any("duly_api" in name for name in seen)
    assert worker.stop().code == 0


def test_an_api_tells_of_its_requests_elsewhere(database_url: str, start: Starter) -> None:
    """Not on its own port; and the listener of the metrics is no target, not even where loopback is open."""
    port, metrics = free_port(), free_port()
    key = new_key(database_url)
    api = start(
        "api", "--database-url", database_url, "--port", port, "--allow", "127.0.0.0/8", "--metrics-port", metrics
    )
    api.says("API on ")
    base, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{base}/metrics").status_code == 404
    made = httpx.post(f"{base}/v1/jobs", json={"url": "http://127.0.0.1:9999/"}, headers=headers)
    refused = httpx.post(f"{base}/v1/jobs", json={"url": f"http://127.0.0.1:{metrics}/metrics"}, headers=headers)
    assert (made.status_code, refused.status_code) == (201, 422), refused.text
    seen = scrape(api)
    assert seen['duly_api_requests_total{method="POST",route="/v1/jobs",status="201"}'] == 1
    assert seen['duly_jobs{state="ready"}'] == 1
    assert not any("duly_worker_slots" in name for name in seen)


def test_slots_of_all_queues_are_told(database_url: str, start: Starter) -> None:
    """Those of a queue's own, and those that the others share."""
    given = ("--database-url", database_url, "--concurrency", 10, "--queues", "mail:3,reports", "--metrics-port", 0)
    worker = start("worker", *given)
    worker.says("worker started")
    seen = scrape(worker)
    assert (seen["duly_worker_slots"], seen["duly_worker_slots_used"]) == (13, 0)
    wait_until(lambda: scrape(worker)["duly_slots"] == 13, "both have registered")
    worker.stop()


def test_each_of_several_processes_has_a_port_of_its_own(database_url: str, start: Starter) -> None:
    """The one that was given and the one behind it; none of them is a target for any of them."""
    port = free_port()
    given = ("--database-url", database_url, "--processes", 2, "--grace", 1, "--allow", "127.0.0.0/8")
    workers = start("worker", *given, "--metrics-port", port)
    wait_until(lambda: workers.err.count("worker started") == 2, "two have started")
    for each in (port, port + 1):
        assert "duly_worker_slots 100.0" in httpx.get(f"http://127.0.0.1:{each}/metrics", timeout=30).text
        job_id = put_job(database_url, f"http://127.0.0.1:{each}/metrics")
        wait_until(partial(_is_refused, database_url, job_id), "it is refused")
    assert workers.stop().code == 0
    refused = duly("worker", *given, "--metrics-port", 65_535)
    assert_refused(refused, "--metrics-port 65535", "65534 at most")


def _is_refused(url: str, job_id: str) -> bool:
    return outcomes(url, job_id)[:1] == ["target_not_allowed"]


def test_without_the_option_nothing_is_loaded() -> None:
    """No metrics, no listener, and not even the library in memory."""
    program = """
import asyncio, sys
from duly.cli import serve
from duly.cli.observing import ObservationSettings, observed
async def main():
    async with observed(None, "", ObservationSettings(), "worker") as watched:
        return watched
print(asyncio.run(main()), sorted({"prometheus_client", "opentelemetry", "fastapi"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("Observed(metrics=None, tracing=None) []\n", "")


def test_a_taken_port_is_one_sentence(database_url: str) -> None:
    """Before anything is done."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = duly("worker", "--database-url", database_url, "--metrics-port", port)
    assert_refused(refused, f"port {port}", "--metrics-port")


def test_up_serves_everything_at_one_place(home: Path, start: Starter) -> None:
    """Requests and work in one registry."""
    up = start("up", "--home", home, "--port", free_port(), "--metrics-port", 0)
    up.says("Duly is up")
    seen = scrape(up)
    assert {"duly_worker_slots", "duly_api_requests_in_flight", "duly_database_up"} <= set(seen)
    up.stop()
