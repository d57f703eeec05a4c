"""Targets that answer badly: the attempt has an outcome, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc

import pytest

from duly.http import Deliverer
from duly.model import Bury, Outcome, Retry, Success

from .servers import OK, OPEN_LOOPBACK, Received, closed_port, deliver, make_job, raw_server, report_of

SECRET = b"\x01signing-secret-of-24-bytes"


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0.05)


async def _outcome(data: bytes, timeout_s: float = 1.0) -> Outcome:
    async with raw_server(data) as server:
        return await deliver(make_job(server.url(), timeout_s=timeout_s))


async def test_dripped_headers_end_at_the_deadline() -> None:
    """One byte now and then does not extend the total time."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        await _drip(writer, b"HTTP/1.1 200 OK\r\nX-Slow: " + b"y" * 500)

    began = time.monotonic()
    async with raw_server(handler) as server:
        outcome = await deliver(make_job(server.url(), timeout_s=0.4))
    assert isinstance(outcome, Retry)
    assert outcome.report.result == "timeout"
    assert time.monotonic() - began < 1.5


async def test_dripped_body_is_a_success_at_the_deadline() -> None:
    """The status was 200: the body is kept as far as it came."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        await _drip(writer, b"y" * 500)

    async with raw_server(handler) as server:
        outcome = await deliver(make_job(server.url(), timeout_s=0.4))
    assert isinstance(outcome, Success)
    report = report_of(outcome)
    assert report.excerpt_truncated
    assert (report.excerpt or b"").startswith(b"y")


async def test_silent_target_times_out() -> None:
    """No answer at all is a time-out, and the connection is closed."""

    async def handler(_: Received, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(handler) as server:
        outcome = await deliver(make_job(server.url(), timeout_s=0.3))
    assert report_of(outcome).result == "timeout"


async def test_endless_body_is_cut_and_the_connection_closed() -> None:
    """64 KiB are read, 16 KiB kept, memory stays flat, and the target sees the close."""
    wrote_until_closed = asyncio.Event()

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"1000\r\n" + b"e" * 4096 + b"\r\n")
                await writer.drain()
        finally:
            wrote_until_closed.set()

    tracemalloc.start()
    try:
        async with raw_server(handler) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
            outcome = await deliverer.deliver(make_job(server.url()))
            await asyncio.wait_for(wrote_until_closed.wait(), 1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    report = report_of(outcome)
    assert isinstance(outcome, Success)
    assert (report.excerpt, report.excerpt_truncated) == (b"e" * 16384, True)
    assert peak < 8 << 20


@pytest.mark.parametrize("framing", [b"2;" + b"a" * 4094, b"0" * 4096, b"1;" + b"e" * 60_000 + b"\r\na\r\n"])
async def test_framing_without_end_is_cut_off_long_before_the_deadline(framing: bytes) -> None:
    """Chunk extensions and leading zeros are no body, and are counted all the same: a target that pours them out takes
    a moment and a few MB (what buffers hold), not all there is until the deadline."""
    sent = 0

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        more = framing if framing.endswith(b"\r\n") else framing[-1:] * 4096
        writer.write(framing)
        while True:
            writer.write(more)
            await writer.drain()
            sent += len(more)

    async with raw_server(handler) as server:
        began = time.monotonic()
        outcome = await deliver(make_job(server.url(), timeout_s=30))
        assert time.monotonic() - began < 10
    assert isinstance(outcome, Success)
    assert sent < 16 << 20


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "gzip, gzip", "nonsense"])
async def test_fo_066_compressed_answers_are_never_unpacked(coding: str) -> None:
    """FO-066: a bomb stays a few bytes: identity is asked for, and raw bytes are kept whatever came."""
    bomb = gzip.compress(b"\0" * (20 << 20), 9)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    outcome = await _outcome(head + bomb)
    assert isinstance(outcome, Success)
    assert report_of(outcome).excerpt == bomb[:16384]


async def test_endless_interim_answers_are_cut_off() -> None:
    """103 without end: a protocol error long before the deadline, without a stalled loop."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)
            await writer.drain()

    async with raw_server(handler) as server:
        outcome = await deliver(make_job(server.url(), timeout_s=2.5))
    assert isinstance(outcome, Retry)
    assert (outcome.report.result, outcome.report.status_code) == ("protocol_error", None)


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
async def test_fo_068_interim_answers_are_not_final(interim: bytes) -> None:
    """FO-068: 102, 103 and an unasked 100 are passed over; the 200 after them is recorded."""
    outcome = await _outcome(b"HTTP/1.1 " + interim + b"\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + OK)
    assert isinstance(outcome, Success)
    assert (report_of(outcome).status_code, report_of(outcome).excerpt) == (200, b"ok")


@pytest.mark.parametrize("extra", [b"", b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
async def test_fo_068_a_stray_101_is_a_protocol_error(extra: bytes) -> None:
    """FO-068: nobody asked to switch protocols: failed, closed, retried."""
    outcome = await _outcome(b"HTTP/1.1 101 Switching Protocols\r\n" + extra + b"\r\nraw bytes")
    assert isinstance(outcome, Retry)
    assert (outcome.report.result, outcome.report.status_code) == ("protocol_error", 101)


async def test_connection_that_answered_101_is_not_used_again() -> None:
    """Whatever is spoken on it from then on, it is not HTTP that anyone asked for."""
    async with raw_server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", closes=False) as server:
        async with Deliverer(OPEN_LOOPBACK) as deliverer:
            for _ in range(2):
                assert report_of(await deliverer.deliver(make_job(server.url()))).status_code == 101
        assert server.connections == 2


async def test_fo_071_a_header_of_9_kb_and_100_cookies_succeed() -> None:
    """FO-071: big but sane heads are read."""
    cookies = b"".join(b"Set-Cookie: c%d=v\r\n" % n for n in range(100))
    for head in (b"X-Big: " + b"h" * 9000 + b"\r\n", cookies):
        outcome = await _outcome(b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: 2\r\n\r\nok")
        assert isinstance(outcome, Success)
        assert report_of(outcome).excerpt == b"ok"


@pytest.mark.parametrize(
    "head",
    [
        b"X-Big: " + b"h" * (1 << 20) + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (n, b"h" * 1000) for n in range(1000)),
        b"".join(b"X: y\r\n" for _ in range(20_000)),
    ],
    ids=["one of 1 MB", "1 MB in all", "many"],
)
@pytest.mark.parametrize(("status", "kind"), [(b"200 OK", Success), (b"503 No", Retry), (b"404 No", Bury)])
async def test_fo_071_a_head_of_1_mb_is_cut_off_with_its_status(head: bytes, status: bytes, kind: type) -> None:
    """FO-071: the status came before the flood and decides: a delivered request is not delivered again."""
    outcome = await _outcome(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 " + status + b"\r\n" + head + b"\r\nok")
    assert isinstance(outcome, kind)
    assert report_of(outcome).status_code == int(status[:3])


async def test_endless_status_line_is_a_protocol_error() -> None:
    """No status, no end: cut off at the cap."""
    outcome = await _outcome(b"HTTP/1.1 " + b"2" * 300_000)
    assert (report_of(outcome).result, report_of(outcome).status_code) == ("protocol_error", None)


BADLY_FRAMED = {
    "too short": b"Content-Length: 50\r\n\r\nshort",
    "too long": b"Content-Length: 2\r\n\r\nok and more",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "both framings": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "bad chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
    "chunk cut": b"Transfer-Encoding: chunked\r\n\r\nff\r\nok",
    "huge chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\nok",
    "unknown coding": b"Transfer-Encoding: gzip\r\n\r\nok",
    "bad gzip": b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
    "until close": b"\r\nok",
}


@pytest.mark.parametrize("rest", BADLY_FRAMED.values(), ids=BADLY_FRAMED.keys())
async def test_the_status_alone_decides(rest: bytes) -> None:
    """200 is success however badly the body is framed or cut."""
    outcome = await _outcome(b"HTTP/1.1 200 OK\r\n" + rest)
    assert isinstance(outcome, Success)
    assert report_of(outcome).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"text/plain; charset=utf-8,gbk", b"ok"),
        (b"text/plain; charset=bogus", b"\xff\xfe"),
        (b"text/plain; charset=\xff", b"ok"),
        (b"text/plain; charset=utf-8", "text".encode("utf-16")),
        (b"application/json", b"\x00\x80NUL"),
        (b"", b""),
    ],
)
async def test_fo_070_charsets_do_not_matter(kind: bytes, body: bytes) -> None:
    """FO-070: the body is kept as bytes, NUL and invalid UTF-8 included; nothing is decoded."""
    header = b"Content-Type: " + kind + b"\r\n" if kind else b""
    outcome = await _outcome(b"HTTP/1.1 200 OK\r\n" + header + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert isinstance(outcome, Success)
    assert report_of(outcome).excerpt == body


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "HEAD"])
async def test_reset_before_an_answer_is_retried(method: str) -> None:
    """FO-077: RST after the request: a class, no library text, and one request only: aiohttp must not repeat it."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with raw_server(handler) as server:
        outcome = await deliver(make_job(server.url(), method))
        assert len(server.received) == 1
    assert isinstance(outcome, Retry)
    assert outcome.report.result == "protocol_error"
    assert outcome.report.error == "the connection was closed before an answer came"


async def test_reset_after_the_status_is_a_success() -> None:
    """200 and then a cut connection: delivered."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with raw_server(handler) as server:
        assert isinstance(await deliver(make_job(server.url())), Success)


