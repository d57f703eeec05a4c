"""What the API answers: requests by route and status, and how long they took. Creates are a route among others."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from duly.observe.routes import Application, Receive, Scope, Send, method_of, route_of

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class RequestMetrics:
    """Wraps an application. A route is named by its template: what stands in the path is never a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "duly_api_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "duly_api_request_seconds",
            "From a request's head to the end of its answer; of POST /v1/jobs, how long a create took.",
            ["method", "route"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._in_flight = Gauge("duly_api_requests_in_flight", "Requests not answered yet.", registry=registry)

    def around(self, app: Application) -> Application:
        """The application, measured."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = "none"  # the client was gone before an answer

            async def noting(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            began = time.perf_counter()
            self._in_flight.inc()
            try:
                await app(scope, receive, noting)
            finally:
                self._in_flight.dec()
                method, route = method_of(scope), route_of(scope)
                self._requests.labels(method, route, status).inc()
                self._seconds.labels(method, route).observe(time.perf_counter() - began)

        return measured
