"""uvicorn's HTTP/1.1 protocol with bounds on the head of a request: size, fields, and the time until it is whole.

uvicorn has none of the three: a head without end would fill the memory, a silent connection would stay for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT_BYTES = 64 * 1024
FIELD_LIMIT = 100
HEAD_TIME_LIMIT_S = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 to a head that is too large and 408 to one that does not come, and closes."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _refused = False
    _head_bytes = 0
    _fields = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:  # what is read at a time is bounded, so a head is over the limit by one read at most
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(b"431 Request Header Fields Too Large", b"the head of the request is larger than 64 KB")
            elif self._timer is None and not self._refused:
                self._time_head()  # most heads are whole in one read, and need no timer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._refused:
            return
        self._fields += 1
        if self._fields > FIELD_LIMIT:
            self._refuse(b"431 Request Header Fields Too Large", b"the request has more than 100 header fields")
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def _begin_head(self) -> None:
        self._stop_timer()
        self._in_head = True
        self._refused = False
        self._head_bytes = 0
        self._fields = 0

    def _time_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIME_LIMIT_S, self._too_slow)

    def _too_slow(self) -> None:
        answered = getattr(self.cycle, "response_complete", True)  # None before the first request
        if self._in_head and answered:
            self._refuse(b"408 Request Timeout", b"the head of the request did not come in time")

    def _refuse(self, status: bytes, detail: bytes) -> None:
        self._refused = True
        self._stop_timer()
        code, title = status[:3], status[4:]
        body = (
            b'{"type":"urn:duly:problem:bad-request","title":"' + title + b'","status":' + code
            + b',"detail":"' + detail + b'"}'
        )  # fmt: skip
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/problem+json\r\ncontent-length: "
            + str(len(body)).encode() + b"\r\nconnection: close\r\n\r\n" + body
        )  # fmt: skip
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
