"""One trace from the request that creates a job to each attempt and its target; nothing of the kind while it is off."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from api.harness import Api, new_api
from duly.api import ApiServer, ApiSettings, create_app
from duly.cli.observing import NOTHING, Observed
from duly.cli.parts import WorkerSettings, work
from duly.http import EgressPolicy
from duly.model import Hold, NewJob, Outcome
from duly.observe.tracing import TraceFields, Tracing, context_of
from duly.queue import Database
from duly.service import Keyring
from duly.service.keyring import new_key
from support.claimed import claimed
from support.recording_target import Received, recording_target
from support.sessions import until, until_true

THEIRS = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{THEIRS}-00f067aa0ba902b7-01"
POLICY = EgressPolicy.parse(allow_loopback=True)


@dataclass
class Spans:
    """Everything that ended, by name."""

    exporter: InMemorySpanExporter
    tracing: Tracing

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    def said(self) -> str:
        return " ".join(span.to_json() for span in self.exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(exporter, Tracing(provider))


@asynccontextmanager
async def serving(database: Database, tracing: Tracing | None, keyring: Keyring | None = None) -> AsyncIterator[Api]:
    sealed: dict[str, Any] = {} if keyring is None else {"keyring": keyring}
    app: Any = create_app(database, POLICY, ApiSettings(), carry=None if tracing is None else tracing.carry, **sealed)
    server = ApiServer(tracing.around(app) if tracing else app)
    host, port = await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield await new_api(database, client, "first")
    await server.stop()


@asynccontextmanager
async def delivering(
    database: Database, url: str, watched: Observed, settings: WorkerSettings | None = None
) -> AsyncIterator[None]:
    draining, aborting = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        work(database, url, POLICY, settings or WorkerSettings(), draining, aborting, watched=watched)
    )
    try:
        yield
    finally:
        draining.set()
        async with asyncio.timeout(30):
            await running


async def ended(api: Api, job_id: str, state: str = "succeeded") -> None:
    async def look() -> bool:
        return bool((await api.job(job_id))["state"] == state)

    await until(look)


async def test_a_request_its_job_its_attempts_and_its_target_are_one_trace(
    database: Database, database_url: str, spans: Spans
) -> None:
    """The caller's own: request → enqueue → each attempt → what the target is told; sealed or not."""
    answers = [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n"]

    def answer(_: Received) -> bytes:
        return answers.pop() if answers else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    keyring = Keyring.parse(new_key())
    settings = WorkerSettings(keyring=keyring)
    async with (
        serving(database, spans.tracing, keyring) as api,
        recording_target(answer) as target,
        delivering(database, database_url, Observed(tracing=spans.tracing), settings),
    ):
        made = await api.post(
            "/v1/jobs",
            {
                "url": target.url("/hook?token=canary"),
                "body": "x",
                "retry": {"backoff": {"kind": "steps", "steps": [0.01]}},
            },
            headers={"traceparent": PARENT, "tracestate": "vendor=1"},
        )
        assert made.status_code == 201, made.text
        await ended(api, made.json()["id"])
    request, enqueue, attempts = spans.one("POST /v1/jobs"), spans.one("enqueue"), spans.all("attempt")
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert enqueue.parent is not None
    assert enqueue.parent.span_id == request.context.span_id
    assert len(attempts) == 2
    for span, received in zip(attempts, target.received, strict=True):
        assert span.parent is not None
        assert span.parent.span_id == enqueue.context.span_id
        assert received.header("traceparent") == f"00-{THEIRS}-{span.context.span_id:016x}-01"
        assert received.header("tracestate") == "vendor=1"
    first, second = (dict(span.attributes or {}) for span in attempts)
    assert (first["duly.attempt"], first["duly.result"], first["http.response.status_code"]) == (1, "http_error", 503)
    assert (second["duly.attempt"], second["duly.result"], second["duly.outcome"]) == (2, "success", "success")
    assert attempts[0].status.status_code is StatusCode.ERROR
    assert attempts[1].status.status_code is StatusCode.UNSET
    assert {f"{span.context.trace_id:032x}" for span in (request, enqueue, *attempts)} == {THEIRS}
    assert "canary" not in spans.said()
    assert first["server.address"] == "127.0.0.1"


async def test_a_request_without_a_trace_begins_one(database: Database, spans: Spans) -> None:
    """And one with a header that is none, or far too long."""
    async with serving(database, spans.tracing) as api:
        for header in ({}, {"traceparent": "00-zz-1-01"}, {"traceparent": PARENT, "tracestate": "a=" + "x" * 5000}):
            made = await api.post("/v1/jobs", {"url": "http://127.0.0.1:9999/"}, headers=header)
            assert made.status_code == 201
    stored = [json.loads(row[0])["trace"] for row in await database.fetch("select payload from duly.job order by id")]
    assert [set(each) for each in stored] == [{"traceparent"}] * 3
    assert [each["traceparent"].split("-")[1] == THEIRS for each in stored] == [False, False, True]


async def test_the_same_request_in_another_span_is_the_same_job(database: Database, spans: Spans) -> None:
    """A client that repeats after a lost reply does so under another span, or without one; another body is a conflict
    all the same.
    """
    job = {"id": None, "url": "http://127.0.0.1:9999/", "body": "x"}
    async with serving(database, spans.tracing) as api:
        first = await api.create(body="x")
        job["id"] = first["id"]
        job["url"] = first["url"]
        again = await api.post("/v1/jobs", job, headers={"traceparent": PARENT})
        other = await api.post("/v1/jobs", {**job, "method": "PUT"}, headers={"traceparent": PARENT})
    assert (again.status_code, other.status_code) == (201, 409), again.text
    assert again.headers["idempotency-replayed"] == "true"


async def test_jobs_of_a_batch_are_enqueued_in_one_span(database: Database, spans: Spans) -> None:
    """Each carries it; and so does a job that is stored with its answer under an idempotency key."""
    job = {"url": "http://127.0.0.1:9999/"}
    async with serving(database, spans.tracing) as api:
        made = await api.post("/v1/jobs/batch", {"jobs": [job, job, {**job, "queue": "mail"}]})
        assert made.status_code == 200, made.text
        alone = await api.post("/v1/jobs", {**job, "queue": "alone"}, headers={"idempotency-key": "k"})
        assert alone.status_code == 201, alone.text
    together, single = spans.all("enqueue")
    attributes = dict(together.attributes or {})
    assert attributes["messaging.batch.message_count"] == 3
    assert not {"messaging.destination.name", "duly.job.id"} & attributes.keys()
    assert dict(single.attributes or {})["messaging.destination.name"] == "alone"
    rows = await database.fetch("select payload -> 'trace' ->> 'traceparent' from duly.job order by queue = 'alone'")
    carried = [row[0].split("-")[2] for row in rows]
    assert carried == [f"{span.context.span_id:016x}" for span in (together, together, together, single)]


async def test_a_trace_header_of_the_job_s_own_is_sent_as_it_is(
    database: Database, database_url: str, spans: Spans
) -> None:
    """It is the caller's to set, and ours yields."""
    own = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
    async with (
        serving(database, spans.tracing) as api,
        recording_target() as target,
        delivering(database, database_url, Observed(tracing=spans.tracing)),
    ):
        made = await api.create(url=target.url(), headers={"TraceParent": own})
        await ended(api, made["id"])
    assert target.received[0].header("traceparent") == own
    assert target.received[0].header("tracestate") is None


async def test_a_callback_belongs_to_the_trace_of_its_job(database: Database, database_url: str, spans: Spans) -> None:
    """What tells of its end is a job like any other."""
    async with (
        serving(database, spans.tracing) as api,
        recording_target() as target,
        delivering(database, database_url, Observed(tracing=spans.tracing)),
    ):
        made = await api.post(
            "/v1/jobs", {"url": target.url(), "on_success": target.url("/told")}, headers={"traceparent": PARENT}
        )
        assert made.status_code == 201
        await until_true(lambda: len(target.received) == 2)
    assert [str(received.header("traceparent"))[3:35] for received in target.received] == [THEIRS] * 2


async def test_nothing_is_carried_while_it_is_off(database: Database, database_url: str) -> None:
    """Not stored, not sent, whatever the request's headers say."""
    async with (
        serving(database, None) as api,
        recording_target() as target,
        delivering(database, database_url, NOTHING),
    ):
        made = await api.post("/v1/jobs", {"url": target.url()}, headers={"traceparent": PARENT})
        await ended(api, made.json()["id"])
    assert target.received[0].header("traceparent") is None
    assert "trace" not in json.loads(await database.fetchval("select payload from duly.job"))


async def test_a_job_of_before_is_delivered_in_a_trace_of_its_own(
    database: Database, database_url: str, spans: Spans
) -> None:
    """Stored while traces were off."""
    async with serving(database, None) as api, recording_target() as target:
        made = await api.create(url=target.url())
        async with delivering(database, database_url, Observed(tracing=spans.tracing)):
            await ended(api, made["id"])
    span = spans.one("attempt")
    assert span.parent is None
    assert str(target.received[0].header("traceparent"))[3:35] == f"{span.context.trace_id:032x}"


async def test_an_attempt_that_is_broken_off_ends_its_span(spans: Spans) -> None:
    """With whatever it was that it raised, of which nothing is told; a hold has no report."""

    async def cancelled(_: object) -> Outcome:
        raise asyncio.CancelledError("canary")

    with pytest.raises(asyncio.CancelledError):
        await spans.tracing.attempts(cancelled)(claimed())

    async def held(_: object) -> Outcome:
        return Hold(timedelta(seconds=1))

    await spans.tracing.attempts(held)(claimed())
    broken, waiting = spans.all("attempt")
    assert "canary" not in spans.said()
    assert broken.end_time is not None
    assert (waiting.attributes or {})["error.type"] == "hold"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_whatever_is_stored_gives_a_context(stored: object) -> None:
    """SQL can store anything: it is no trace, and no error."""
    for payload in (stored, {"trace": stored}, {"trace": {"traceparent": stored, "tracestate": stored}}):
        context = context_of(json.dumps(payload))
        assert not trace.get_current_span(context).get_span_context().is_valid
    assert context_of("{") == {}


def test_what_was_carried_is_read_again() -> None:
    """The context of the enqueue."""
    context = context_of(json.dumps({"trace": {"traceparent": PARENT}}))
    assert f"{trace.get_current_span(context).get_span_context().trace_id:032x}" == THEIRS


async def test_errors_of_the_api_are_errors_of_the_span(spans: Spans) -> None:
    """From 500 on; a client's mistakes are its own. Another kind of scope passes."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": scope["status"]})

    async def nothing(*_: Any) -> Any: ...

    app = spans.tracing.around(broken)
    for status in (404, 503):
        await app({"type": "http", "method": "GET", "headers": [], "status": status}, nothing, nothing)
    await app({"type": "lifespan", "status": 1}, nothing, nothing)
    assert [span.status.status_code for span in spans.all("GET (none)")] == [StatusCode.UNSET, StatusCode.ERROR]


def test_log_lines_name_the_span_that_they_belong_to(spans: Spans) -> None:
    """Inside one; outside they stay as they are."""
    fields = TraceFields()
    outside, inside = logging.makeLogRecord({}), logging.makeLogRecord({})
    fields.filter(outside)
    with spans.tracing.carry([NewJob("http", {})]) as carried:
        fields.filter(inside)
    assert not hasattr(outside, "trace_id")
    _, trace_id, span_id, _ = carried["traceparent"].split("-")
    assert vars(inside)["trace_id"] == trace_id
    assert vars(inside)["span_id"] == span_id
