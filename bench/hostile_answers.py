"""What targets may do to a client, by name: one behaviour each, and what an attempt must make of it.

Used by `python -m bench.hostile` and by tests/http/outbound/test_hostile_suite.py.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Tls = Literal["none", "yes", "by hand"]  # by hand: the behaviour plays the handshake itself, on a plain socket

BIG_BODY_BYTES = 20 << 20
OK_HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK_HEAD + b"Content-Length: 2\r\n\r\nok"
_CHUNKED = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_DRIP_S = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """`expected` holds every right (result, status). `waits`: it ends with the attempt's deadline, not before."""

    name: str
    behaviour: Behaviour
    expected: frozenset[tuple[str, int | None]]
    waits: bool = False
    method: str = "POST"
    body_bytes: int = 2
    tls: Tls = "none"


SUCCESS = frozenset({("success", 200)})
PROTOCOL = frozenset({("protocol_error", None)})
TIMEOUT = frozenset({("timeout", None)})
TLS_ERROR = frozenset({("tls_error", None)})
TLS_TIMEOUT = frozenset({("connect_timeout", None)})


async def head(reader: asyncio.StreamReader) -> bytes:
    """Read a request's head."""
    return await reader.readuntil(b"\r\n\r\n")


async def whole(reader: asyncio.StreamReader) -> None:
    """Read a request to its end."""
    lines = (await head(reader)).lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while length > 0:
        got = await reader.read(min(length, 1 << 16))
        if not got:
            return
        length -= len(got)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Wait for the client to go."""
    while await reader.read(1 << 16):
        pass


def reset(writer: asyncio.StreamWriter) -> None:
    """End with RST, whatever the buffers hold."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def says(data: bytes) -> Behaviour:
    """Read the request, answer, close."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole(reader)
        writer.write(data)
        await writer.drain()

    return behave


def holds(data: bytes) -> Behaviour:
    """Read the request, answer, and keep the connection."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(data)(reader, writer)
        await until_closed(reader)

    return behave


def breaks(data: bytes, *, after_s: float = 0.02) -> Behaviour:
    """Read the request, say something, reset."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(data)(reader, writer)
        await asyncio.sleep(after_s)
        reset(writer)

    return behave


def pours(first: bytes, unit: bytes) -> Behaviour:
    """Read the request, then write as fast as the client takes it, without end."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole(reader)
        writer.write(first)
        await _pour(writer, unit)

    return behave


