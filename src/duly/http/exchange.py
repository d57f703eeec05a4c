"""What is known of one HTTP exchange while it runs: phases, status, headers, the first bytes of the body."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import aiohttp

from duly.http.lost import LostConnectionError
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
    """Filled in as things happen; a step that raises leaves the earlier ones standing. Times are monotonic seconds.

    `step` is the phase that runs: dns, connect, tls or request. `since` is when it began. `is_last`: the
    job is not tried again, whatever comes of this.
    """

    secrets: Sequence[bytes] = ()
    hidden: Sequence[bytes] = ()
    is_tls: bool = False
    is_last: bool = False
    started: float = field(default_factory=time.monotonic)
    step: str = "dns"
    since: float = field(default_factory=time.monotonic)
    is_reused: bool = False
    is_resent: bool = False
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_cut: bool = False
    remote_address: str | None = None
    phases: dict[str, float] = field(default_factory=dict)

    def enter(self, step: str, ended: str | None = None) -> None:
        """Begin a step; `ended` names the phase that is over and whose length (in ms) is noted."""
        now = time.monotonic()
        if ended is not None:
            self.phases[ended] = round((now - self.since) * 1000, 3)
        self.step, self.since = step, now

    def connected(self, *, is_new: bool) -> None:
        """Note that a connection is there: a new one, its TLS done, or a kept one, for which nothing had to be done."""
        self.is_reused = not is_new
        if is_new:
            self.enter("request", ended="tls" if self.is_tls else None)
        else:
            self.enter("request")
            self.phases["connect"] = 0.0

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """Take over the head of an answer."""
        self.enter(self.step, ended="first_byte")
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
        self.phases["total"] = round((time.monotonic() - self.started) * 1000, 3)
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
        if self.is_resent:
            detail["resent"] = True
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


current_exchange: ContextVar[Exchange] = ContextVar("current_exchange")
"""The exchange that the task works on. (aiohttp's traces could carry it, at a fifth of what a request costs.)"""


def transport_is_up() -> None:
    """Called when a socket is connected, before TLS begins."""
    exchange = current_exchange.get(None)
    if exchange is not None and exchange.step == "connect":
        exchange.enter("tls" if exchange.is_tls else "connect", ended="connect")


class PeerNotingResponse(aiohttp.ClientResponse):
    """Keeps the peer's address: an answer without a body gives its connection back before anyone could ask."""

    peer: str | None = None

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Called by aiohttp when the request has been written."""
        transport = connection.transport
        peername = transport.get_extra_info("peername") if transport is not None else None
        self.peer = str(peername[0]) if peername else None
        protocol = connection.protocol
        try:
            return await super().start(connection)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            if protocol is None or protocol.answer_began:
                raise LostConnectionError from error
            raise
