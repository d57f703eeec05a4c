"""Three HTTP clients behind one function: aiohttp as Duly uses it, asyncio with httptools, and pycurl where it is
installed (it is no dependency). For `clients`, which compares them; nothing else uses them.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol

import httptools

from duly.http import EgressPolicy, parse_target
from duly.http.connections import Connections, once
from duly.http.delivery import wire_url
from duly.http.exchange import READ_LIMIT_BYTES, Exchange, PeerNotingResponse, current_exchange
from duly.http.guard import guarded_sockets
from duly.http.head_limit import MAX_HEAD_OCTETS

try:
    import pycurl  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    pycurl = None

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request whose target was vetted: `address` is where it goes, `headers` all but Host."""

    url: str
    address: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = b"{}"


class Client(Protocol):
    """One request in, status and the first 64 KiB of the body out. Raises whatever it raises."""

    async def exchange(self, asked: Asked) -> tuple[int, bytes]: ...

    async def close(self) -> None: ...


class Aiohttp:
    """As in `duly.http.delivery`."""

    def __init__(self, policy: EgressPolicy, tls: ssl.SSLContext, authority: str) -> None:
        self._connections = Connections(policy, tls, response_class=PeerNotingResponse)

    async def exchange(self, asked: Asked) -> tuple[int, bytes]:
        target = parse_target(asked.url)
        current_exchange.set(Exchange(step="connect"))
        async with self._connections.session(1, target, [ip_address(asked.address)]) as session:
            response = await session.request(
                asked.method,
                wire_url(target),
                data=asked.body,
                allow_redirects=False,
                middlewares=(once(_framed(asked)),),
            )
            kept = bytearray()
            try:
                async for chunk in response.content.iter_any():
                    kept += chunk
                    if len(kept) > READ_LIMIT_BYTES:
                        break
            finally:
                response.close()
            return response.status, bytes(kept)

    async def close(self) -> None:
        await self._connections.close()


