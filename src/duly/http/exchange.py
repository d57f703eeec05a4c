"""What is known of one HTTP exchange while it runs: phases, status, headers, the first bytes of the body."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import aiohttp

from duly.http.retry_after import retry_after
from duly.http.signature import masked
from duly.model.outcomes import Report

READ_LIMIT_BYTES = 64 * 1024
EXCERPT_LIMIT_BYTES = 16 * 1024

_KEPT_HEADERS = frozenset(
    {
        "cache-control", "content-encoding", "content-length", "content-type", "date", "duly-retry", "location",
        "retry-after", "server", "set-cookie", "traceparent", "via", "x-correlation-id", "x-request-id",
    }
)  # fmt: skip
_MAX_KEPT = 32
_MAX_VALUE = 1024


@dataclass(slots=True)
class Exchange:
    """Filled in as things happen; a step that raises leaves the earlier ones standing. Times are monotonic seconds."""

    secrets: Sequence[bytes] = ()
    hidden: Sequence[bytes] = ()
    started: float = field(default_factory=time.monotonic)
    step: str = "dns"
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_cut: bool = False
    remote_address: str | None = None
    phases: dict[str, float] = field(default_factory=dict)

    def mark(self, phase: str, since: float) -> float:
        """Note how long a phase took (in ms) and return the time now."""
        now = time.monotonic()
        self.phases[phase] = round((now - since) * 1000, 3)
        return now

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """Take over the head of an answer."""
        self.status = response.status
        self.headers = tuple(
            (name.decode("ascii", "replace").lower(), value.decode("utf-8", "replace"))
            for name, value in response.raw_headers
        )

    def values(self, name: str) -> list[str]:
        """All values of an answer's header, by lower-case name."""
        return [value for key, value in self.headers if key == name]

    def report(self, result: str, error: str | None, now: Any) -> Report:
        """The ledger's entry. Signing secrets, and what is `hidden`, are masked wherever the target may have put
        them.
        """
        self.mark("total", self.started)
        excerpt = (
            masked(self.body, (*self.secrets, *self.hidden))[:EXCERPT_LIMIT_BYTES] if self.status is not None else None
        )
        detail: dict[str, Any] = {"phases": dict(self.phases)}
        if self.headers:
            detail["response_headers"] = self._kept_headers()
        if location := self.values("location"):
            detail["location"] = self._shown(location[0])
        if (wait := retry_after(self.values("retry-after"), now)) is not None:
            detail["retry_after_s"] = wait.total_seconds()
        if self.remote_address is not None:
            detail["remote_address"] = self.remote_address
        return Report(
            result=result,
            error=error,
            status_code=self.status,
            duration=timedelta(seconds=time.monotonic() - self.started),
            excerpt=excerpt,
            excerpt_truncated=self.is_cut or len(self.body) > EXCERPT_LIMIT_BYTES,
            detail=detail,
        )

    def _kept_headers(self) -> list[list[str]]:
        kept = [(name, value) for name, value in self.headers if name in _KEPT_HEADERS][:_MAX_KEPT]
        return [[name, "***" if name == "set-cookie" else self._shown(value)] for name, value in kept]

    def _shown(self, value: str) -> str:
        return masked(value.encode("utf-8", "replace"), (*self.secrets, *self.hidden)).decode("utf-8", "replace")[
            :_MAX_VALUE
        ]


class PeerNotingResponse(aiohttp.ClientResponse):
    """Keeps the peer's address: an answer without a body gives its connection back before anyone could ask."""

    peer: str | None = None

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Called by aiohttp when the request has been written."""
        transport = connection.transport
        peername = transport.get_extra_info("peername") if transport is not None else None
        self.peer = str(peername[0]) if peername else None
        return await super().start(connection)


def tracing() -> aiohttp.TraceConfig:
    """Trace hooks that note the steps in the Exchange given as `trace_request_ctx`."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(_connecting)
    trace.on_connection_create_end.append(_connected)
    trace.on_connection_reuseconn.append(_reused)
    return trace


async def _connecting(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    exchange: Exchange = context.trace_request_ctx
    exchange.step = "connect"
    context.connect_began = time.monotonic()


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    exchange: Exchange = context.trace_request_ctx
    exchange.mark("connect", context.connect_began)
    exchange.step = "request"


async def _reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    exchange: Exchange = context.trace_request_ctx
    exchange.step = "request"
    exchange.phases["connect"] = 0.0
