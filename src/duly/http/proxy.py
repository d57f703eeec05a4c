"""The one way out, where an operator set one: tunnels through an egress proxy (CONNECT; RFC 9110, section 9.3.6).

The proxy is asked for an address that was vetted here, never for a name: it has nothing to resolve, so it cannot be led
elsewhere. Host, SNI and the certificate check go by the name, inside the tunnel. Plain http goes through a tunnel too:
in absolute form, a proxy must replace the Host header by what stands in the request line (RFC 9112, section 3.2.2), and
that would be the address. There is no other way: what the proxy does not open is a failed attempt.

The proxy's own address is dialled by its setting alone, past the rules for targets, and is no target itself.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Self
from urllib.parse import unquote, urlsplit

import httptools

from duly.http.addresses import Address
from duly.http.errors import AddressRefusedError, DnsError, ProxyRefusedError
from duly.http.resolver import Resolver
from duly.model.errors import InvalidInputError
from duly.model.reminding import Reminder

log = logging.getLogger("duly.http")

PROXY_SETTING = "DULY_EGRESS_PROXY"
HEAD_LIMIT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """Where the proxy is, and what it asks for (`credentials`: user and password, or None)."""

    host: str
    port: int
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read http://[user:password@]host:port. Raises InvalidInputError, which does not repeat it (passwords)."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme != "http" or parts.path.strip("/") or parts.query or parts.fragment:
            raise InvalidInputError(
                f"{PROXY_SETTING}: write the proxy as http://host:port or http://user:password@host:port"
            )
        if not text.isascii() or not text.isprintable() or " " in text:
            raise InvalidInputError(
                f"{PROXY_SETTING}: the proxy's URL must be printable ASCII without spaces: write %20"
            )
        user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(host, port, user)


class Tunnels:
    """Opens tunnels through one proxy; its name is looked up for each, by `resolver`."""

    def __init__(self, proxy: EgressProxy, resolver: Resolver, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proxy = proxy
        self._resolver = resolver
        self._reminder = Reminder(clock)

    async def open(self, address: Address, port: int) -> socket.socket:
        """A socket joined to an address that the caller has vetted. The caller limits the time and closes the socket.

        Raises ProxyRefusedError if the proxy is away or says no, AddressRefusedError if the address is the proxy's own.
        """
        try:
            return await self._opened(address, port)
        except ProxyRefusedError as error:
            self._tell(error)
            raise

    async def _opened(self, address: Address, port: int) -> socket.socket:
        places = await self._places()
        if (address, port) in {(place, self._proxy.port) for place in places}:
            raise AddressRefusedError
        joined = await self._dial(places)
        try:
            await self._connect(joined, address, port)
        except BaseException:
            joined.close()
            raise
        return joined

    async def _places(self) -> list[Address]:
        try:
            return [ip_address(self._proxy.host)]
        except ValueError:
            pass
        found: list[str] = []
        for family in (socket.AF_INET6, socket.AF_INET):
            try:
                found += await self._resolver.lookup(self._proxy.host.rstrip("."), family)
            except (DnsError, OSError):
                continue
        if not found:
            raise ProxyRefusedError("the egress proxy's name could not be resolved")
        return [ip_address(text) for text in found]

    async def _dial(self, places: list[Address]) -> socket.socket:
        loop = asyncio.get_running_loop()
        failed: OSError | None = None
        for place in places:
            dialled = socket.socket(socket.AF_INET6 if place.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
            try:
                dialled.setblocking(False)
                await loop.sock_connect(dialled, (str(place), self._proxy.port))
            except OSError as error:
                dialled.close()
                failed = error
            except BaseException:
                dialled.close()
                raise
            else:
                return dialled
        raise ProxyRefusedError("the egress proxy could not be reached") from failed

    async def _connect(self, joined: socket.socket, address: Address, port: int) -> None:
        loop = asyncio.get_running_loop()
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        try:
            await loop.sock_sendall(joined, self._request(address, port))
            while not answer.is_complete:
                data = await loop.sock_recv(joined, 4096)
                answer.octets += len(data)
                if not data:
                    raise ProxyRefusedError("the egress proxy closed the connection")
                if answer.octets > HEAD_LIMIT_BYTES:
                    raise ProxyRefusedError("the egress proxy's answer is too long")
                parser.feed_data(data)
                answer.read(parser.get_status_code())
        except httptools.HttpParserUpgrade:  # what follows the head would be the target's, and it has no turn yet
            raise ProxyRefusedError("the egress proxy switched protocols") from None
        except httptools.HttpParserError:
            raise ProxyRefusedError("the egress proxy's answer could not be read as HTTP") from None
        except ProxyRefusedError:
            raise
        except OSError as error:
            raise ProxyRefusedError("the connection to the egress proxy was lost") from error
        if not 200 <= answer.status < 300:
            raise ProxyRefusedError("the egress proxy refused", answer.status)
        if answer.has_more:
            raise ProxyRefusedError("the egress proxy sent something before the target could")

    def _request(self, address: Address, port: int) -> bytes:
        authority = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if self._proxy.credentials is not None:
            pair = ":".join(self._proxy.credentials).encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair).decode('ascii')}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _tell(self, error: ProxyRefusedError) -> None:
        """One line in half a minute for each way to fail, not one per attempt."""
        if self._reminder.is_due((error.strerror, error.status)):
            fields = {"proxy": f"{self._proxy.host}:{self._proxy.port}", "status": error.status}
            log.warning(error.strerror, extra=fields)


class _Answer:
    """What httptools calls back: the final head of the proxy's answer, and whether anything came behind it."""

    def __init__(self) -> None:
        self.octets = 0
        self.status = 0
        self.has_more = False
        self.is_complete = False
        self._heads = 0
        self._read = 0

    def on_headers_complete(self) -> None:
        self._heads += 1

    def on_body(self, _: bytes) -> None:
        self.has_more = True

    def read(self, status: int) -> None:
        """After each piece: a head of 1xx is none yet."""
        if self._heads > self._read:
            self._read = self._heads
            if status >= 200:
                self.status, self.is_complete = status, True
