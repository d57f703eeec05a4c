"""URLs, headers, methods and stored requests beyond the rows."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.http import EgressPolicy, check_headers, new_request, parse_target
from duly.http.errors import AddressRefusedError
from duly.http.guard import check_dial, guarded_sockets
from duly.model.errors import InvalidInputError


@pytest.mark.parametrize(
    ("given_url", "canonical"),
    [
        ("HTTPS://EXAMPLE.com", "https://example.com/"),
        ("https://example.com.:443?x", "https://example.com/?x"),
        ("http://B\u00dcCHER.example.com/", "http://xn--bcher-kva.example.com/"),
        ("http://fa\u00df.example.com/", "http://xn--fa-hia.example.com/"),
        ("http://[2606:4700:4700:0:0:0:0:1111]:8080/", "http://[2606:4700:4700::1111]:8080/"),
        ("http://a.example.com/\u2603?\u2603=%E2%98%83", "http://a.example.com/%E2%98%83?%E2%98%83=%E2%98%83"),
        ("http://a_b.1a.example.com/", "http://a_b.1a.example.com/"),
    ],
)
def test_canonical_form(given_url: str, canonical: str) -> None:
    """One spelling is stored, and it parses to itself."""
    target = parse_target(given_url)
    assert target.url == canonical
    assert parse_target(canonical) == target


@pytest.mark.parametrize(
    "url",
    [
        "", "http://", "http://?x", "http://8.8.8.8./", "http://1.2.3.4.5/", "http://1.2.3/", "http://a.0x/",
        "http://a.0X1F/", "http://-a.example.com/", "http://a-.example.com/", "http://" + "a" * 64 + ".example.com/",
        "http://a%2eb.com/", "http://" + ".".join(["a" * 60] * 5) + "/", "http://[::1]x/", "http://[]/",
        "http://[::1]:/", "http://a[::1]/", "http://[2606:4700::1%25]/", "http://::1/", "http://example.com:00080/",
        "http://example.com:80:80/", "http://ex\u0430mple\u3002com/", "http://exam\u200dple.com/",
        "http://u\u0308.example.com/", "http://\u2488com/", "http://xn--.example.com/",
        "http://xn--bcher-kva-.example.com/", "http://example.com/\ud800", "http://example.com/\x85",
        "http://e\u0000.com/", "http://example.com\u2028/", "http://\u202eexample.com/", "http://a,b.com/",
        "http://a|b.com/", "http://example.com/\n", "\nhttp://example.com/", "http://[::ffff:0x7f.1]/",
        "http://\u0661.com.\u0661/",
    ],
)  # fmt: skip
def test_refused_urls(url: str) -> None:
    """Each is refused with a sentence that points at the URL."""
    with pytest.raises(InvalidInputError) as caught:
        parse_target(url)
    assert caught.value.pointer == "/url"
    assert len(str(caught.value)) > 20


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=0x2FFF), max_size=40))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    """No input raises anything else, and what is accepted is ASCII, canonical and stable."""
    for url in (text, "http://" + text, "http://example.com/" + text, f"http://{text}.example.com:80/"):
        try:
            target = parse_target(url)
        except InvalidInputError:
            continue
        assert target.url.isascii()
        assert parse_target(target.url) == target
        assert target.host == target.host.lower()


def test_url_length_is_counted_after_encoding() -> None:
    """8,192 octets pass, one more does not, and a non-ASCII letter counts six."""
    base = "https://example.com/"
    assert len(parse_target(base + "a" * (8192 - len(base))).url) == 8192
    for path in ("a" * (8193 - len(base)), "\u00e9" * 1400):
        with pytest.raises(InvalidInputError):
            parse_target(base + path)


@pytest.mark.parametrize(
    "name",
    [
        "content_length", "Transfer_Encoding", "webhook_id", "Duly-Job-Id", "DULY-X", "Proxy-Authorization", "proxy-x",
        "Sec-WebSocket-Key", "X-Jobs-A", "webhook-signature", "caf\u00e9", "X-\u212a", "X\n", "X-A:", "\tX", "X ",
    ],
)  # fmt: skip
def test_refused_header_names(name: str) -> None:
    """FO-065: reserved names in any case and with underscores, and what is no token."""
    with pytest.raises(InvalidInputError):
        check_headers([(name, "v")])


@pytest.mark.parametrize("value", [" v", "v ", "\tv", "v\n", "\nv", "v\x00", "v\x7f", "v\x80", "\u2603", "a\r\n b"])
def test_refused_header_values(value: str) -> None:
    """FO-065: no line break, control, non-ASCII character or outer white space."""
    with pytest.raises(InvalidInputError):
        check_headers([("X-A", value)])


def test_header_limits() -> None:
    """64 headers and 32 KB pass, more do not; 256 octets of name."""
    assert len(check_headers([("X", "v")] * 64)) == 64
    assert check_headers([("n" * 256, "v\tw x")]) == (("n" * 256, "v\tw x"),)
    assert check_headers([("X", "v" * 32767)])
    for pairs in ([("X", "v")] * 65, [("X", "v" * 32768)], [("n" * 257, "v")]):
        with pytest.raises(InvalidInputError):
            check_headers(pairs)


def test_request_parts_are_all_checked() -> None:
    """Bodies with GET or HEAD, unknown methods, hop counts and bad pairs are refused, each with its pointer."""
    url = "https://example.com/"
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: new_request(url, "GET", body=b"x"), "/body"),
        (lambda: new_request(url, "HEAD", body=b"x"), "/body"),
        (lambda: new_request(url, "TRACE"), "/method"),
        (lambda: new_request(url, hops=8), "/hops"),
        (lambda: new_request(url, hops=-1), "/hops"),
        (lambda: new_request(url, hops=True), "/hops"),
        (lambda: new_request(url, headers=["ab", "cde"]), "/headers"),  # type: ignore[list-item]
        (lambda: new_request(url, headers=[(1, "a")]), "/headers"),  # type: ignore[list-item]
        (lambda: new_request(url, headers=[("A", "b"), ("Host", "x")]), "/headers/1"),
    ]
    for make, pointer in cases:
        with pytest.raises(InvalidInputError) as caught:
            make()
        assert caught.value.pointer == pointer
    for method in ("GET", "HEAD"):
        with pytest.raises(InvalidInputError, match="has no body"):
            new_request(url, method, body=b"")
    assert new_request(url, hops=7).hops == 7


@pytest.mark.parametrize(
    "sockaddr",
    [
        ("127.0.0.1", 80), ("localhost", 80), ("127.1", 80), ("8.8.8.8", 22), (b"8.8.8.8", 80), (134744072, 80),
        "/var/run/docker.sock", b"\0abstract", ("8.8.8.8",), (), None, ("2606:4700::1", 80, 0, 0), ("8.8.8.8 ", 80),
    ],
)  # fmt: skip
def test_last_gate_refuses(sockaddr: object) -> None:
    """Whatever is no vetted, canonical IPv4 sockaddr raises the OSError that stands for a refused dial."""
    with pytest.raises(AddressRefusedError):
        check_dial(EgressPolicy(), "a.example.com", socket.AF_INET, sockaddr)


def test_last_gate_refuses_zones() -> None:
    """A scope in the tuple or in the text is refused, on a public address too."""
    for sockaddr in (("2606:4700::1", 80, 0, 3), ("2606:4700::1%lo", 80, 0, 0), ("2606:4700::1", 80, 1, 0)):
        with pytest.raises(AddressRefusedError):
            check_dial(EgressPolicy(), "a.example.com", socket.AF_INET6, sockaddr)
    check_dial(EgressPolicy(), "a.example.com", socket.AF_INET6, ("2606:4700::1", 80, 0, 0))


def test_sockets_are_opened_towards_vetted_addresses_only() -> None:
    """An allowed address that was not vetted for this host gets no socket either."""
    target = parse_target("http://127.0.0.1/")
    policy = EgressPolicy.parse(allow_loopback=True)
    address = check_dial(policy, target.host, socket.AF_INET, ("127.0.0.1", 80))
    opened = guarded_sockets(policy, target.host, 80, [address])
    opened((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))).close()
    for other in (("127.0.0.2", 80), ("127.0.0.1", 8080)):
        with pytest.raises(AddressRefusedError):
            opened((socket.AF_INET, socket.SOCK_STREAM, 0, "", other))
