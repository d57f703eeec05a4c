"""Live connections, shared by nobody: a session belongs to one account, one host and the addresses vetted for it.

The name is looked up and vetted for every attempt, before a session is chosen. A connection that was opened under
another answer has another key, so it cannot be reused; and a connector only ever knows the addresses that it was made
with.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from duly.http.addresses import Address
from duly.http.guard import guarded_sockets
from duly.http.head_limit import MAX_FIELDS, MAX_LINE_OCTETS, LimitedHead
from duly.http.policy import EgressPolicy
from duly.http.url import Target

# Shorter than what servers keep (5 s is common), so that a request is rarely written into a connection just being
# closed.
KEEPALIVE_S = 2.0
CONNECT_LIMIT_S = 10.0
MAX_SESSIONS = 256

SessionKey = tuple[int, str, str, int, tuple[Address, ...]]


@dataclass(slots=True)
class _Entry:
    session: aiohttp.ClientSession
    users: int = 0


class Connections:
    """Sessions by (account, scheme, host, port, addresses); the least recently used idle ones are closed beyond a
    limit."""

    def __init__(
        self,
        policy: EgressPolicy,
        tls: ssl.SSLContext,
        *,
        response_class: type[aiohttp.ClientResponse],
        limit: int = MAX_SESSIONS,
    ) -> None:
        self._policy = policy
        self._tls = tls
        self._response_class = response_class
        self._limit = limit
        self._entries: OrderedDict[SessionKey, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def session(
        self, account_id: int, target: Target, addresses: Sequence[Address]
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """The session to use for one request to vetted addresses."""
        pinned = tuple(addresses)
        if len(pinned) > 1:
            pinned = tuple(sorted(addresses, key=lambda address: (address.version, int(address))))
        key = (account_id, target.scheme, target.host, target.port, pinned)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self._open(target, addresses))
        self._entries.move_to_end(key)
        entry.users += 1
        try:
            yield entry.session
        finally:
            entry.users -= 1
            await self._trim()

    async def close(self) -> None:
        """Close every session, in use or not."""
        while self._entries:
            _, entry = self._entries.popitem()
            await entry.session.close()

    async def _trim(self) -> None:
        while len(self._entries) > self._limit:
            idle = next((key for key, entry in self._entries.items() if entry.users == 0), None)
            if idle is None:
                return
            await self._entries.pop(idle).session.close()

    def _open(self, target: Target, addresses: Sequence[Address]) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_PinnedConnector(self._policy, target, addresses, self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("Content-Type",),  # added after the middleware, see `once`
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S),
            max_line_size=MAX_LINE_OCTETS,
            max_field_size=MAX_LINE_OCTETS,
            max_headers=MAX_FIELDS,
            response_class=self._response_class,
        )


connected: ContextVar[Callable[[bool], None]] = ContextVar("connected")
"""Called in the task of a request when it has its connection; True: a new one. (aiohttp's traces tell the same, at a
fifth of what a request costs.)"""


class LostConnectionError(aiohttp.ClientError):
    """The connection ended before an answer came."""


def once(headers: Sequence[tuple[str, str]]) -> aiohttp.ClientMiddlewareType:
    """Middleware for one request: it goes out once, with Host and exactly these headers.

    Once, because aiohttp repeats a GET, PUT or DELETE unseen, and an attempt is one request, as the ledger counts.
    Headers are put in here, because on the way in aiohttp drops "X-A: 1" when "x-a: 2" follows, and copies all of them
    thrice.
    """

    async def send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        host = request.headers["Host"]
        request.headers.clear()
        request.headers.add("Host", host)
        request.headers.extend(headers)
        try:
            return await send(request)
        except (aiohttp.ClientConnectorError, aiohttp.ClientSSLError, aiohttp.ConnectionTimeoutError):
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise LostConnectionError from error

    return send_once


class _PinnedConnector(aiohttp.TCPConnector):
    def __init__(self, policy: EgressPolicy, target: Target, addresses: Sequence[Address], tls: ssl.SSLContext) -> None:
        super().__init__(
            resolver=_PinnedResolver(addresses),
            use_dns_cache=False,
            socket_factory=guarded_sockets(policy, target.host, target.port, addresses),
            ssl=tls,
            keepalive_timeout=KEEPALIVE_S,
            limit=0,
        )
        # aiohttp has no public way to choose the protocol; test_fo_071 fails when this one stops working.
        self._factory = functools.partial(_protocol, loop=self._loop)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Called by aiohttp for each request."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        connected.get()(isinstance(protocol, LimitedHead) and not protocol.requests)
        return connection


class _PinnedResolver(AbstractResolver):
    """Answers every question with the addresses that were vetted."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [_result(host, address, port) for address in self._addresses]

    async def close(self) -> None:
        pass


def _result(host: str, address: Address, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=str(address),
        port=port,
        family=socket.AF_INET6 if address.version == 6 else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


def _protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return LimitedHead(loop)
