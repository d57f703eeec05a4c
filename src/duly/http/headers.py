"""What users may set on a request: header names and values, and the method. Pure.

Order and case are kept. Framing, hop-by-hop and routing headers belong to the service, and so do the headers that it
signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from duly.model.errors import InvalidInputError

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADERS = 64
MAX_HEADERS_OCTETS = 32 * 1024
MAX_NAME_OCTETS = 256

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e]*", re.ASCII)
_TOO_LONG = f"a header name is longer than {MAX_NAME_OCTETS} octets: shorten it"

RESERVED_NAMES: dict[str, str] = {
    "accept-encoding": "the service asks for identity",
    "connection": "it belongs to one hop",
    "content-length": "framing belongs to the service",
    "expect": "it stalls the exchange",
    "host": "it follows from the URL",
    "http2-settings": "it switches the protocol",
    "keep-alive": "it belongs to one hop",
    "te": "it belongs to one hop",
    "trailer": "it belongs to one hop",
    "transfer-encoding": "framing belongs to the service",
    "upgrade": "it switches the protocol",
}
RESERVED_PREFIXES: dict[str, str] = {
    "duly-": "the service sets it",
    "proxy-": "it speaks to proxies",
    "sec-websocket-": "it switches the protocol",
    "webhook-": "the service signs it",
    "x-jobs-": "the service sets it",
    "x-smokescreen-": "it speaks to proxies",
}


def check_headers(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers as given, or InvalidInputError naming the first one that cannot be sent."""
    kept = tuple((name, value) for name, value in pairs)
    if len(kept) > MAX_HEADERS:
        raise _refused(f"there are {len(kept)} headers: send at most {MAX_HEADERS}", "/headers")
    for at, (name, value) in enumerate(kept):
        _check_name(name, at)
        _check_value(name, value, at)
    octets = sum(len(name) + len(value) for name, value in kept)
    if octets > MAX_HEADERS_OCTETS:
        raise _refused(f"the headers have {octets} octets: send at most {MAX_HEADERS_OCTETS}", "/headers")
    return kept


def check_method(method: str) -> str:
    """The method, or InvalidInputError. Methods are case-sensitive and the list is closed."""
    if method not in METHODS:
        raise _refused("the method is not one of " + ", ".join(sorted(METHODS)) + ", in capitals", "/method")
    return method


def is_header_name(name: str) -> bool:
    """Whether any message may have a header of this name (RFC 9110, section 5.1), also one that users may not set."""
    return len(name) <= MAX_NAME_OCTETS and _TOKEN.fullmatch(name) is not None


def _check_name(name: str, at: int) -> None:
    why = fault_of_name(name) if len(name) <= MAX_NAME_OCTETS else _TOO_LONG
    if why is not None:
        raise _refused(why, f"/headers/{at}")


@lru_cache(maxsize=2048)
def fault_of_name(name: str) -> str | None:
    """What is wrong with a header's name; None if users may set it. Remembered: the same names come again."""
    if not _TOKEN.fullmatch(name):
        return "a header name is empty or has an invalid character: use letters, digits and hyphens"
    plain = name.lower().replace("_", "-")  # CGI and WSGI servers take Content_Length for Content-Length
    why = RESERVED_NAMES.get(plain)
    if why is None:
        why = next((reason for prefix, reason in RESERVED_PREFIXES.items() if plain.startswith(prefix)), None)
    return None if why is None else f"the header {name} cannot be set ({why}): leave it out"


def _check_value(name: str, value: str, at: int) -> None:
    if not _VALUE.fullmatch(value):
        raise _refused(
            f"the header {name} has a line break, a control or a non-ASCII character: encode or remove it",
            f"/headers/{at}",
        )
    if value != value.strip(" \t"):
        raise _refused(f"the header {name} begins or ends with white space: remove it", f"/headers/{at}")


def _refused(message: str, pointer: str) -> InvalidInputError:
    return InvalidInputError(message, pointer)
