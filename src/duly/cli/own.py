"""What no job may call: the service's database, its listeners, its proxy. They join the deny set at start.

Names are looked up once, then; and the database itself is asked where it listens, since neither a name nor the folder
of a socket says it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import parse_qs, unquote, urlsplit

from duly.http import EgressProxy
from duly.queue import Database

_HOST_AND_PORT = re.compile(r"(?:\[([^\]]+)\]|([^:,\[\]]+))(?::(\d+))?")
_LISTENS = """
    select host(inet_server_addr()) as address, coalesce(inet_server_port(), current_setting('port')::integer) as port
"""
_UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound


async def all_own_addresses(
    db: Database, database_url: str, listeners: Sequence[tuple[str, int]], proxy: EgressProxy | None = None
) -> list[str]:
    """`own_addresses`, and where the connected database says that it listens."""
    row = await db.fetchrow(_LISTENS)
    assert row is not None  # it has no table
    own = await asyncio.to_thread(own_addresses, database_url, listeners, proxy)
    if row["address"] is None:  # through a Unix socket: on this machine, at whatever addresses it has
        machine = await asyncio.to_thread(_machine)
        return [*own, *(place for address in machine for place in _places(address, row["port"]))]
    return [*own, *_places(row["address"], row["port"])]


def own_addresses(
    database_url: str,
    listeners: Sequence[tuple[str, int]],
    proxy: EgressProxy | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Addresses of the database as its URL and the environment give it, of our listeners, and of the egress proxy.

    A host or a port that the URL leaves out is PGHOST's or PGPORT's, as for every client of PostgreSQL.
    """
    hosts, ports = _database_hosts(database_url, environment)
    own = [place for host, port in listeners for place in _places(host, port)]
    own += [place for host in hosts for port in ports for place in _places(host, port)]
    return own + ([] if proxy is None else _places(proxy.host, proxy.port))


def _database_hosts(url: str, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Every host and every port in the URL, which may list several of them, before the path and in the query."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    listed = _HOST_AND_PORT.findall(parts.netloc.rpartition("@")[2])
    hosts = [unquote(bracketed or plain) for bracketed, plain, _ in listed] + _split(query.get("host", []))
    ports = [port for _, _, port in listed] + _split(query.get("port", []))
    hosts = [host for host in hosts if host] or _split([environment.get("PGHOST", "")]) or ["localhost"]
    ports = [port for port in ports if port] or _split([environment.get("PGPORT", "")]) or ["5432"]
    hosts = ["localhost" if host.startswith(("/", "@")) else host for host in hosts]  # a socket: it is on this machine
    return hosts, sorted({port for port in ports if port.isdecimal() and 0 < int(port) < 65536})


def _split(texts: Iterable[str]) -> list[str]:
    return [part for part in ",".join(texts).split(",") if part]


def _places(host: str, port: int | str) -> list[str]:
    if int(port) == 0:  # any free one: not known yet
        return []
    addresses = [host, *_machine()] if host in _UNSPECIFIED else _addresses(host)
    return [f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in addresses]


def _addresses(host: str) -> list[str]:
    """A literal as it is, a name's addresses; none for a name that is not known here, which nobody can call by it."""
    if host == "localhost":
        return ["127.0.0.1", "::1"]
    with suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return sorted({str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found})
    return []


def _machine() -> list[str]:
    """Loopback, and this machine's addresses as far as it knows them. Nothing is sent: connecting a UDP socket only
    chooses the address that would send.
    """
    found = {"127.0.0.1", "::1", *_addresses(socket.gethostname())}
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found.add(str(probe.getsockname()[0]).partition("%")[0])
    return sorted(found)
