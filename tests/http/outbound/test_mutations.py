"""No entry of any table can be taken away, or be wider or narrower, without a test that fails.

What is right is written down a second time here, in another form: address ranges as first and last address, by the
smallest range that holds an address; ports, suffixes and header names as they stand in their sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from duly.http import EgressPolicy, check_headers, check_method, parse_target
from duly.http.addresses import IPV4_TABLE, IPV6_TABLE, Address, AddressClass, Entry, Network, classify, kind_of
from duly.http.guard import check_dial
from duly.http.headers import METHODS, RESERVED_NAMES, RESERVED_PREFIXES, fault_of_name
from duly.http.policy import METADATA_NAMES, SPECIAL_SUFFIXES
from duly.http.ports import BAD_PORTS, is_open_port
from duly.model.errors import DulyError

from .ssrf_rows import is_allowed, read_rows

RANGES = """
0.0.0.0 0.255.255.255 this_network
10.0.0.0 10.255.255.255 private
100.64.0.0 100.127.255.255 shared
100.100.100.200 100.100.100.200 metadata
127.0.0.0 127.255.255.255 loopback
168.63.129.16 168.63.129.16 metadata
169.254.0.0 169.254.255.255 link_local
169.254.0.23 169.254.0.23 metadata
169.254.42.42 169.254.42.42 metadata
169.254.169.0 169.254.169.255 metadata
169.254.170.0 169.254.170.255 metadata
172.16.0.0 172.31.255.255 private
192.0.0.0 192.0.0.255 protocol
192.0.0.192 192.0.0.192 metadata
192.0.2.0 192.0.2.255 documentation
192.88.99.0 192.88.99.255 relay
192.168.0.0 192.168.255.255 private
198.18.0.0 198.19.255.255 benchmarking
198.51.100.0 198.51.100.255 documentation
203.0.113.0 203.0.113.255 documentation
224.0.0.0 239.255.255.255 multicast
240.0.0.0 255.255.255.255 reserved
255.255.255.255 255.255.255.255 broadcast
:: :: this_network
::1 ::1 loopback
:: ::ffff:ffff embedded
::ffff:0:0 ::ffff:ffff:ffff embedded
::ffff:0:0:0 ::ffff:0:ffff:ffff embedded
64:ff9b:: 64:ff9b::ffff:ffff embedded
64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff embedded
100:: 100::ffff:ffff:ffff:ffff discard
100:0:0:1:: 100:0:0:1:ffff:ffff:ffff:ffff discard
2001:: 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff protocol
2001:: 2001:0:ffff:ffff:ffff:ffff:ffff:ffff embedded
2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff documentation
2002:: 2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff embedded
3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff documentation
5f00:: 5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff srv6
fc00:: fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff private
fd00:42::42 fd00:42::42 metadata
fd00:ec2:: fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff metadata
fd20:ce::254 fd20:ce::254 metadata
fe80:: febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff link_local
fec0:: feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff site_local
ff00:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff multicast
"""
PUBLIC_V6 = (IPv6Address("2000::"), IPv6Address("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))

# Ports above 1023 in WHATWG Fetch ("bad port", 2.9), then the infrastructure that trusts whoever reaches it.
FETCH_PORTS = {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080}
INSIDE_PORTS = {
    1433, 1434, 1521, 1883, 2181, 2375, 2376, 2377, 2379, 2380, 3306, 3389, 4222, 4369, 5432, 5433, 5671, 5672, 5900,
    5985, 5986, 6379, 6380, 6432, 6443, 7000, 7001, 8300, 8301, 8302, 8500, 9042, 9092, 9200, 9300, 9418, 10250, 10255,
    10256, 11211, 26257, 27017, 27018, 27019, 50070, 61613, 61616,
}  # fmt: skip
SUFFIXES = {
    "alt", "arpa", "example", "internal", "invalid", "local", "localhost", "onion", "test", "broadcasthost", "consul",
    "corp", "default", "docker", "home", "intranet", "lan", "localdomain", "localdomain6", "localhost6", "mail",
    "private", "svc", "bit", "exit", "gnu", "i2p",
}  # fmt: skip
NAMES = {
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
PREFIXES = {"duly-", "proxy-", "sec-websocket-", "webhook-", "x-jobs-", "x-smokescreen-"}


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """No verdict of a changed table is remembered for the next test."""
    yield
    forget()


def forget() -> None:
    """Let the tables be asked again."""
    kind_of.cache_clear()
    fault_of_name.cache_clear()


def _ranges() -> list[tuple[Address, Address, AddressClass]]:
    lines = (line.split() for line in RANGES.split("\n") if line)
    return [(ip_address(first), ip_address(last), AddressClass(kind)) for first, last, kind in lines]


_RANGES = _ranges()


@cache
def expected(address: Address) -> AddressClass:
    """The class by the ranges above."""
    inside = [
        (int(last) - int(first), kind)
        for first, last, kind in _RANGES
        if first.version == address.version and int(first) <= int(address) <= int(last)
    ]
    if inside:
        return min(inside, key=lambda one: one[0])[1]
    if isinstance(address, IPv6Address) and not PUBLIC_V6[0] <= address <= PUBLIC_V6[1]:
        return AddressClass.UNASSIGNED
    return AddressClass.PUBLIC


def around(first: Address, last: Address) -> Iterator[Address]:
    """First and last, the ones just outside, the second, the last but one and the middle."""
    kind: type[IPv4Address] | type[IPv6Address] = type(first)
    low, high = int(first), int(last)
    for number in {low - 1, low, low + 1, (low + high) // 2, high - 1, high, high + 1}:
        if 0 <= number < 1 << (32 if first.version == 4 else 128):
            yield kind(number)


PROBES = sorted(
    {
        address
        for first, last in [(first, last) for first, last, _ in _RANGES] + [PUBLIC_V6]
        for address in around(first, last)
    },
    key=lambda address: (address.version, int(address)),
)
ONLY_NAMED = {"::/128", "100::/64", "100:0:0:1::/64", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10"}
WIDE_OPEN = EgressPolicy.parse(["0.0.0.0/0", "::/0"])


def _neighbours(network: Network) -> Iterator[Network]:
    if network.prefixlen > 0:
        yield network.supernet()
    if network.prefixlen < network.max_prefixlen:
        yield from network.subnets()


def test_tables_and_ranges_agree() -> None:
    """At every boundary of either."""
    assert [address for address in PROBES if classify(address) is not expected(address)] == []
    for entry in (*IPV4_TABLE, *IPV6_TABLE):
        for address in around(entry.network[0], entry.network[-1]):
            assert classify(address) is expected(address), address


@pytest.mark.parametrize("entry", [*IPV4_TABLE, *IPV6_TABLE], ids=lambda entry: f"{entry.network}-{entry.kind}")
def test_every_change_of_an_address_entry_is_noticed(entry: Entry) -> None:
    """Removed, doubled in size, halved either way, or of another class: some boundary address gets another class."""
    table = IPV4_TABLE if entry in IPV4_TABLE else IPV6_TABLE
    side = "ipv4" if table is IPV4_TABLE else "ipv6"
    near = [probe for probe in PROBES if probe.version == entry.network.version]
    mutants: list[list[Entry]] = [[]]
    mutants += [[replace(entry, network=network)] for network in _neighbours(entry.network)]
    mutants += [[replace(entry, kind=kind)] for kind in AddressClass if kind is not entry.kind]
    for instead in mutants:
        mutated = tuple(one for old in table for one in (instead if old is entry else [old]))
        is_noticed = any(classify(probe, **{side: mutated}) is not expected(probe) for probe in near)
        assert is_noticed or _is_the_same(instead, side, mutated), instead


def test_what_an_entry_taken_away_would_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out of the module, an entry changes what the last gate lets through, under the default policy or one that
    opens everything; but for those that only name what the rule for the rest of IPv6, or a wider entry, denies too."""
    silent = set()
    for side, table in (("ipv4", IPV4_TABLE), ("ipv6", IPV6_TABLE)):
        for entry in table:
            inside = [address for address in PROBES if address in entry.network]
            before = [_dials(address) for address in inside]
            with monkeypatch.context() as patch:
                without = tuple(old for old in table if old is not entry)
                patch.setattr(classify, "__kwdefaults__", {**(classify.__kwdefaults__ or {}), side: without})
                if before == [_dials(address) for address in inside]:
                    silent.add(str(entry.network))
    assert silent == ONLY_NAMED


