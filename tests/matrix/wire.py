"""A proxy that reads the PostgreSQL protocol just far enough to lose one statement, or one committed answer."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from support.proxy import Proxy


@dataclass
class Loss:
    """One statement whose text has `words` is lost on its way to the server, or its answer on its way back.

    An answer counts when the server has committed, and when it has what is `worth` losing: `any`, `rows`, or `true`
    (its last value). When it is `caught`, nothing passes on that connection; after `go` it is reset.
    """

    words: str
    side: Literal["question", "answer"]
    worth: Literal["any", "rows", "true"] = "any"
    caught: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class Wire(Proxy):
    """A proxy with a list of losses, met one after the other, each once."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.losses: list[Loss] = []

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "refuse":
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        both = {writer, server_writer}
        self._writers |= both
        conversation = _Conversation(self)
        try:
            pumps = [
                asyncio.ensure_future(conversation.ask(reader, server_writer)),
                asyncio.ensure_future(conversation.answer(server_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()


class _Conversation:
    """One client's connection: what it says, what the server says, and the loss that is meant for it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._texts: dict[bytes, str] = {}
        self._losing: Loss | None = None  # its answer is under way

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(await _first_message(reader))
            buffer = b""
            while data := await reader.read(65536):
                buffer += data
                for message in (messages := _Messages(buffer)):
                    loss = self._meant(message)
                    if loss is not None and loss.side == "question":
                        await self._lose(loss)
                        return
                    self._losing = loss or self._losing
                buffer = messages.rest
                if self._wire.mode == "pass":
                    writer.write(messages.whole)
                    await writer.drain()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            buffer = held = b""
            done = worth = False
            while data := await reader.read(65536):
                buffer += data
                for message in (messages := _Messages(buffer)):
                    loss, kind = self._losing, message[:1]
                    held += message
                    if loss is None:
                        continue
                    done |= kind in (b"C", b"s")  # complete, or suspended: one row was asked for and has come
                    worth |= loss.worth == "any" or (kind == b"D" and (loss.worth == "rows" or message[-1] == 1))
                    if kind == b"Z":
                        if done and worth and message[5:] == b"I" and loss in self._wire.losses[:1]:
                            await self._lose(loss)
                            return
                        self._losing, done, worth = None, False, False
                buffer = messages.rest
                if self._losing is None:
                    if self._wire.mode == "pass":
                        writer.write(held)
                        await writer.drain()
                    held = b""

    def _meant(self, message: bytes) -> Loss | None:
        """The next loss, if this message executes its statement."""
        if message[:1] == b"P":
            name, text, _ = message[5:].split(b"\0", 2)
            self._texts[name] = text.decode()
        if message[:1] == b"B" and self._wire.losses:
            name = message[5:].split(b"\0", 2)[1]
            if self._wire.losses[0].words in self._texts.get(name, ""):
                return self._wire.losses[0]
        return None

    async def _lose(self, loss: Loss) -> None:
        self._wire.losses.remove(loss)
        loss.caught.set()
        await loss.go.wait()


class _Messages:
    """The whole messages at the beginning of a buffer; `rest` is what is left."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self.rest = buffer

    @property
    def whole(self) -> bytes:
        return self._buffer[: len(self._buffer) - len(self.rest)]

    def __iter__(self) -> Iterator[bytes]:
        while len(self.rest) >= 5 and len(self.rest) >= (size := 1 + struct.unpack("!I", self.rest[1:5])[0]):
            message, self.rest = self.rest[:size], self.rest[size:]
            yield message


async def _first_message(reader: asyncio.StreamReader) -> bytes:
    """The start-up message: the only one without a type."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack("!I", head)[0] - 4)


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[Wire]:
    """A wire in front of the database of a Unix-socket URL."""
    wire = Wire(url)
    await wire.start()
    try:
        yield wire
    finally:
        await wire.stop()
