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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from duly.http.addresses import Address
from duly.http.errors import AddressRefusedError, ProxyRefusedError
from duly.http.exchange import current_exchange, transport_is_up
from duly.http.guard import AddrInfo, check_pinned, guarded_sockets
from duly.http.head_limit import MAX_FIELDS, MAX_LINE_OCTETS, LimitedHead
from duly.http.lost import LostConnectionError, UnansweredError
from duly.http.policy import EgressPolicy
from duly.http.proxy import Tunnels
from duly.http.url import Target

# Shorter than what servers keep (5 s is common), so that a request is rarely written into a connection just being
# closed. (A close that has arrived is seen before anything is written: head_limit.)
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
        tunnels: Tunnels | None = None,
        limit: int = MAX_SESSIONS,
    ) -> None:
        self._policy = policy
        self._tls = tls
        self._response_class = response_class
        self._tunnels = tunnels
        self._limit = limit
        self._entries: OrderedDict[SessionKey, _Entry] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

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
            self._trim()

    @asynccontextmanager
    async def fresh_session(self, target: Target, addresses: Sequence[Address]) -> AsyncIterator[aiohttp.ClientSession]:
        """A session with no connection yet, shared with nobody and closed at the end."""
        session = self._open(target, addresses)
        try:
            yield session
        finally:
            self._let_go(session)

    async def close(self) -> None:
        """Close every session, in use or not."""
        while self._entries:
            _, entry = self._entries.popitem()
            self._let_go(entry.session)
        await asyncio.gather(*self._closing)

    def _trim(self) -> None:
        if len(self._entries) <= self._limit:
            return
        idle = [key for key, entry in self._entries.items() if entry.users == 0]
        for key in idle[: len(self._entries) - self._limit]:
            self._let_go(self._entries.pop(key).session)

    def _let_go(self, session: aiohttp.ClientSession) -> None:
        """Close it on the side: an attempt whose time is over while it closes one would leave it, and others, open."""
        task = asyncio.create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _open(self, target: Target, addresses: Sequence[Address]) -> aiohttp.ClientSession:
        tunnels = self._tunnels
        return aiohttp.ClientSession(
            connector=_PinnedConnector(self._policy, target, addresses, self._tls)
            if tunnels is None
            else _TunnelConnector(self._policy, target, addresses, self._tls, tunnels),
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


def once(headers: Sequence[tuple[str, str]]) -> aiohttp.ClientMiddlewareType:
    """Middleware for one request: it goes out once, with Host and exactly these headers.

    Once, because aiohttp repeats a GET, PUT or DELETE unseen: what is sent again is for the delivery to say. Headers
    are put in here, because on the way in aiohttp drops "X-A: 1" when "x-a: 2" follows, and copies all of them thrice.
    """

    async def send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        host = request.headers["Host"]
        request.headers.clear()
        request.headers.add("Host", host)
        request.headers.extend(headers)
        try:
            return await send(request)
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ClientSSLError,
            aiohttp.ConnectionTimeoutError,
            LostConnectionError,
        ):
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise UnansweredError from error  # one that had begun its answer is told apart by the response

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
        is_new = isinstance(protocol, LimitedHead) and not protocol.requests
        current_exchange.get().connected(is_new=is_new)
        return connection


class _TunnelConnector(_PinnedConnector):
    """Reaches the vetted addresses through the egress proxy and by no other way.

    Should aiohttp stop calling `_wrap_create_connection`, there is no connection at all: the socket factory refuses
    every address, and test_proxy fails.
    """

    def __init__(
        self, policy: EgressPolicy, target: Target, addresses: Sequence[Address], tls: ssl.SSLContext, tunnels: Tunnels
    ) -> None:
        super().__init__(policy, target, addresses, tls)
        self._socket_factory = _no_socket
        self._policy, self._target, self._pinned, self._tunnels = policy, target, frozenset(addresses), tunnels

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[AddrInfo],
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """As aiohttp's own, on a socket that the proxy has joined to one of the addresses."""
        try:
            async with asyncio.timeout(timeout.sock_connect):
                tunnel = await self._joined(addr_infos)
                try:
                    return await self._loop.create_connection(*args, **kwargs, sock=tunnel)
                except BaseException:
                    tunnel.close()
                    raise
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
        except TimeoutError as error:
            if error.errno is None:
                raise
            raise client_error(req.connection_key, error) from error
        except OSError as error:
            raise client_error(req.connection_key, error) from error

    async def _joined(self, addr_infos: list[AddrInfo]) -> socket.socket:
        """A tunnel to the first address that the proxy reaches. Those tried in vain are taken off the list, or aiohttp
        would come with them again.
        """
        while True:
            address = check_pinned(self._policy, self._target.host, self._target.port, self._pinned, addr_infos[0])
            try:
                return await self._tunnels.open(address, self._target.port)
            except ProxyRefusedError as error:
                if error.status in (None, 407):  # it is away, or does not know us: no address will do
                    del addr_infos[1:]
                if len(addr_infos) == 1:
                    raise
                del addr_infos[0]


def _no_socket(_: AddrInfo) -> socket.socket:
    raise AddressRefusedError


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
    transport_is_up()  # event loops make the protocol when the socket is connected and TLS is about to begin
    return LimitedHead(loop)
