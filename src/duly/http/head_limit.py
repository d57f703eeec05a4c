"""Bounds what a target may send around an answer's body, and remembers the status of a head that was too big.

aiohttp limits single lines but neither the head as a whole nor the number of interim answers, and when it gives up on
a head the status is lost: a delivered request would be seen as failed (FO-071). It also goes on reading from a
connection that waits for its next request, and waits without end for a close that the target holds up.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import Any

from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

MAX_HEAD_OCTETS = 128 * 1024
MAX_LINE_OCTETS = 64 * 1024
MAX_FIELDS = 512
# Whatever it is made of: body, chunk sizes and extensions, trailers. Chunks of one octet each fit into it, so that it
# never takes away what may be read of a body (64 KiB).
MAX_OCTETS = 1024 * 1024
# A target that reads nothing more, or does not answer TLS's goodbye, keeps a socket no longer than this.
CLOSE_LIMIT_S = 1.0
_SLICE_OCTETS = 8 * 1024

_STATUS_LINE = re.compile(rb"[\r\n]*HTTP/1\.[0-9] ([0-9]{3})[ \r\n]")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class BadHeadError(HttpProcessingError):
    """An answer's head that could not be read to its end. `status` is the one it began with, or None."""

    def __init__(self, status: int | None, *, too_big: bool) -> None:
        super().__init__(code=400, message="the answer's headers could not be read")
        self.status = status
        self.too_big = too_big


class LimitedHead(ResponseHandler):
    """aiohttp's protocol with limits: on the octets before the body (interim answers included), on what comes between
    two answers (nothing), on all that comes behind the head (framing included), and on the time that closing takes.

    `requests` were sent on the connection.
    """

    requests = 0
    answer_began = False  # of the request that was sent last
    _head = bytearray()
    _in_head = False
    _octets = 0  # behind the head
    _last_resort: asyncio.TimerHandle | None = None

    def set_response_params(self, **params: Any) -> None:
        """Called by aiohttp before each request on the connection."""
        self.requests += 1
        self._head = bytearray()
        self._in_head = True
        self._octets = 0
        self.answer_began = False
        super().set_response_params(**params)

    def is_connected(self) -> bool:
        """Asked by aiohttp before it uses a waiting connection again. False as soon as anything came in, read or not:
        the target's goodbye, most often, or bytes that nobody asked for and that the next request would take for its
        answer."""
        if not super().is_connected():
            return False
        return not self._is_between_answers() or not (self.should_close or self._has_input())

    def data_received(self, data: bytes) -> None:
        """Hand on in slices, and stop at whatever follows a whole answer: a packet full of small answers would become
        a hundred times its size before anyone could look."""
        if not data:  # aiohttp's way to go on after a pause
            super().data_received(data)
        for at in range(0, len(data), _SLICE_OCTETS):
            if self._exception is not None:
                return
            if self._is_between_answers():
                if self.transport is not None:
                    self.transport.abort()
                return
            self._received(data[at : at + _SLICE_OCTETS])

    def _received(self, data: bytes) -> None:
        self.answer_began = True
        if not self._in_head:
            self._octets += len(data)
            if self._octets <= MAX_OCTETS:
                super().data_received(data)
            elif self.transport is not None:
                self.transport.abort()
            return
        self._head += data[: MAX_HEAD_OCTETS + 1 - len(self._head)]
        super().data_received(data)
        if len(self._head) > MAX_HEAD_OCTETS:
            self.set_exception(BadHeadError(final_status(self._head), too_big=True))
            if self.transport is not None:
                self.transport.abort()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called with each head that was read. Once a final one is queued its status is safe, and the octets may go."""
        if not _is_interim(data[0].code):
            self._in_head = False
            self._head = bytearray()
        if data[0].code == 101:
            self.force_close()  # aiohttp would keep it for the next request where no Upgrade header came along
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Put the status that was seen into a parsing error."""
        if isinstance(exc, HttpProcessingError) and not isinstance(exc, BadHeadError):
            too_big = "more than" in exc.message or len(self._head) >= MAX_LINE_OCTETS
            exc = BadHeadError(final_status(self._head), too_big=too_big)
        self._in_head = False
        super().set_exception(exc, *cause)

    def close(self) -> None:
        """Close politely, and rudely if that takes too long: what was written and not yet read counts for nothing."""
        transport = self.transport
        super().close()
        if transport is not None and self._last_resort is None:
            self._last_resort = self._loop.call_later(CLOSE_LIMIT_S, transport.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The end, however it came."""
        if self._last_resort is not None:
            self._last_resort.cancel()
            self._last_resort = None
        super().connection_lost(exc)

    def _is_between_answers(self) -> bool:
        is_whole = self._payload is None or self._payload.is_eof()
        return self._parser is not None and not self._in_head and not self._upgraded and is_whole

    def _has_input(self) -> bool:
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))


def final_status(head: bytes | bytearray) -> int | None:
    """The status of the first answer that is not interim, once its first line is there."""
    at = 0
    while (line := _STATUS_LINE.match(head, at)) is not None:
        status = int(line[1])
        if not _is_interim(status):
            return status
        end = _END_OF_HEAD.search(head, line.start())
        if end is None:
            return None
        at = end.end()
    return None


def _is_interim(status: int) -> bool:
    return 100 <= status <= 199 and status != 101  # what follows 101 is another protocol
