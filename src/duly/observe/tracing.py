"""Traces by OpenTelemetry: from the request that creates a job, through the enqueue, to each attempt and its target.

The context travels in the job (`trace` in the stored payload, the W3C headers as a mapping), so an attempt days later,
by another process, belongs to the trace of its request. Baggage is not carried: nobody bounds what is in it. No span
holds a URL, a header, a body or an error's text: these may have secrets in them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duly import __version__
from duly.http.breaker import host_of
from duly.model import ClaimedJob, Hold, NewJob, Outcome, Success
from duly.observe.routes import Application, Receive, Scope, Send, method_of, route_of
from duly.service.jobs import KIND

_MOST_CHARACTERS = 512  # of one header: what a W3C tracestate may have
_NAMES = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """The spans of one process; each hook is for one part and knows nothing of the others."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("duly", __version__)

    def around(self, app: Application) -> Application:
        """The application, each request a span in the trace that its headers name."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            with self._span("HTTP", SpanKind.SERVER, _W3C.extract(scope, getter=_ScopeHeaders())) as span:

                async def noting(message: MutableMapping[str, Any]) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(StatusCode.ERROR)
                    await send(message)

                try:
                    await app(scope, receive, noting)
                finally:
                    method, route = method_of(scope), route_of(scope)
                    span.update_name(f"{method} {route}")
                    span.set_attributes({"http.request.method": method, "http.route": route})

        return traced

    @contextmanager
    def carry(self, jobs: Sequence[NewJob]) -> Iterator[Mapping[str, str]]:
        """Around an enqueue: one span, whatever the number of jobs, and what to carry of it in each."""
        attributes: dict[str, str | int] = {"messaging.batch.message_count": len(jobs)}
        if len({job.queue for job in jobs}) == 1:
            attributes["messaging.destination.name"] = jobs[0].queue
        if len(jobs) == 1:
            attributes |= {"duly.job.id": str(jobs[0].id), "duly.kind": jobs[0].kind}
        with self._span("enqueue", SpanKind.PRODUCER, None, attributes):
            yield _carried()

    def attempts(self, send: Callable[[ClaimedJob], Awaitable[Outcome]]) -> Callable[[ClaimedJob], Awaitable[Outcome]]:
        """The handler, each attempt a span in the trace of its job. What a task has as its arguments is no trace."""

        async def traced(job: ClaimedJob) -> Outcome:
            is_http = job.kind == KIND
            host = host_of(job.payload_json) if is_http else None
            attributes: dict[str, str | int] = {
                "duly.kind": job.kind,
                "messaging.destination.name": job.queue,
                "duly.job.id": str(job.id),
                "duly.attempt": job.attempt,
                "duly.trigger": job.trigger.value,
                **({} if host is None else {"server.address": host}),
            }
            context = context_of(job.payload_json) if is_http else Context()
            with self._span("attempt", SpanKind.CONSUMER, context, attributes) as span:
                outcome = await send(job)
                _note(span, outcome)
                return outcome

        return traced

    def headers(self) -> list[tuple[str, str]]:
        """What to send to a target: the current attempt's place in its trace."""
        return list(_carried().items())

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        context: Context | None,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context,
            kind,
            {"messaging.system": "duly", **(attributes or {})},
            record_exception=False,  # an exception's text may hold anything
            set_status_on_exception=False,
        ) as span:
            yield span


class TraceFields(logging.Filter):
    """Adds the trace and the span that a log line belongs to, if it belongs to one."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = f"{context.trace_id:032x}"
            record.span_id = f"{context.span_id:016x}"
        return True


def context_of(payload_json: str) -> Context:
    """The context that a stored job carries; an empty one if it carries none, or one that is none."""
    try:
        stored = json.loads(payload_json)["trace"]
        carried = {name: stored[name] for name in _NAMES if isinstance(stored.get(name), str)}
    except (ValueError, TypeError, KeyError, AttributeError):
        carried = {}
    return _W3C.extract(carried, Context())


def _carried() -> dict[str, str]:
    found: dict[str, str] = {}
    _W3C.inject(found)
    return {name: value for name, value in found.items() if len(value) <= _MOST_CHARACTERS}


def _note(span: Span, outcome: Outcome) -> None:
    report = None if isinstance(outcome, Hold) else outcome.report
    span.set_attribute("duly.outcome", type(outcome).__name__.lower())
    if report is not None:
        span.set_attribute("duly.result", report.result)
        if report.status_code is not None:
            span.set_attribute("http.response.status_code", report.status_code)
    if not isinstance(outcome, Success):
        span.set_status(StatusCode.ERROR)
        span.set_attribute("error.type", type(outcome).__name__.lower() if report is None else report.result)


class _ScopeHeaders(Getter[Scope]):
    """The headers of a request, as its scope has them."""

    def get(self, carrier: Scope, key: str) -> list[str] | None:
        values = [value.decode("latin-1") for name, value in carrier["headers"] if name == key.encode()]
        return [value for value in values if len(value) <= _MOST_CHARACTERS] or None

    def keys(self, carrier: Scope) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier["headers"]]
