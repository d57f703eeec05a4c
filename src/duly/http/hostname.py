"""Host names as users write them, made into the one form that is stored, compared, resolved and sent.

ASCII, lower case, A-labels, no trailing dot. Where two parsers could read a host differently, it is refused: the person
who typed it can type the real name.
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna

from duly.model.errors import InvalidInputError

MAX_HOST_OCTETS = 253
MAX_LABEL_OCTETS = 63

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?", re.ASCII)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_IPV6_TEXT = re.compile(r"[0-9A-Fa-f:.]+", re.ASCII)


def parse_host(text: str) -> tuple[str, bool]:
    """Canonical form of a host without brackets, and whether it is an IPv4 literal.

    A last label that is a number makes it an address (WHATWG URL, "ends in a number"); only a canonical dotted quad is
    taken, since 127.1, 0x7f.1 and 0127.0.0.1 mean different things to different resolvers.
    """
    host = _lowered(text)
    named = host.removesuffix(".")
    labels = named.split(".")
    if "" in labels:
        raise _refused("the host has an empty label: write it without doubled or leading dots")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return _ipv4(host), True
    name = ".".join(_a_label(label) for label in labels)
    if len(name) > MAX_HOST_OCTETS:
        raise _refused(f"the host is longer than {MAX_HOST_OCTETS} octets: use a shorter name")
    return name, False


def parse_ipv6(text: str) -> str:
    """Canonical form of what stood between brackets. Zone ids and IPvFuture are refused."""
    if "%" in text:
        raise _refused("the host has a zone id: remove everything from the percent sign to the bracket")
    if not _IPV6_TEXT.fullmatch(text):
        raise _refused("the host in brackets is not an IPv6 address: use one such as [2001:4860:4860::8888]")
    try:
        return str(IPv6Address(text))
    except AddressValueError as error:
        raise _refused("the host in brackets is not an IPv6 address: use one such as [2001:4860:4860::8888]") from error


def _lowered(text: str) -> str:
    if not text:
        raise _refused("the host is empty: write a name after ://")
    if text.isascii():
        return text.lower()
    try:
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
    except (idna.IDNAError, UnicodeError) as error:
        raise _refused("the host has characters that no internet name may have: type the real name") from error
    # str.lower alone would undo the Kelvin sign and its like, which are other characters' doubles
    if mapped != text.lower() or not unicodedata.is_normalized("NFC", text):
        raise _refused("the host has look-alike or invisible characters: type the real name")
    return mapped


def _ipv4(host: str) -> str:
    try:
        address = IPv4Address(host)
    except AddressValueError as error:
        raise _refused(
            "the host ends in a number but is not a plain IPv4 address: write four decimal numbers"
        ) from error
    return str(address)


def _a_label(label: str) -> str:
    if not label.isascii():
        label = _encoded(label)
    elif label.startswith("xn--"):
        _check_a_label(label)
    if not _LABEL.fullmatch(label):
        raise _refused("the host has an invalid character: use letters, digits, hyphens inside, underscores and dots")
    if len(label) > MAX_LABEL_OCTETS:
        raise _refused(f"the host has a label longer than {MAX_LABEL_OCTETS} octets: use a shorter name")
    return label


def _encoded(label: str) -> str:
    try:
        return idna.alabel(label).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise _refused("the host is not a valid international name: check it, or write its xn-- form") from error


def _check_a_label(label: str) -> None:
    try:
        if idna.alabel(idna.ulabel(label)).decode("ascii") == label:
            return
    except (idna.IDNAError, UnicodeError) as error:
        raise _refused("the host has an xn-- label that does not decode: type the real name") from error
    raise _refused("the host has an xn-- label that is not in its normal form: type the real name")


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, "/url")
