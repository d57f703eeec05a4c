"""Servers on 127.0.0.1 that say exactly what a test tells them to, and jobs that point at them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from duly.http import Deliverer, EgressPolicy, new_request
from duly.http.ports import BAD_PORTS
from duly.model import ClaimedJob, Hold, Outcome, Report, RetryPolicy, Trigger

OPEN_LOOPBACK = EgressPolicy.parse(allow_loopback=True)
JOB_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came over the wire."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode("latin-1")

    @property
    def headers(self) -> list[tuple[str, str]]:
        pairs = [line.decode("latin-1").split(": ", 1) for line in self.head.split(b"\r\n")[1:] if line]
        return [(pair[0], pair[1] if len(pair) > 1 else "") for pair in pairs]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


Handler = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class RawServer:
    """What a test can see of a server."""

    port: int
    scheme: str = "http"
    host: str = "127.0.0.1"
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/hook", host: str | None = None) -> str:
        return f"{self.scheme}://{host or self.host}:{self.port}{path}"


def answer(data: bytes) -> Handler:
    """A handler that writes the same bytes to every request."""

    async def write(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return write


@asynccontextmanager
async def raw_server(
    handler: Handler | bytes,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    closes: bool = True,
    reads_body: bool = True,
) -> AsyncIterator[RawServer]:
    """Serve until the block ends. `closes`: end the connection after each answer."""
    respond = answer(handler) if isinstance(handler, bytes) else handler
    seen = RawServer(port=0, scheme="https" if tls else "http", host=host if ":" not in host else f"[{host}]")
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.connections += 1
        try:
            while True:
                request = await _read_request(reader, reads_body=reads_body)
                seen.received.append(request)
                await respond(request, writer)
                if closes:
                    return
        except (OSError, EOFError, asyncio.CancelledError):
            return
        finally:
            seen.closed.set()
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError, ssl.SSLError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host.split(","), _port(), ssl=tls, limit=1 << 20)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader, *, reads_body: bool) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    request = Received(head, b"")
    length = int(request.header("Content-Length") or 0)
    return Received(head, await reader.readexactly(length)) if length and reads_body else request


def _port() -> int:
    """A free port below the ephemeral range and off the bad-port list."""
    import random
    import socket

    for port in random.sample(range(12000, 26000), 200):
        if port in BAD_PORTS:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port on 127.0.0.1")


def closed_port() -> int:
    """A port that nobody listens on."""
    return _port()


def make_job(
    url: str,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | None = b"{}",
    *,
    timeout_s: float = 2.0,
    attempt: int = 1,
    account_id: int = 1,
    on: str | tuple[int | str, ...] = "default",
    hops: int = 0,
    payload: Any = None,
) -> ClaimedJob:
    """A claimed HTTP job with a small budget of time."""
    if payload is None:
        payload = new_request(url, method, headers, None if method in ("GET", "HEAD") else body, hops).to_payload()
    return ClaimedJob(
        id=JOB_ID,
        attempt=attempt,
        final_attempt=8,
        max_attempts=8,
        account_id=account_id,
        project_id=1,
        lane_id=1,
        queue="default",
        kind="http",
        priority=5,
        payload_json=json.dumps(payload),
        body=None if method in ("GET", "HEAD") else body,
        timeout=timedelta(seconds=timeout_s),
        retry=RetryPolicy(on=on),
        run_at=datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC),
        trigger=Trigger.SCHEDULE,
        age=timedelta(0),
        expired=False,
    )


async def deliver(job: ClaimedJob, secrets: Sequence[bytes] = (), **options: Any) -> Outcome:
    """Deliver one job with a Deliverer of its own, loopback opened."""
    policy = options.pop("policy", OPEN_LOOPBACK)
    async with Deliverer(policy, clock=lambda: NOW, **options) as deliverer:
        return await deliverer.deliver(job, secrets)


def report_of(outcome: Outcome) -> Report:
    """The report that every outcome of a delivery carries."""
    assert not isinstance(outcome, Hold)
    assert outcome.report is not None
    return outcome.report