def _is_the_same(instead: list[Entry], side: str, mutated: tuple[Entry, ...]) -> bool:
    """A wider range whose new half is wholly decided by longer prefixes changes nothing."""
    edges = [address for one in instead for address in around(one.network[0], one.network[-1])]
    return bool(edges) and all(classify(address, **{side: mutated}) is classify(address) for address in edges)


def _dials(address: Address) -> tuple[bool, bool]:
    forget()
    family, rest = (10, (0, 0)) if address.version == 6 else (2, ())
    verdicts = []
    for policy in (EgressPolicy(), WIDE_OPEN):
        try:
            check_dial(policy, "a.example.com", family, (str(address), 443, *rest))
        except OSError:
            verdicts.append(False)
        else:
            verdicts.append(True)
    return verdicts[0], verdicts[1]


async def test_rows_alone_notice_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the whole of either address table, rows of ssrf-cases.tsv fail in dozens: they do reach the tables."""
    rows = [row for row in read_rows() if row.prefix in ("", "dial", "dns") and not row.is_allowed]
    for side, at_least in (("ipv4", 25), ("ipv6", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(classify, "__kwdefaults__", {**(classify.__kwdefaults__ or {}), side: ()})
            forget()
            wrong = [row.text for row in rows if await is_allowed(row, EgressPolicy())]
        assert len(wrong) >= at_least, wrong


def test_ports_are_those_of_the_sources() -> None:
    """Not one less and not one more; 80, 443 and the rest from 1024 are open."""
    assert set(BAD_PORTS) == FETCH_PORTS | INSIDE_PORTS
    closed = FETCH_PORTS | INSIDE_PORTS | (set(range(1024)) - {80, 443})
    assert {port for port in range(-1, 65540) if not is_open_port(port)} == closed | {-1, *range(65536, 65540)}


@pytest.mark.parametrize("port", sorted(FETCH_PORTS | INSIDE_PORTS))
def test_every_bad_port_is_needed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken away, the port opens for names, literals and dials."""
    assert not _allows(f"http://example.com:{port}/")
    monkeypatch.delitem(BAD_PORTS, port)
    assert _allows(f"http://example.com:{port}/")
    assert _allows(f"http://8.8.8.8:{port}/")
    assert str(check_dial(EgressPolicy(), "a.example.com", 2, ("8.8.8.8", port))) == "8.8.8.8"


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_special_suffix_is_needed(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken away, a name below it opens; names that only contain it are open anyhow."""
    assert _allows(f"http://{suffix}.example.com/")
    assert _allows(f"http://a.x{suffix}/")
    assert not _allows(f"http://a.{suffix.upper()}./")
    monkeypatch.setattr("duly.http.policy.SPECIAL_SUFFIXES", SPECIAL_SUFFIXES - {suffix})
    assert _allows(f"http://a.{suffix}/")


@pytest.mark.parametrize("name", ["metadata.goog", "metadata.tencentyun.com"])
def test_every_metadata_name_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken away, the name would be looked up."""
    assert not _allows(f"http://{name}/")
    monkeypatch.setattr("duly.http.policy.METADATA_NAMES", METADATA_NAMES - {name})
    assert _allows(f"http://{name}/")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_reserved_header_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken away, users could set it, in any case and with underscores."""
    for spelling in (name, name.upper(), name.title(), name.replace("-", "_")):
        assert not _header(spelling)
    monkeypatch.delitem(RESERVED_NAMES, name)
    forget()
    assert _header(name)


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_every_reserved_prefix_is_needed(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for prefixes."""
    for spelling in (prefix + "x", prefix.upper() + "X", prefix.replace("-", "_") + "x"):
        assert not _header(spelling)
    assert _header("x-" + prefix + "x") or prefix.startswith("x-")
    monkeypatch.delitem(RESERVED_PREFIXES, prefix)
    forget()
    assert _header(prefix + "x")


def test_tables_hold_nothing_else() -> None:
    """What is in the code is here, too."""
    assert set(RESERVED_NAMES) == NAMES
    assert set(RESERVED_PREFIXES) == PREFIXES
    assert set(SPECIAL_SUFFIXES) == SUFFIXES
    assert {"metadata.goog", "metadata.tencentyun.com"} == METADATA_NAMES
    assert {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} == METHODS
    for method in METHODS:
        assert check_method(method) == method


def _allows(url: str) -> bool:
    try:
        EgressPolicy().check_target(parse_target(url))
    except DulyError:
        return False
    return True


def _header(name: str) -> bool:
    try:
        check_headers([(name, "v")])
    except DulyError:
        return False
    return True