class _Wire(asyncio.Protocol):
    """One connection: writes a request as it is, has httptools read the answer, counts what comes before the body."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.answer: asyncio.Future[None] | None = None

    def send(self, data: bytes, *, has_body: bool) -> asyncio.Future[None]:
        self._parser = httptools.HttpResponseParser(self)
        self._has_body, self._in_head, self._octets = has_body, True, 0
        self.status, self.body, self.is_reusable = 0, bytearray(), False
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.answer

    def data_received(self, data: bytes) -> None:
        if self.answer is None or self.answer.done():  # nobody asked: never the next request's answer
            self.is_reusable = False
            self.transport.close()
            return
        self._octets += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(error)
        if self._octets > MAX_HEAD_OCTETS + (0 if self._in_head else READ_LIMIT_BYTES):  # trailers, chunk extensions
            self._end(ValueError("the answer is too long"))

    def on_headers_complete(self) -> None:
        if self.answer is None or self.answer.done():
            return
        self.status = self._parser.get_status_code()
        self._in_head = 100 <= self.status <= 199
        if not self._in_head and not self._has_body:  # httptools cannot be told that the answer to a HEAD has none
            self._end(None)

    def on_body(self, body: bytes) -> None:
        self.body += body[: READ_LIMIT_BYTES + 1 - len(self.body)]
        if len(self.body) > READ_LIMIT_BYTES:
            self._end(None)

    def on_message_begin(self) -> None:
        self.is_reusable = False  # more than one answer

    def on_message_complete(self) -> None:
        if not self._in_head and self.answer is not None and not self.answer.done():
            self.is_reusable = self._parser.should_keep_alive()
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        cut = None if self.status and not self._in_head else error or ConnectionError("closed before an answer")
        self._end(cut)

    def _end(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            if error is None or (self.status and not self._in_head):  # the status stands, whatever becomes of the body
                self.answer.set_result(None)
            else:
                self.answer.set_exception(error)


class Httptools:
    """asyncio's transports, httptools for the answers, bytes out as they stand."""

    def __init__(self, policy: EgressPolicy, tls: ssl.SSLContext, authority: str) -> None:
        self._policy, self._tls = policy, tls
        self._idle: dict[tuple[str, str, int, str], list[_Wire]] = {}

    async def exchange(self, asked: Asked) -> tuple[int, bytes]:
        target = parse_target(asked.url)
        idle = self._idle.setdefault((target.scheme, target.host, target.port, asked.address), [])
        while idle and idle[-1].transport.is_closing():
            idle.pop()
        wire = idle.pop() if idle else await self._connect(target.scheme == "https", target.host, target.port, asked)
        lines = [f"{asked.method} {target.path_and_query} HTTP/1.1", f"Host: {target.authority}"]
        lines += [f"{name}: {value}" for name, value in _framed(asked)]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            await wire.send(head + (asked.body or b""), has_body=asked.method != "HEAD")
        finally:
            if wire.is_reusable and not wire.transport.is_closing():
                idle.append(wire)
            else:
                wire.transport.abort()
        return wire.status, bytes(wire.body)

    async def _connect(self, is_tls: bool, host: str, port: int, asked: Asked) -> _Wire:
        loop, address = asyncio.get_running_loop(), ip_address(asked.address)
        family = 10 if address.version == 6 else 2
        sock = guarded_sockets(self._policy, host, port, [address])((family, 1, 6, "", (str(address), port)))
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, (str(address), port))
            tls, name = (self._tls, host) if is_tls else (None, None)
            _, wire = await loop.create_connection(_Wire, sock=sock, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return wire

    async def close(self) -> None:
        for wire in [wire for idle in self._idle.values() for wire in idle]:
            wire.transport.abort()


class Pycurl:
    """libcurl's multi interface on asyncio's readers and timers."""

    def __init__(self, policy: EgressPolicy, tls: ssl.SSLContext, authority: str) -> None:
        self._policy, self._authority = policy, authority
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._later)
        self._timer: asyncio.TimerHandle | None = None
        self._free: list[Any] = []
        self._waiting: dict[Any, asyncio.Future[int]] = {}

    async def exchange(self, asked: Asked) -> tuple[int, bytes]:
        target, body = parse_target(asked.url), io.BytesIO()
        open_socket = guarded_sockets(self._policy, target.host, target.port, [ip_address(asked.address)])
        budget = [MAX_HEAD_OCTETS]

        def opened(purpose: int, place: Any) -> Any:
            try:
                return open_socket((place.family, place.socktype, place.protocol, "", tuple(place.addr)))
            except OSError:
                return pycurl.SOCKET_BAD

        def head(line: bytes) -> int | None:
            budget[0] -= len(line)
            return None if budget[0] >= 0 else 0

        curl = self._free.pop() if self._free else pycurl.Curl()
        host = f"{target.host}:{target.port}:[{asked.address}]" if ":" in asked.address else ""
        lines = [f"{name}: {value}" if value else f"{name};" for name, value in _framed(asked)]
        options = {
            pycurl.URL: f"{target.scheme}://{target.authority}/",
            pycurl.REQUEST_TARGET: target.path_and_query,
            pycurl.CUSTOMREQUEST: asked.method,
            pycurl.HTTPHEADER: [
                *lines,
                "Accept:",
                "Expect:",
                *[f"{name}:" for name in ("User-Agent", "Content-Type") if not _has(asked, name)],
            ],
            pycurl.RESOLVE: [host or f"{target.host}:{target.port}:{asked.address}"],
            pycurl.OPENSOCKETFUNCTION: opened,
            pycurl.HEADERFUNCTION: head,
            pycurl.WRITEFUNCTION: lambda data: 0 if body.tell() + len(data) > READ_LIMIT_BYTES else body.write(data),
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PROXY: "",
            pycurl.NOSIGNAL: 1,
        }
        if asked.body is not None:
            options[pycurl.POSTFIELDS] = asked.body
        if self._authority:
            options[pycurl.CAINFO] = self._authority
        for option, value in options.items():
            curl.setopt(option, value)
        done = self._waiting[curl] = self._loop.create_future()
        self._multi.add_handle(curl)
        try:
            failed = await done
            status = curl.getinfo(pycurl.RESPONSE_CODE)
        finally:
            self._waiting.pop(curl, None)
            self._multi.remove_handle(curl)
            curl.reset()
            self._free.append(curl)
        if failed and not status:
            raise ConnectionError(f"curl {failed}")
        return status, body.getvalue()

    def _watch(self, what: int, fd: int, multi: Any, data: Any) -> None:
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        if what in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            self._loop.add_reader(fd, self._act, fd, pycurl.CSELECT_IN)
        if what in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            self._loop.add_writer(fd, self._act, fd, pycurl.CSELECT_OUT)

    def _later(self, in_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if in_ms < 0 else self._loop.call_later(in_ms / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0)

    def _act(self, fd: int, events: int) -> None:
        self._multi.socket_action(fd, events)
        _, good, bad = self._multi.info_read()
        for curl, code in [*((curl, 0) for curl in good), *((curl, code) for curl, code, _ in bad)]:
            if curl in self._waiting and not self._waiting[curl].done():
                self._waiting[curl].set_result(code)

    async def close(self) -> None:
        self._later(-1)
        for curl in self._free:
            curl.close()
        self._multi.close()


CLIENTS: dict[str, Callable[[EgressPolicy, ssl.SSLContext, str], Client]] = {"aiohttp": Aiohttp, "httptools": Httptools}
if pycurl is not None:
    CLIENTS["pycurl"] = Pycurl


def _framed(asked: Asked) -> Headers:
    return [*asked.headers, *([] if asked.body is None else [("Content-Length", str(len(asked.body)))])]


def _has(asked: Asked, name: str) -> bool:
    return any(key.lower() == name.lower() for key, _ in asked.headers)
