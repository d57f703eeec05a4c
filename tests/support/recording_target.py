"""A target on loopback that notes what comes, and answers the same bytes, or what a function makes of the request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from duly.http.ports import BAD_PORTS

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    headers: dict[str, str]
    body: bytes

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())


@dataclass(slots=True)
class RecordingTarget:
    """What a test sees of it."""

    port: int = 0
    received: list[Received] = field(default_factory=list)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@asynccontextmanager
async def recording_target(answer: bytes | Callable[[Received], bytes] = OK) -> AsyncIterator[RecordingTarget]:
    """Serve until the block ends, one request a connection."""
    target = RecordingTarget()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
        request = Received(headers, await reader.readexactly(int(headers.get("content-length", 0))))
        target.received.append(request)
        writer.write(answer if isinstance(answer, bytes) else answer(request))
        await writer.drain()
        writer.close()

    server, target.port = await _listen(serve)
    try:
        yield target
    finally:
        server.close()
        await server.wait_closed()


async def _listen(serve: Callable[..., object]) -> tuple[asyncio.Server, int]:
    """On a free port that a job may call, below those that the system gives to outgoing connections."""
    for port in random.sample([port for port in range(12000, 26000) if port not in BAD_PORTS], 200):
        try:
            return await asyncio.start_server(serve, "127.0.0.1", port), port  # type: ignore[arg-type]
        except OSError:
            continue
    raise RuntimeError("no free port on 127.0.0.1")
