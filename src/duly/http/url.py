"""One strict parser for target URLs, used when a job is created and again when it is delivered.

Nothing is repaired. Whatever two programs might read differently (userinfo, backslashes, numeric hosts, spaces,
controls) is refused, so that the host which is checked is the host which is dialled. RFC 3986 for the grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from duly.http.hostname import parse_host, parse_ipv6
from duly.model.errors import InvalidInputError

MAX_URL_OCTETS = 8192
DEFAULT_PORTS = {"http": 80, "https": 443}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?", re.DOTALL)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_REMEMBERED_LENGTH = 512  # of at most 4,096 targets: a few MB, whatever URLs come
_PRINTABLE_ASCII = "".join(chr(c) for c in range(0x21, 0x7F))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. `host` is an A-label name or a canonical address without brackets; `path_and_query` is
    ASCII, starts with "/" and is sent as it stands."""

    scheme: str
    host: str
    is_literal: bool
    port: int
    path_and_query: str

    @property
    def authority(self) -> str:
        """host[:port] as in a URL or a Host header: brackets round IPv6, the default port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The canonical URL; parsing it gives the same target."""
        return f"{self.scheme}://{self.authority}{self.path_and_query}"


def parse_target(url: str) -> Target:
    """Parse a target URL or raise InvalidInputError with one sentence that says what is wrong and what to do.

    What was parsed lately is remembered by its exact text, so that the parse at each delivery costs next to nothing.
    """
    return _remembered(url) if len(url) <= _REMEMBERED_LENGTH else _parsed(url)


def _parsed(url: str) -> Target:
    _check_characters(url)
    scheme, rest = _split_scheme(url)
    end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    host, is_literal, port = _parse_authority(rest[:end], DEFAULT_PORTS[scheme])
    target = Target(scheme, host, is_literal, port, _encoded_path(rest[end:]))
    if len(target.url) > MAX_URL_OCTETS:
        raise _too_long()
    return target


_remembered = lru_cache(maxsize=4096)(_parsed)


def _check_characters(url: str) -> None:
    if not url:
        raise _refused("the URL is empty: write one such as https://example.com/hook")
    if len(url) > MAX_URL_OCTETS:
        raise _too_long()
    for character in url:
        code = ord(character)
        if code < 0x20 or 0x7F <= code <= 0x9F:
            raise _refused("the URL has a control character: remove it or percent-encode it")
        if 0xD800 <= code <= 0xDFFF:
            raise _refused("the URL has half a surrogate pair: send it as valid Unicode")
    if " " in url:
        raise _refused("the URL has a space: percent-encode it as %20")
    if "\\" in url:
        raise _refused("the URL has a backslash: use forward slashes, or percent-encode it as %5C")
    if "#" in url:
        raise _refused("the URL has a fragment, which is never sent: remove everything from the # on")


def _split_scheme(url: str) -> tuple[str, str]:
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in DEFAULT_PORTS:
        raise _refused("the URL must start with http:// or https://")
    rest = url[match.end() :]
    if not rest.startswith("//"):
        raise _refused("the URL must have two slashes after the scheme, as in https://example.com/")
    return scheme, rest[2:]


def _parse_authority(authority: str, default_port: int) -> tuple[str, bool, int]:
    if not authority:
        raise _refused("the URL has no host: write a name after ://")
    if "@" in authority:
        raise _refused(
            "the URL has a user name or password before the host: send it in an Authorization header instead"
        )
    port_text: str | None
    if authority.startswith("["):
        match = _BRACKETED.fullmatch(authority)
        if match is None:
            raise _refused("the host in brackets is not closed properly: write it as [address] or [address]:port")
        host, is_literal, port_text = parse_ipv6(match[1]), True, match[2]
    else:
        host_text, colon, after = authority.partition(":")
        port_text = after if colon else None
        host, is_literal = parse_host(host_text)
    return host, is_literal, default_port if port_text is None else _parse_port(port_text)


def _parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise _refused("the port is not a number from 1 to 65535: correct it, or leave it out together with the colon")
    return int(text)


def _encoded_path(text: str) -> str:
    path = quote(text, safe=_PRINTABLE_ASCII)  # leaves every ASCII byte as it is, so nothing is encoded twice
    return path if path.startswith("/") else "/" + path


def _too_long() -> InvalidInputError:
    return _refused(f"the URL is longer than {MAX_URL_OCTETS} octets after encoding: put the data into the body")


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, "/url")
