"""Properties of the outbound rules, each a function of any input; AssertionError when one does not hold."""

from __future__ import annotations

import socket
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit

import yarl
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict

from duly.http import EgressPolicy, check_headers, check_method, classify, parse_target
from duly.http.delivery import wire_url
from duly.http.errors import AddressRefusedError
from duly.http.guard import check_dial
from duly.http.head_limit import final_status
from duly.http.headers import RESERVED_NAMES, RESERVED_PREFIXES
from duly.http.policy import SPECIAL_SUFFIXES
from duly.http.retry_after import retry_after
from duly.http.url import DEFAULT_PORTS, Target
from duly.model.errors import DulyError, InvalidInputError
from duly.model.retry import LONGEST

POLICY = EgressPolicy()
PIECES = [
    "http://", "https://", "HTTP://", "http:", "//", "/", "\\", "?", "#", "@", ":", ":80", ":443", ":8080", ":0", ":22",
    ".", "..", "%", "%2f", "%40", "%00", "%2e", "%25", "[", "]", "[::1]", "[::ffff:127.0.0.1]", "[2606:4700::1111]",
    "[fe80::1%25lo]", "[64:ff9b::7f00:1]", "127.0.0.1", "0x7f.1", "0177.0.0.1", "2130706433", "127.1", "0", "00", "0x",
    "8.8.8.8", "1.1", "10.0.0.1", "169.254.169.254", "localhost", "LOCALHOST", "example.com", "ex\u00e4mple.com", "db",
    "metadata.google.internal", "a.internal", "xn--", "xn--bcher-kva", "user", "user:pw@", " ", "\t",
    "\r\n", "\n", "\0",
    "\x7f", "\x85", "\u00a0", "\u00ad", "\u200b", "\u2028", "\u3002", "\uff0e", "\uff61", "\u2460", "\u24ea", "\uff11",
    "\u0661", "\u212a", "\u017f", "\u2100", "\uff0f", "\uff20", "\uff1a", "\u202e", "\ud800", "e\u0301", "\u0130", "_",
    "-", ",", ";", "'", '"', "{", "|", "a", "x" * 63, "x" * 64, "é", "&next=http://127.0.0.1/",
]  # fmt: skip


def check_url(text: str) -> None:
    """Accepted or refused with a sentence; what is accepted is canonical, harmless on the wire, and read alike by
    others; and no reading by others of what may be delivered is an internal host."""
    try:
        target = parse_target(text)
    except InvalidInputError:
        return
    _check_canonical(target)
    try:
        POLICY.check_target(target)
    except DulyError:
        return
    for host in set(_readings(text)) | set(_readings(target.url)):
        assert not is_internal(host), (text, host)
    if target.is_literal:
        family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
        rest = (0, 0) if family == socket.AF_INET6 else ()
        assert not classify(check_dial(POLICY, target.host, family, (target.host, target.port, *rest))).is_denied


def _check_canonical(target: Target) -> None:
    assert parse_target(target.url) == target
    assert target.url.isascii()
    assert not any(ord(character) <= 0x20 or ord(character) == 0x7F for character in target.url)
    wire = wire_url(target)  # what aiohttp makes the request line, the Host header, the SNI and the dial from
    assert wire.raw_path_qs == target.path_and_query
    assert wire.host_port_subcomponent == target.authority
    assert (wire.raw_host, wire.port, wire.scheme) == (target.host, target.port, target.scheme)
    split = urlsplit(target.url)
    assert (split.hostname, split.port or DEFAULT_PORTS[target.scheme]) == (target.host, target.port)
    assert (split.username, split.password, split.fragment) == (None, None, "")
    assert yarl.URL(target.url).raw_host == target.host


def _readings(text: str) -> Iterator[str]:
    """The hosts that urllib and yarl see, and what is left of them after the repairs that programs make."""
    for url in (text, text.strip(), text.replace("\\", "/"), "".join(text.split())):
        for read in (_by_urllib, _by_yarl):
            try:
                host = read(url)
            except (ValueError, UnicodeError):
                continue
            if host:
                yield host
                yield unquote(host)
                yield unicodedata.normalize("NFKC", host)


def _by_urllib(url: str) -> str | None:
    return urlsplit(url).hostname


def _by_yarl(url: str) -> str | None:
    return yarl.URL(url).host


def _by_ipaddress(text: str) -> IPv4Address | IPv6Address:
    return ip_address(text)


def _by_the_c_library(text: str) -> IPv4Address:
    return IPv4Address(socket.inet_aton(text))


def is_internal(host: str) -> bool:
    """By `ipaddress`, by what the C library makes of numbers, and by name."""
    plain = host.strip("[]").partition("%")[0].rstrip(".").lower()
    for read in (_by_ipaddress, _by_the_c_library):
        try:
            address = read(plain)
        except (ValueError, OSError):
            continue
        return not _is_global(address)
    return "." not in plain or plain.rpartition(".")[2] in SPECIAL_SUFFIXES


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if inner is not None:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_private)


def check_header(name: str, value: str) -> None:
    """Accepted or refused; what is accepted is one line on the wire, as given, and no name that belongs to us."""
    try:
        check_headers([(name, value)])
    except InvalidInputError:
        return
    sent = _serialize_headers("POST / HTTP/1.1", CIMultiDict([(name, value)]))
    assert sent == f"POST / HTTP/1.1\r\n{name}: {value}\r\n\r\n".encode("ascii")
    assert sent.count(b"\r") == sent.count(b"\n") == 3
    assert b"\0" not in sent
    plain = name.lower().replace("_", "-")
    assert plain not in RESERVED_NAMES
    assert not plain.startswith(tuple(RESERVED_PREFIXES))


def check_any_method(method: str) -> None:
    """One of seven words, or refused."""
    try:
        assert check_method(method) in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    except InvalidInputError:
        return


def check_address(number: int, port: int) -> None:
    """An address that the last gate lets through is public by `ipaddress`, too; of IPv4-in-IPv6 none is."""
    for address in (IPv4Address(number & 0xFFFFFFFF), IPv6Address(number)):
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        rest = (0, 0) if address.version == 6 else ()
        try:
            check_dial(POLICY, "a.example.com", family, (str(address), port, *rest))
        except AddressRefusedError:
            continue
        assert _is_global(address), address
        assert isinstance(address, IPv4Address) or (address.sixtofour, address.teredo) == (None, None)
        assert 0 < port <= 65535


def check_answer_head(data: bytes) -> None:
    """A status is read from a head or not; nothing is raised."""
    status = final_status(data)
    assert status is None or 0 <= status <= 999


def check_retry_after(text: str) -> None:
    """A wait ahead, at most a year, or none."""
    wait = retry_after([text], datetime(2026, 1, 2, tzinfo=UTC))
    assert wait is None or timedelta(0) < wait <= LONGEST
