"""A pooler in transaction mode, as small as one can be: a client has a backend only while it is in a transaction."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pooler:
    """Lends backends out, the one that was given back last first, and answers a client's start from memory."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        where = parse_qs(parts.query)
        self._socket = f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}"
        self._name = f"postgresql://{parts.username}@127.0.0.1:{{port}}{parts.path}?sslmode=disable"
        self._idle: list[Link] = []
        self._backends: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._name.format(port=self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._backends:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = await reader.readexactly(4)
        startup = length + await reader.readexactly(struct.unpack("!I", length)[0] - 4)
        link = await asyncio.open_unix_connection(self._socket)
        self._backends.append(link[1])
        link[1].write(startup)
        await _until(link, writer, b"Z")
        self._idle.append(link)
        held: Link | None = None
        while True:
            message = await _message(reader)
            held = held or self._idle.pop()
            held[1].write(message)
            if message[:1] == b"H":
                await _until(held, writer, b"nTE")  # what a statement is that was described
            elif message[:1] in b"QS" and await _until(held, writer, b"Z") == b"I":
                self._idle.append(held)
                held = None


async def _until(link: Link, to: asyncio.StreamWriter, last: bytes) -> bytes:
    """Pass on what the server says up to a message of one of these kinds; its last byte, which is the state of the
    transaction when the server is ready.
    """
    while True:
        message = await _message(link[0])
        to.write(message)
        if message[:1] in last:
            return message[-1:]


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[Pooler]:
    """A pooler in front of a database while the block runs."""
    pooler = Pooler(url)
    await pooler.start()
    try:
        yield pooler
    finally:
        await pooler.stop()