@pytest.mark.parametrize(("status", "kind"), [(b"413 Too Large", Bury), (b"200 OK", Success)])
async def test_fo_074_early_answer_is_recorded(status: bytes, kind: type) -> None:
    """FO-074: the target answers before it has read a large body and closes: its status counts."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)

    async with raw_server(handler, reads_body=False) as server:
        outcome = await deliver(make_job(server.url(), body=b"b" * (20 << 20)))
    assert isinstance(outcome, kind)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01garbage\r\n\r\n", b"ICY 200 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b""]
)
async def test_what_is_not_http_is_a_protocol_error(data: bytes) -> None:
    """Garbage, an unknown protocol, a bad status, or just a close."""
    outcome = await _outcome(data)
    assert isinstance(outcome, Retry)
    assert outcome.report.result == "protocol_error"


async def test_own_secret_in_an_answer_is_masked() -> None:
    """A target that echoes the signing secret, raw, in text form or in a header, finds asterisks in the record."""
    import base64

    text = base64.b64encode(SECRET)
    body = b"a" + SECRET + b"b whsec_" + text + b"c " + SECRET.hex().encode()
    head = b"HTTP/1.1 200 OK\r\nServer: " + text + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with raw_server(head + body) as server:
        report = report_of(await deliver(make_job(server.url()), [SECRET]))
    kept = (report.excerpt or b"") + repr(report.detail).encode()
    assert not any(form in kept for form in (SECRET, text, text.rstrip(b"="), SECRET.hex().encode()))
    assert len(report.excerpt or b"") == len(body)


async def test_cancelling_closes_the_connection() -> None:
    """CancelledError comes out, and the target sees the close at once."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        asked.set()
        try:
            while True:
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.005)
        except ConnectionError:
            closed.set()

    async with raw_server(handler) as server, Deliverer(OPEN_LOOPBACK) as deliverer:
        task = asyncio.create_task(deliverer.deliver(make_job(server.url())))
        await asyncio.wait_for(asked.wait(), 1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 1.0)


async def test_fo_077_refused_connection_is_retried() -> None:
    """FO-077: nobody listens: connect_refused, retryable, without an address in the text."""
    outcome = await deliver(make_job(f"http://127.0.0.1:{closed_port()}/"))
    assert isinstance(outcome, Retry)
    assert (outcome.report.result, outcome.report.error) == ("connect_refused", "the target refused the connection")
