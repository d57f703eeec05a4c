"""`--traces`: spans leave by OTLP, log lines name their trace, and no secret is in any of it."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cli.harness import Client, Starter, Target, duly, free_port, sql, wait_until
from cli.test_metrics import scrape

OPEN = ["--allow", "127.0.0.0/8"]
CANARY = "canary-0d2f9"


@dataclass
class Collector:
    """Takes what is exported."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    def attempts(self) -> list[dict[str, str]]:
        """The attributes of each span of an attempt, those that are text."""
        return [
            {attribute.key: attribute.value.string_value for attribute in span.attributes}
            for body in self.bodies
            for part in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in part.scope_spans
            for span in scope.spans
            if span.name == "attempt"
        ]

    def names(self) -> set[tuple[str, str]]:
        """Service and span."""
        found = set()
        for body in self.bodies:
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                [service] = [a.value.string_value for a in part.resource.attributes if a.key == "service.name"]
                found |= {(service, span.name) for scope in part.scope_spans for span in scope.spans}
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    it = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            it.bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield it
    server.shutdown()
    server.server_close()
    thread.join()


def test_spans_are_sent_and_nothing_tells_a_secret(
    database_url: str, target: Target, start: Starter, collector: Collector
) -> None:
    """Header values, bodies, what stands in a query, the API key, the signing secret: delivered, and in no log at its
    most talkative, no span and no metric, while deliveries succeed, fail, are refused and their target is gone.
    """
    given = ["--database-url", database_url]
    told = [*OPEN, "--traces", "--metrics-port", 0, "-v", "--log-format", "json"]
    otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    api = start("api", *given, "--port", port := free_port(), *told, **otlp)
    api.says("API on")
    key = duly("keys", "create", "test", *given).out.strip().splitlines()[-1].split()[-1]
    assert key.startswith("duly_")
    worker = start("worker", *given, *told, **otlp)
    client = Client(f"http://127.0.0.1:{port}", key)
    secret = {
        "headers": {"Authorization": f"Bearer {CANARY}", "X-Plain": CANARY},
        "body": CANARY,
        "metadata": {"k": CANARY},
        "retry": {"max_attempts": 1},
    }
    target.answers[:] = [200, 404, 503]
    jobs = [client.create(f"{target.url}?token={CANARY}", **secret) for _ in range(3)]
    jobs.append(client.create(f"http://127.0.0.1:{free_port()}/?token={CANARY}", **secret))
    refused = client.http.post("/v1/jobs", json={"url": f"http://10.0.0.1/?{CANARY}", **secret})
    assert refused.status_code == 422
    assert client.http.get("/v1/jobs", headers={"authorization": f"Bearer {CANARY}"}).status_code == 401
    wait_until(
        lambda: sql(database_url, "select count(*) from duly.outcome") == [len(jobs)], "every job has come to its end"
    )
    expected = {("duly-api", "POST /v1/jobs"), ("duly-api", "enqueue"), ("duly-worker", "attempt")}
    wait_until(lambda: expected <= collector.names(), "the spans are there")
    shown = [*scrape(api), *scrape(worker)]
    client.close()
    ends = [worker.stop(), api.stop()]
    signing = [bytes(row) for row in sql(database_url, "select secret from duly.signing_secret")]
    hidden = [CANARY, key, key.partition("_")[2], *(base64.b64encode(row).decode() for row in signing)]
    everything = [*shown, *(r.out + r.err for r in ends), *(body.decode("latin-1") for body in collector.bodies)]
    for secret_text in hidden:
        assert not any(secret_text in text for text in everything), secret_text
    for result in ends:
        lines = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
        assert lines
        assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)


def test_a_collector_that_is_not_there_holds_nothing_up(database_url: str, start: Starter, target: Target) -> None:
    """Neither jobs nor the stop, and the log says nothing of it at its usual level."""
    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    up = start("worker", "--database-url", database_url, *OPEN, "--traces", **nowhere)
    up.says("worker started")
    ended = up.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.err


TASKS = """
import duly

@duly.task
def in_thread(trace: dict) -> int:
    return 1

@duly.task(run_in="process")
def in_process() -> int:
    return 1

@duly.task(max_attempts=1)
async def fails() -> None:
    raise ValueError("canary-0d2f9")
"""


def test_attempts_of_tasks_are_spans(
    database_url: str, start: Starter, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they run, however they end; an argument that looks like a trace is none, and none is told."""
    (tmp_path / "traced_jobs.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    worker = start("worker", "--database-url", database_url, "--app", "traced_jobs", "--traces", **otlp)
    theirs = {"trace": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
    for task, args in (("in_thread", theirs), ("in_process", {}), ("fails", {})):
        sql(
            database_url,
            "select duly.enqueue_task($1, $2::jsonb, max_attempts => 1)",
            f"traced_jobs.{task}",
            json.dumps(args),
        )
    wait_until(lambda: sql(database_url, "select count(*) from duly.outcome") == [3], "every task has ended")
    wait_until(lambda: len(collector.attempts()) == 3, "the spans are there")
    told = {found["duly.kind"]: found for found in collector.attempts()}
    assert set(told) == {f"task:traced_jobs.{task}" for task in ("in_thread", "in_process", "fails")}
    assert told["task:traced_jobs.fails"]["error.type"] == "error"
    assert told["task:traced_jobs.in_process"]["duly.outcome"] == "success"
    assert worker.stop().code == 0
    told_bytes = b"".join(collector.bodies)
    assert CANARY.encode() not in told_bytes
    assert bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736") not in told_bytes
