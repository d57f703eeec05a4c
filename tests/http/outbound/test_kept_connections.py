"""Connections kept for the next request: one that the target has closed, or spoilt, costs no attempt."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from duly.http import Deliverer
from duly.model import ClaimedJob, Outcome, Retry, Success

from .servers import OK, OPEN_LOOPBACK, RawServer, Received, closed_port, make_job, raw_server, report_of

Second = Callable[[asyncio.StreamWriter], None]


async def _twice(second: Second, job: Callable[[RawServer], ClaimedJob]) -> tuple[Outcome, RawServer]:
    """Deliver two jobs: the first is answered and its connection kept, on which `second` meets the next request. Any
    other connection answers."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.received) == 2:
            second(writer)
        else:
            writer.write(OK)

    async with raw_server(handler, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        assert isinstance(await deliverer.deliver(make_job(server.url())), Success)
        outcome = await deliverer.deliver(job(server))
    return outcome, server


def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("lose", [_close, _reset])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_idempotent_request_lost_on_a_kept_connection_is_sent_again(method: str, lose: Second) -> None:
    """Closed or reset before a byte of answer: sent once more on a new connection, in the same attempt, at the last
    attempt too; the record says so."""

    def job(server: RawServer) -> ClaimedJob:
        return make_job(server.url(), method, attempt=8)

    outcome, server = await _twice(lose, job)
    assert isinstance(outcome, Success)
    assert report_of(outcome).detail["resent"] is True
    assert [request.line.split()[0] for request in server.received] == ["POST", method, method]
    assert server.connections == 2
    assert server.received[1].header("Duly-Attempt") == server.received[2].header("Duly-Attempt") == "8"


@pytest.mark.parametrize("body", [b"", b"{}", b"z" * (2 << 20)])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_other_request_is_sent_again_where_the_job_would_be_repeated_anyhow(method: str, body: bytes) -> None:
    """A POST with attempts left is resent, whole."""
    outcome, server = await _twice(_reset, lambda server: make_job(server.url(), method, body=body, attempt=7))
    assert isinstance(outcome, Success)
    assert [request.body for request in server.received[1:]] == [body, body]
    assert report_of(outcome).detail["resent"] is True


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_other_request_is_not_sent_again_at_the_last_attempt(method: str) -> None:
    """Nobody ordered another delivery, and the target may have worked on this one."""
    outcome, server = await _twice(_close, lambda server: make_job(server.url(), method, attempt=8))
    assert isinstance(outcome, Retry)
    assert outcome.report.result == "protocol_error"
    assert "resent" not in outcome.report.detail
    assert len(server.received) == 2


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_request_whose_answer_began_is_not_sent_again(method: str, begun: bytes) -> None:
    """One byte proves that the target had the request in hand."""

    def lose(writer: asyncio.StreamWriter) -> None:
        writer.write(begun)
        writer.close()

    outcome, server = await _twice(lose, lambda server: make_job(server.url(), method))
    assert (report_of(outcome).result, len(server.received)) == ("protocol_error", 2)
    assert "resent" not in report_of(outcome).detail


async def test_request_lost_late_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that had the time to work on the request is no stale connection."""
    monkeypatch.setattr("duly.http.delivery.RESEND_WITHIN_S", 0.0)
    outcome, server = await _twice(_close, lambda server: make_job(server.url(), "GET"))
    assert (report_of(outcome).result, len(server.received)) == ("protocol_error", 2)


async def test_request_is_sent_again_once() -> None:
    """The second loss is the attempt's outcome."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.received) == 1:
            writer.write(OK)
        else:
            writer.transport.abort()

    async with raw_server(handler, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        await deliverer.deliver(make_job(server.url()))
        outcome = await deliverer.deliver(make_job(server.url(), "GET"))
    assert isinstance(outcome, Retry)
    assert (outcome.report.result, outcome.report.detail["resent"]) == ("protocol_error", True)
    assert len(server.received) == 3


async def test_second_sending_has_the_same_deadline() -> None:
    """The attempt's time goes on running: it ends before a timer set a little after its deadline."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.received) == 1:
            writer.write(OK)
        elif len(server.received) == 2:
            await asyncio.sleep(0.3)
            writer.transport.abort()

    async with raw_server(handler, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        await deliverer.deliver(make_job(server.url()))
        too_late = asyncio.Event()
        asyncio.get_running_loop().call_later(0.4 + 0.15, too_late.set)
        outcome = await deliverer.deliver(make_job(server.url(), timeout_s=0.4))
        assert not too_late.is_set()
    assert (report_of(outcome).result, report_of(outcome).detail["resent"]) == ("timeout", True)
    assert len(server.received) == 3


class ThreadServer:
    """A server outside the event loop, which can act while the loop stands still. Answers every request and keeps
    its connections, until `then` does something to them."""

    def __init__(self) -> None:
        self.port = closed_port()
        self.requests: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                self.requests.append(data)
                connection.sendall(OK)
        except OSError:
            return

    def then(self, act: Callable[[socket.socket], object]) -> None:
        """Do something to every connection, and wait until it has arrived."""
        for connection in self._connections:
            act(connection)

    def close(self) -> None:
        """Stop."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.then(socket.socket.close)


@contextmanager
def _thread_server() -> Iterator[ThreadServer]:
    server = ThreadServer()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize(
    "act",
    [
        lambda connection: connection.shutdown(socket.SHUT_RDWR),
        lambda connection: connection.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"),
        lambda connection: connection.sendall(b"x"),
    ],
    ids=["closed", "408 unasked", "noise"],
)
async def test_kept_connection_with_something_unread_is_not_used(act: Callable[[socket.socket], object]) -> None:
    """Closed, or spoken on, while the loop was busy: the request goes over a new connection, and nothing was written
    into the old one. A stray answer is not taken for the request's own. Holds for a POST at its last attempt."""
    with _thread_server() as server:
        async with Deliverer(OPEN_LOOPBACK) as deliverer:
            url = f"http://127.0.0.1:{server.port}/"
            await deliverer.deliver(make_job(url))
            server.then(act)  # the loop does not turn between this and the next request
            outcome = await deliverer.deliver(make_job(url, attempt=8))
        assert isinstance(outcome, Success)
        assert "resent" not in report_of(outcome).detail
        assert len(server.requests) == 2


async def test_unasked_answer_that_was_read_spoils_the_connection() -> None:
    """The same when the loop did turn: the connection is dropped as soon as anything comes."""
    with _thread_server() as server:
        async with Deliverer(OPEN_LOOPBACK) as deliverer:
            url = f"http://127.0.0.1:{server.port}/"
            await deliverer.deliver(make_job(url))
            server.then(lambda connection: connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"))
            await asyncio.sleep(0.05)
            report = report_of(await deliverer.deliver(make_job(url)))
        assert (report.status_code, report.detail["phases"]["connect"] > 0) == (200, True)


async def test_flood_on_a_kept_connection_ends_it() -> None:
    """What nobody asked for is not read: the target is cut off within its first few hundred kilobytes."""
    cut_after = asyncio.get_running_loop().create_future()

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        sent = 0
        try:
            while True:
                writer.write(OK * 1000)
                sent += len(OK) * 1000
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            cut_after.set_result(sent)

    async with raw_server(handler, closes=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        assert isinstance(await deliverer.deliver(make_job(server.url())), Success)
        assert await asyncio.wait_for(cut_after, 1.0) < 8 << 20


async def test_target_that_reads_nothing_does_not_keep_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close waits for what was written to be read; after a second it waits no longer."""
    monkeypatch.setattr("duly.http.head_limit.CLOSE_LIMIT_S", 0.2)
    gone = asyncio.Event()

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.6)
        try:
            while True:  # a write into a connection that was reset fails
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.set()

    async with raw_server(handler, reads_body=False) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        outcome = await deliverer.deliver(make_job(server.url(), body=b"b" * (20 << 20), timeout_s=0.3))
        assert report_of(outcome).result == "timeout"
        await asyncio.wait_for(gone.wait(), 2.0)
