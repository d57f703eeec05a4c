"""Any text as a URL, header, method or address: the properties of tests/fuzz/properties.py hold."""

from __future__ import annotations

from ipaddress import IPv6Address

from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.http.hostname import parse_ipv6
from fuzz import properties
from fuzz.properties import PIECES

from .ssrf_rows import VARIANTS_PATH, read_rows

PIECE = st.sampled_from(PIECES) | st.characters() | st.from_regex(r"[0-9a-fx.]{1,12}", fullmatch=True)
TEXT = st.lists(PIECE, max_size=12).map("".join)
HOST = st.lists(PIECE, min_size=1, max_size=4).map("".join)
ADDRESS = st.integers(0, 2**128 - 1) | st.integers(0, 2**33) | st.integers(2**125, 2**126)


@settings(max_examples=250, deadline=None)
@given(TEXT)
def test_any_text_as_a_url(text: str) -> None:
    """Pieces that parsers stumble over, in any order."""
    properties.check_url(text)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(["http", "https", "HTTP"]), HOST, TEXT)
def test_any_host_and_path(scheme: str, host: str, rest: str) -> None:
    """The same where a host, a port and a path belong."""
    for url in (f"{scheme}://{host}{rest}", f"{scheme}://{host}/{rest}", f"{scheme}://example.com{host}/{rest}"):
        properties.check_url(url)


def test_every_row_as_a_url() -> None:
    """The rows and variants are inputs like others."""
    for row in read_rows() + read_rows(VARIANTS_PATH):
        properties.check_url(row.text)


@settings(max_examples=250, deadline=None)
@given(ADDRESS, st.integers(0, 65536))
@example(0x20020A000001 << 80, 443)
@example(0xFFFF7F000001, 443)
def test_any_address_at_the_last_gate(number: int, port: int) -> None:
    """As IPv4 and as IPv6, against Python's own tables."""
    properties.check_address(number, port)


@settings(max_examples=250, deadline=None)
@given(st.text(st.sampled_from("XYz-_:. \t\r\n\0é\u212a") | st.characters(), max_size=20) | st.just("X-A"), TEXT)
def test_any_header(name: str, value: str) -> None:
    """One line on the wire or refused."""
    properties.check_header(name, value)
    properties.check_any_method(name)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), TEXT)
def test_any_answer(data: bytes, text: str) -> None:
    """Heads and Retry-After as they come."""
    properties.check_answer_head(data)
    properties.check_answer_head(b"HTTP/1.1 100 X\r\n\r\nHTTP/1.1 " + data)
    properties.check_retry_after(text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**128 - 1))
def test_every_spelling_of_an_ipv6_address_is_one_host(number: int) -> None:
    """In full, in capitals and with a dotted tail: the canonical form is the same, so policy sees one address."""
    address = IPv6Address(number)
    dotted = (
        ":".join(address.exploded.split(":")[:6])
        + f":{IPv6Address(number).packed[12]}."
        + ".".join(str(byte) for byte in address.packed[13:])
    )
    spellings = {address.exploded, address.exploded.upper(), address.compressed, dotted}
    assert {parse_ipv6(spelling) for spelling in spellings} == {str(address)}