async def _pour(writer: asyncio.StreamWriter, unit: bytes) -> None:
    much = unit * max(1, 65536 // len(unit))
    while True:
        writer.write(much)
        await writer.drain()
        await asyncio.sleep(0)


def drips(first: bytes, unit: bytes) -> Behaviour:
    """Read the request, then one unit now and then, without end."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole(reader)
        writer.write(first)
        while True:
            writer.write(unit)
            await writer.drain()
            await asyncio.sleep(_DRIP_S)

    return behave


def late(first: bytes, unit: bytes) -> Behaviour:
    """Answer properly, and when the connection waits for its next request, pour."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(first)(reader, writer)
        await asyncio.sleep(0.05)
        await _pour(writer, unit)

    return behave


def before_request(data: bytes, then: Literal["close", "reset", "hold"]) -> Behaviour:
    """Speak first, and read nothing."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if then == "hold":
            await asyncio.sleep(60)
        elif then == "reset":
            reset(writer)

    return behave


def early(data: bytes, *, linger_s: float, then: Literal["close", "reset", "hold"] = "close") -> Behaviour:
    """Answer when the head is there, with the body unread."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(60 if then == "hold" else linger_s)
        if then == "reset":
            reset(writer)

    return behave


async def _half_a_body_then_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head(reader)
    await reader.read(1 << 16)
    reset(writer)


async def _head_then_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head(reader)


async def _reads_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(60)


async def _reads_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        await asyncio.sleep(_DRIP_S)


async def _bad_second_record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await whole(reader)
    sock = writer.get_extra_info("socket")
    sock.send(b"\x17\x03\x03\x00\x20" + b"\xee" * 32)  # past the TLS layer: a record that does not decrypt
    await asyncio.sleep(0.2)


def tls_raw(data: bytes, then: Literal["close", "reset", "hold", "drip", "pour"]) -> Behaviour:
    """Answer a ClientHello by hand."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 14)
        if then == "drip":
            for at in range(len(data)):
                writer.write(data[at : at + 1])
                await writer.drain()
                await asyncio.sleep(_DRIP_S)
        while then == "pour":
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(data)
        await writer.drain()
        if then == "hold":
            await until_closed(reader)
        elif then == "reset":
            reset(writer)

    return behave


def _body(coding: bytes, data: bytes, more: bytes = b"") -> bytes:
    return OK_HEAD + more + b"Content-Encoding: " + coding + b"\r\nContent-Length: %d\r\n\r\n" % len(data) + data


_BOMB = gzip.compress(b"\0" * (30 << 20), 9)
_NESTED = gzip.compress(_BOMB, 9)
_DEFLATED = zlib.compress(b"\0" * (30 << 20), 9)
_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"  # fatal, handshake_failure
_WARNING = b"\x15\x03\x03\x00\x02\x01\x5a"  # warning, user_canceled
_SERVER_HELLO_BEGINS = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03" + b"r" * 4000


def _case(
    name: str,
    behaviour: Behaviour,
    expected: frozenset[tuple[str, int | None]] | tuple[str, int | None],
    *,
    waits: bool = False,
    method: str = "POST",
    body_bytes: int = 2,
    tls: Tls = "none",
) -> Case:
    right = frozenset({expected}) if isinstance(expected, tuple) else expected
    return Case(name, behaviour, right, waits, method, body_bytes, tls)


DRIPS = [
    _case("silence", holds(b""), TIMEOUT, waits=True),
    _case("drip status line", drips(b"HTTP/1.1 200 ", b"O"), TIMEOUT, waits=True),
    _case("drip one header", drips(OK_HEAD + b"X: ", b"y"), TIMEOUT, waits=True),
    _case("drip headers", drips(OK_HEAD, b"X: y\r\n"), TIMEOUT, waits=True),
    _case("drip interim answers", drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), TIMEOUT, waits=True),
    _case("drip body", drips(OK_HEAD + b"Content-Length: 9999\r\n\r\n", b"y"), SUCCESS, waits=True),
    _case("drip chunks", drips(_CHUNKED, b"1\r\ny\r\n"), SUCCESS, waits=True),
    _case("drip trailers", drips(_CHUNKED + b"0\r\n", b"X: y\r\n"), SUCCESS, waits=True),
    _case("drip body of a failure", drips(b"HTTP/1.1 503 No\r\n\r\n", b"y"), ("http_error", 503), waits=True),
    _case("body never comes", holds(OK_HEAD + b"Content-Length: 5\r\n\r\n"), SUCCESS, waits=True),
    _case("body never ends", holds(OK_HEAD + b"\r\nhalf"), SUCCESS, waits=True),
]

FLOODS = [
    _case("endless interim answers", pours(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), PROTOCOL),
    _case("endless 100", pours(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), PROTOCOL),
    _case("endless interim head", pours(b"HTTP/1.1 103 Early Hints\r\n", b"Link: </a>\r\n"), PROTOCOL),
    _case("endless headers", pours(OK_HEAD, b"X-Header: value\r\n"), SUCCESS),
    _case("endless short headers", pours(OK_HEAD, b"a:\r\n"), SUCCESS),
    _case("endless header", pours(OK_HEAD + b"X: ", b"y"), SUCCESS),
    _case("endless header name", pours(OK_HEAD, b"y"), SUCCESS),
    _case("endless folded header", pours(OK_HEAD + b"X: y\r\n", b" y\r\n"), SUCCESS),
    _case("endless head of a failure", pours(b"HTTP/1.1 503 No\r\n", b"X: y\r\n"), ("http_error", 503)),
    _case("endless status line", pours(b"HTTP/1.1 ", b"2"), PROTOCOL),
    _case("endless reason", pours(b"HTTP/1.1 200 ", b"O"), SUCCESS),
    _case("endless blank lines", pours(b"", b"\r\n"), PROTOCOL | TIMEOUT),
    _case("endless NUL", pours(b"", b"\0"), PROTOCOL),
    _case("endless body with a length", pours(OK_HEAD + b"Content-Length: 999999999999\r\n\r\n", b"e" * 4096), SUCCESS),
    _case("endless body until close", pours(OK_HEAD + b"\r\n", b"e" * 4096), SUCCESS),
    _case("endless chunks", pours(_CHUNKED, b"1000\r\n" + b"e" * 4096 + b"\r\n"), SUCCESS),
    _case("endless tiny chunks", pours(_CHUNKED, b"1\r\ne\r\n"), SUCCESS),
    _case("endless chunk extension", pours(_CHUNKED + b"1;", b"x=y;"), SUCCESS),
    _case("endless long chunk extensions", pours(_CHUNKED, b"1;" + b"e" * 60_000 + b"\r\na\r\n"), SUCCESS),
    _case("endless chunk size", pours(_CHUNKED, b"0"), SUCCESS),
    _case("endless trailers", pours(_CHUNKED + b"0\r\n", b"X-Trailer: value\r\n"), SUCCESS),
    _case("endless trailer", pours(_CHUNKED + b"0\r\nX: ", b"y"), SUCCESS),
    _case("answer, then a flood", pours(WHOLE, b"x" * 4096), SUCCESS),
    _case("answer, then answers", pours(WHOLE, WHOLE), SUCCESS),
    _case("answer, then late answers", late(WHOLE, WHOLE), SUCCESS),
    _case("204, then a flood", pours(b"HTTP/1.1 204 No Content\r\n\r\n", b"x" * 4096), ("success", 204)),
    _case(
        "101, then a flood",
        pours(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"x" * 4096),
        ("protocol_error", 101),
    ),
]

BOMBS = [
    _case("gzip bomb", says(_body(b"gzip", _BOMB)), SUCCESS),
    _case("nested gzip bomb", says(_body(b"gzip, gzip", _NESTED)), SUCCESS),
    _case("deflate bomb", says(_body(b"deflate", _DEFLATED)), SUCCESS),
    _case("br label", says(_body(b"br", _BOMB)), SUCCESS),
    _case("zstd label", says(_body(b"zstd", _BOMB)), SUCCESS),
    _case("a hundred codings", says(_body(b", ".join([b"gzip"] * 100), _BOMB)), SUCCESS),
    _case(
        "gzip transfer coding",
        says(OK_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        SUCCESS,
    ),
]

_EARLY_413 = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_EARLY_200 = OK_HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\nok"
_LOST = ("protocol_error", None)  # a reset may overtake the answer that went before it

EARLY = [
    _case("early 413", early(_EARLY_413, linger_s=0.2), ("http_error", 413), body_bytes=BIG_BODY_BYTES),
    _case("early 200", early(_EARLY_200, linger_s=0.2), SUCCESS, body_bytes=BIG_BODY_BYTES),
    _case(
        "early 413, closed at once",
        early(_EARLY_413, linger_s=0),
        frozenset({("http_error", 413), _LOST}),
        body_bytes=BIG_BODY_BYTES,
    ),
    _case(
        "early 413, reset",
        early(_EARLY_413, linger_s=0.05, then="reset"),
        frozenset({("http_error", 413), _LOST}),
        body_bytes=BIG_BODY_BYTES,
    ),
    _case("early 200, then nothing is read", early(WHOLE, linger_s=0, then="hold"), SUCCESS, body_bytes=BIG_BODY_BYTES),
    _case("answers before the request, holds", before_request(WHOLE, "hold"), SUCCESS),
    _case("reads nothing of a big body", _reads_nothing, TIMEOUT, waits=True, body_bytes=BIG_BODY_BYTES),
    _case("reads nothing of a small body", _reads_nothing, TIMEOUT, waits=True, body_bytes=256_000),
    _case("reads a big body slowly", _reads_slowly, TIMEOUT, waits=True, body_bytes=BIG_BODY_BYTES),
]

BREAKS = [
    _case("closes on accept", before_request(b"", "close"), PROTOCOL),
    _case("resets on accept", before_request(b"", "reset"), PROTOCOL | {("connect_refused", None)}),
    _case("closes after the request's head", _head_then_close, PROTOCOL, body_bytes=BIG_BODY_BYTES),
    _case("resets in the request's body", _half_a_body_then_reset, PROTOCOL, body_bytes=BIG_BODY_BYTES),
    _case("closes after the request", says(b""), PROTOCOL),
    _case("resets after the request", breaks(b"", after_s=0), PROTOCOL),
    _case("closes in the status line", says(b"HTTP/1.1 2"), PROTOCOL),
    _case("resets in the status line", breaks(b"HTTP/1.1 2"), PROTOCOL),
    _case("closes in the headers", says(OK_HEAD + b"X: y"), PROTOCOL),
    _case("resets in the headers", breaks(OK_HEAD + b"X: y\r\n"), PROTOCOL),
    _case("closes after an interim answer", says(b"HTTP/1.1 103 Early Hints\r\n\r\n"), PROTOCOL),
    _case("resets after an interim answer", breaks(b"HTTP/1.1 103 Early Hints\r\n\r\n"), PROTOCOL),
    _case("closes after the head", says(OK_HEAD + b"Content-Length: 5\r\n\r\n"), SUCCESS),
    _case("resets after the head", breaks(OK_HEAD + b"Content-Length: 5\r\n\r\n"), SUCCESS),
    _case("closes in the body", says(OK_HEAD + b"Content-Length: 5\r\n\r\nab"), SUCCESS),
    _case("resets in the body", breaks(OK_HEAD + b"Content-Length: 5\r\n\r\nab"), SUCCESS),
    _case("resets in a chunk", breaks(_CHUNKED + b"5\r\nab"), SUCCESS),
    _case("resets in a body until close", breaks(OK_HEAD + b"\r\nab"), SUCCESS),
    _case("closes in the trailers", says(_CHUNKED + b"0\r\nX: y"), SUCCESS),
]


def _framed(name: str, rest: bytes, *, waits: bool = False) -> Case:
    return _case(name, (holds if waits else says)(OK_HEAD + rest), SUCCESS, waits=waits)


FRAMES = [
    _framed("length too long", b"Content-Length: 50\r\n\r\nshort"),
    _framed("length too short", b"Content-Length: 2\r\n\r\nok and more"),
    _framed("length twice, the same", b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
    _framed("length twice, conflicting", b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    _framed("length as a list", b"Content-Length: 2, 2\r\n\r\nok"),
    _framed("length negative", b"Content-Length: -2\r\n\r\nok"),
    _framed("length with a plus", b"Content-Length: +2\r\n\r\nok"),
    _framed("length in hex", b"Content-Length: 0x2\r\n\r\nok"),
    _framed("length empty", b"Content-Length: \r\n\r\nok"),
    _framed("length of a hundred digits", b"Content-Length: " + b"9" * 100 + b"\r\n\r\nok"),
    _framed("length 2^64", b"Content-Length: 18446744073709551616\r\n\r\nok"),
    _framed("length in Arabic digits", "Content-Length: ٢\r\n\r\nok".encode()),
    _framed("length and chunks", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("chunks and length", b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("chunked twice", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("chunked, chunked", b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("unknown transfer coding", b"Transfer-Encoding: rot13\r\n\r\nok"),
    _framed("chunked with a vertical tab", b"Transfer-Encoding: \x0bchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("space before the colon", b"Transfer-Encoding : chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    _framed("chunk size no hex", b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n"),
    _framed("chunk size negative", b"Transfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n"),
    _framed("chunk size with 0x", b"Transfer-Encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n"),
    _framed("chunk size empty", b"Transfer-Encoding: chunked\r\n\r\n\r\nok\r\n0\r\n\r\n"),
    _framed("chunk size huge", b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\nok"),
    _framed("chunk too long", b"Transfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n"),
    _framed("chunk lines by LF", b"Transfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n"),
    _framed("no last chunk", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"),
    _framed("no last chunk, held", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", waits=True),
    _framed("folded header", b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok"),
    _framed("header without a colon", b"nonsense\r\nContent-Length: 2\r\n\r\nok"),
    _framed("header without a name", b": x\r\nContent-Length: 2\r\n\r\nok"),
    _framed("NUL in a header", b"X: a\0b\r\nContent-Length: 2\r\n\r\nok"),
    _framed("bare CR in a header", b"X: a\rY: b\r\nContent-Length: 2\r\n\r\nok"),
    _framed("two answers at once", b"Content-Length: 2\r\n\r\nok" + b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
    _framed("header of 1 MB", b"X: " + b"h" * (1 << 20) + b"\r\n\r\nok"),
    _framed("20,000 headers", b"X: y\r\n" * 20_000 + b"\r\nok"),
    _framed("bogus charset", b"Content-Type: text/plain; charset=bogus\r\nContent-Length: 2\r\n\r\n\xff\xfe"),
    _framed("charset no ASCII", b"Content-Type: text/plain; charset=\xff\r\nContent-Length: 2\r\n\r\nok"),
    _framed("two charsets", b"Content-Type: text/plain; charset=utf-8,gbk\r\nContent-Length: 2\r\n\r\nok"),
    _framed("NUL and no UTF-8", b"Content-Length: 5\r\n\r\n\x00\x80\xff\xc0\xaf"),
]


def _line(line: bytes, *expected: tuple[str, int | None]) -> Case:
    name = f"status line {line[:40]!r}"
    return _case(
        name, says(line + b"\r\nContent-Length: 2\r\n\r\nok"), frozenset(expected or {("protocol_error", None)})
    )


LINES = [
    _line(b"HTTP/1.1 200", ("success", 200)),
    _line(b"HTTP/1.0 200 OK", ("success", 200)),
    _line(b"HTTP/1.1 200 \xff\xfe\x01", ("success", 200), ("protocol_error", None)),
    _line(b"HTTP/1.1 299 Odd", ("success", 299)),
    _line(b"HTTP/1.1 600 Odd", ("http_error", 600)),
    _line(b"HTTP/1.1 999 Odd", ("http_error", 999)),
    _line(b"HTTP/1.1 000 Odd", ("http_error", 0), ("protocol_error", None)),
    _line(b"HTTP/1.1 099 Odd", ("http_error", 99), ("protocol_error", None)),
    _line(b"HTTP/1.1 20 OK"),
    _line(b"HTTP/1.1 2000 OK"),
    _line(b"HTTP/1.1 -200 OK"),
    _line(b"HTTP/1.1 2OO OK"),
    _line(b"HTTP/1.1 \xb2\xb0\xb0 OK"),
    _line(b"HTTP/1.1\t200\tOK"),
    _line(b"HTTP/1.1"),
    _line(b"HTTP/2 200"),
    _line(b"HTTP/2.0 200 OK", ("success", 200), ("protocol_error", None)),  # the parser reads both: a status came
    _line(b"HTTP/3 200 OK"),
    _line(b"HTTP/11.1 200 OK"),
    _line(b"HTTP/1.11 200 OK"),
    _line(b"HTTP/0.9 200 OK", ("success", 200), ("protocol_error", None)),
    _line(b"http/1.1 200 OK", ("success", 200), ("protocol_error", None)),
    _line(b"HTTPS/1.1 200 OK"),
    _line(b"ICY 200 OK"),
    _line(b"RTSP/1.0 200 OK", ("success", 200), ("protocol_error", None)),
    _line(b"200 OK"),
    _line(b"GET / HTTP/1.1"),
    _line(b"\x00\x00\x00"),
    _line(b"SSH-2.0-OpenSSH_9.2"),
    _line(b"-ERR unknown command"),
    _case("blank lines first", says(b"\r\n\r\n" + WHOLE), SUCCESS | PROTOCOL),
    _case("lines by LF", says(WHOLE.replace(b"\r\n", b"\n")), SUCCESS | PROTOCOL),
    _case("HTTP/0.9", says(b"<html>hello</html>"), PROTOCOL),
    _case("HTTP/2 settings frame", says(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18), PROTOCOL),
    _case("HTTP/2 settings frame, held", holds(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18), PROTOCOL),
    _case("HTTP/2 goaway", says(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x00" * 8), PROTOCOL),
    _case("HTTP/2 preface", says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), PROTOCOL),
    _case("TLS alert on a plain connection", says(_ALERT), PROTOCOL),
    _case("stray 101", holds(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), ("protocol_error", 101)),
    _case(
        "h2c upgrade", holds(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), ("protocol_error", 101)
    ),
    _case("HEAD with a body", says(WHOLE), SUCCESS, method="HEAD"),
    _case(
        "HEAD with an endless body", pours(OK_HEAD + b"Content-Length: 99\r\n\r\n", b"x" * 999), SUCCESS, method="HEAD"
    ),
    _case("204 with a body", says(b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok"), ("success", 204)),
    _case("304 with a body", says(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nok"), ("http_error", 304)),
    _case("205 with a body", says(b"HTTP/1.1 205 Reset\r\nContent-Length: 2\r\n\r\nok"), ("success", 205)),
]

HANDSHAKES = [
    _case("TLS silence", tls_raw(b"", "hold"), TLS_TIMEOUT, waits=True, tls="by hand"),
    _case("TLS drip", tls_raw(_SERVER_HELLO_BEGINS, "drip"), TLS_TIMEOUT, waits=True, tls="by hand"),
    _case("TLS half a hello", tls_raw(_SERVER_HELLO_BEGINS, "hold"), TLS_TIMEOUT | TLS_ERROR, tls="by hand"),
    _case("TLS fatal alert", tls_raw(_ALERT, "close"), TLS_ERROR, tls="by hand"),
    _case("TLS fatal alert, held", tls_raw(_ALERT, "hold"), TLS_ERROR, tls="by hand"),
    _case("TLS endless warnings", tls_raw(_WARNING * 1000, "pour"), TLS_ERROR | TLS_TIMEOUT, tls="by hand"),
    _case("TLS endless zeros", tls_raw(b"\0" * 65536, "pour"), TLS_ERROR, tls="by hand"),
    _case("TLS endless hello", tls_raw(_SERVER_HELLO_BEGINS * 10, "pour"), TLS_ERROR, tls="by hand"),
    _case("TLS closed at hello", tls_raw(b"", "close"), TLS_ERROR, tls="by hand"),
    _case("TLS reset at hello", tls_raw(b"", "reset"), TLS_ERROR, tls="by hand"),
    _case("plain HTTP instead of TLS", tls_raw(WHOLE, "close"), TLS_ERROR, tls="by hand"),
    _case("TLS, answer, connection held", holds(WHOLE), SUCCESS, tls="yes"),
    _case("TLS, answer cut without a goodbye", breaks(OK_HEAD + b"Content-Length: 9\r\n\r\nab"), SUCCESS, tls="yes"),
    _case("TLS, closed after the request", says(b""), PROTOCOL, tls="yes"),
    _case("TLS, reset after the request", breaks(b"", after_s=0), PROTOCOL, tls="yes"),
    _case("TLS, silence", holds(b""), TIMEOUT, waits=True, tls="yes"),
    _case("TLS, endless body", pours(_CHUNKED, b"1000\r\n" + b"e" * 4096 + b"\r\n"), SUCCESS, tls="yes"),
    _case("TLS, answer, then a flood", pours(WHOLE, b"x" * 4096), SUCCESS, tls="yes"),
    _case(
        "TLS, reads nothing of a big body", _reads_nothing, TIMEOUT, waits=True, body_bytes=BIG_BODY_BYTES, tls="yes"
    ),
    _case("TLS, a record that does not decrypt", _bad_second_record, PROTOCOL | TLS_ERROR, tls="yes"),
]

CASES: tuple[Case, ...] = (*DRIPS, *FLOODS, *BOMBS, *EARLY, *BREAKS, *FRAMES, *LINES, *HANDSHAKES)
