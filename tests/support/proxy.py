"""A TCP door to a server's Unix socket that can be shut, cut, or turned into a black hole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Mode = Literal["pass", "swallow_replies", "black_hole", "refuse"]


class Proxy:
    """Passes bytes both ways. `swallow_replies`: what the server says is dropped. `black_hole`: nothing passes,
    nothing is
    closed. `refuse`: new connections are closed at once.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        where = parse_qs(parts.query)
        self._socket = f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}"
        self._user = parts.username
        self._database = parts.path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.mode: Mode = "pass"
        self.port = 0

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}{self._database}?sslmode=disable"

    def cut(self) -> None:
        """Reset every open connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def say(self, data: bytes) -> None:
        """Send every client something that its server did not say."""
        for writer in self._clients:
            writer.write(data)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "refuse":
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        both = {writer, server_writer}
        self._writers |= both
        self._clients.add(writer)
        try:
            pumps = [
                asyncio.ensure_future(self._pump(reader, server_writer, ("pass", "swallow_replies"))),
                asyncio.ensure_future(self._pump(server_reader, writer, ("pass",))),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers -= both
            self._clients.discard(writer)
            server_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_in: tuple[Mode, ...]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.mode in open_in:
                    writer.write(data)
                    await writer.drain()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the database of a Unix-socket URL."""
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
