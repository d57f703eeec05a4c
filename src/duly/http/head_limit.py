"""Bounds what a target may send before its answer's body, and remembers the status of a head that was too big.

aiohttp limits single lines but neither the head as a whole nor the number of interim answers, and when it gives up on
a head the status is lost: a delivered request would be seen as failed (FO-071).
"""

from __future__ import annotations

import re
from typing import Any

from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

MAX_HEAD_OCTETS = 128 * 1024
MAX_LINE_OCTETS = 64 * 1024
MAX_FIELDS = 512

_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})[ \r\n]")


class BadHeadError(HttpProcessingError):
    """An answer's head that could not be read to its end. `status` is the one it began with, or None."""

    def __init__(self, status: int | None, *, too_big: bool) -> None:
        super().__init__(code=400, message="the answer's headers could not be read")
        self.status = status
        self.too_big = too_big


class LimitedHead(ResponseHandler):
    """aiohttp's protocol, with a limit on the octets before the body (interim answers included).

    `requests` were sent on the connection.
    """

    requests = 0
    _head = bytearray()
    _in_head = False

    def set_response_params(self, **params: Any) -> None:
        """Called by aiohttp before each request on the connection."""
        self.requests += 1
        self._head = bytearray()
        self._in_head = True
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Count while the head is being read, then hand on."""
        if not self._in_head:
            super().data_received(data)
            return
        self._head += data[: MAX_HEAD_OCTETS + 1 - len(self._head)]
        super().data_received(data)
        ends_a_line = b"\n" in data
        if self._exception is not None or (ends_a_line and final_status(self._head, complete=True) is not None):
            self._in_head = False
        elif len(self._head) > MAX_HEAD_OCTETS:
            self._in_head = False
            if self.transport is not None:
                self.transport.close()
            self.set_exception(BadHeadError(final_status(self._head, complete=False), too_big=True))

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Put the status that was seen into a parsing error."""
        if isinstance(exc, HttpProcessingError) and not isinstance(exc, BadHeadError):
            too_big = "more than" in exc.message or len(self._head) >= MAX_LINE_OCTETS
            exc = BadHeadError(final_status(self._head, complete=False), too_big=too_big)
        super().set_exception(exc, *cause)


def final_status(head: bytes | bytearray, *, complete: bool) -> int | None:
    """The status of the first answer that is not interim; with `complete`, only once all its headers are there."""
    at = 0
    while (line := _STATUS_LINE.match(head, at)) is not None:
        status = int(line[1])
        end = head.find(b"\r\n\r\n", line.start())
        if not 100 <= status <= 199 or status == 101:
            return status if end >= 0 or not complete else None
        if end < 0:
            return None
        at = end + 4
    return None
