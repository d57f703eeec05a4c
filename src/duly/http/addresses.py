"""The address tables: which addresses are public, and what kind the others are.

Tables of our own, because of 99 special addresses Python's `is_private` misses 37 and `is_global` passes 34. The
longest prefix decides. IPv6 is public only inside 2000::/3, minus the entries below.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressClass(StrEnum):
    """What kind of address it is. Everything but `public` is denied unless an operator opens it."""

    PUBLIC = "public"
    BENCHMARKING = "benchmarking"
    BROADCAST = "broadcast"
    DISCARD = "discard"
    DOCUMENTATION = "documentation"
    EMBEDDED = "embedded"
    LINK_LOCAL = "link_local"
    LOOPBACK = "loopback"
    METADATA = "metadata"
    MULTICAST = "multicast"
    PRIVATE = "private"
    PROTOCOL = "protocol"
    RELAY = "relay"
    RESERVED = "reserved"
    SHARED = "shared"
    SITE_LOCAL = "site_local"
    SRV6 = "srv6"
    THIS_NETWORK = "this_network"
    UNASSIGNED = "unassigned"

    @property
    def is_denied(self) -> bool:
        """True for every class but public."""
        return self is not AddressClass.PUBLIC


# No allow entry opens these: metadata hands out credentials; 0.0.0.0 and embedded forms are other addresses in
# disguise; one cannot make an HTTP request to a group.
NEVER_OPENED = frozenset(
    {
        AddressClass.METADATA,
        AddressClass.THIS_NETWORK,
        AddressClass.EMBEDDED,
        AddressClass.MULTICAST,
        AddressClass.BROADCAST,
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the tables: addresses, their class, why, and the source."""

    network: Network
    kind: AddressClass
    reason: str


def _entry(network: str, kind: AddressClass, reason: str) -> Entry:
    return Entry(ip_network(network), kind, reason)


_C = AddressClass

IPV4_TABLE = (
    _entry("0.0.0.0/8", _C.THIS_NETWORK, "reaches loopback on Linux; RFC 791, RFC 1122"),
    _entry("10.0.0.0/8", _C.PRIVATE, "RFC 1918"),
    _entry("100.64.0.0/10", _C.SHARED, "carrier-grade NAT, overlay networks; RFC 6598"),
    _entry("127.0.0.0/8", _C.LOOPBACK, "RFC 1122"),
    _entry("169.254.0.0/16", _C.LINK_LOCAL, "RFC 3927"),
    _entry("172.16.0.0/12", _C.PRIVATE, "RFC 1918; Docker's default bridges"),
    _entry("192.0.0.0/24", _C.PROTOCOL, "IETF protocol assignments; RFC 6890"),
    _entry("192.0.2.0/24", _C.DOCUMENTATION, "TEST-NET-1; RFC 5737"),
    _entry("192.88.99.0/24", _C.RELAY, "6to4 relay anycast, withdrawn; RFC 7526"),
    _entry("192.168.0.0/16", _C.PRIVATE, "RFC 1918"),
    _entry("198.18.0.0/15", _C.BENCHMARKING, "RFC 2544; also fake-IP proxies"),
    _entry("198.51.100.0/24", _C.DOCUMENTATION, "TEST-NET-2; RFC 5737"),
    _entry("203.0.113.0/24", _C.DOCUMENTATION, "TEST-NET-3; RFC 5737"),
    _entry("224.0.0.0/4", _C.MULTICAST, "RFC 5771"),
    _entry("240.0.0.0/4", _C.RESERVED, "RFC 1112"),
    _entry("255.255.255.255/32", _C.BROADCAST, "limited broadcast; RFC 919"),
    _entry("100.100.100.200/32", _C.METADATA, "Alibaba Cloud metadata"),
    _entry("168.63.129.16/32", _C.METADATA, "Azure platform address (WireServer), globally routable by registry"),
    _entry("169.254.0.23/32", _C.METADATA, "Tencent Cloud metadata"),
    _entry("169.254.42.42/32", _C.METADATA, "Scaleway metadata"),
    _entry("169.254.169.0/24", _C.METADATA, "AWS, GCP, Azure, OCI, DigitalOcean, Hetzner metadata, resolver and time"),
    _entry("169.254.170.0/24", _C.METADATA, "ECS task and EKS pod credentials"),
    _entry("192.0.0.192/32", _C.METADATA, "Oracle Cloud classic metadata"),
)

IPV6_TABLE = (
    _entry("::/128", _C.THIS_NETWORK, "unspecified, reaches loopback on Linux; RFC 4291"),
    _entry("::1/128", _C.LOOPBACK, "RFC 4291"),
    _entry("::/96", _C.EMBEDDED, "IPv4-compatible, deprecated; RFC 4291"),
    _entry("::ffff:0:0/96", _C.EMBEDDED, "IPv4-mapped; RFC 4291"),
    _entry("::ffff:0:0:0/96", _C.EMBEDDED, "IPv4-translated; RFC 2765"),
    _entry("64:ff9b::/96", _C.EMBEDDED, "NAT64 well-known prefix; RFC 6052"),
    _entry("64:ff9b:1::/48", _C.EMBEDDED, "NAT64 local use; RFC 8215"),
    _entry("100::/64", _C.DISCARD, "RFC 6666"),
    _entry("100:0:0:1::/64", _C.DISCARD, "dummy prefix; RFC 9780"),
    _entry("2001::/23", _C.PROTOCOL, "IETF protocol assignments, ORCHID, benchmarking; RFC 2928"),
    _entry("2001::/32", _C.EMBEDDED, "Teredo; RFC 4380"),
    _entry("2001:db8::/32", _C.DOCUMENTATION, "RFC 3849"),
    _entry("2002::/16", _C.EMBEDDED, "6to4; RFC 3056"),
    _entry("3fff::/20", _C.DOCUMENTATION, "RFC 9637"),
    _entry("5f00::/16", _C.SRV6, "segment routing identifiers; RFC 9602"),
    _entry("fc00::/7", _C.PRIVATE, "unique local; RFC 4193"),
    _entry("fe80::/10", _C.LINK_LOCAL, "RFC 4291"),
    _entry("fec0::/10", _C.SITE_LOCAL, "deprecated; RFC 3879"),
    _entry("ff00::/8", _C.MULTICAST, "RFC 4291"),
    _entry("fd00:42::42/128", _C.METADATA, "Scaleway metadata"),
    _entry("fd00:ec2::/32", _C.METADATA, "AWS metadata, resolver, time, pod identity"),
    _entry("fd20:ce::254/128", _C.METADATA, "GCP metadata"),
)

_PUBLIC_IPV6 = IPv6Network("2000::/3")
_ISATAP_MARKS = (0x00005EFE, 0x02005EFE)  # RFC 5214: the interface id holds an IPv4 address


@lru_cache(maxsize=8192)
def kind_of(address: Address) -> AddressClass:
    """`classify` by the tables as they stand, remembered: it is asked several times per attempt and once more at every
    socket."""
    return classify(address)


def classify(
    address: Address, *, ipv4: tuple[Entry, ...] = IPV4_TABLE, ipv6: tuple[Entry, ...] = IPV6_TABLE
) -> AddressClass:
    """The class of an address; pure. (The tables are parameters for the tests that take entries away.)"""
    if isinstance(address, IPv4Address):
        return _longest_match(address, ipv4) or AddressClass.PUBLIC
    if address.scope_id is not None:
        return AddressClass.LINK_LOCAL
    listed = _longest_match(address, ipv6)
    if listed is not None:
        return listed
    if address not in _PUBLIC_IPV6:
        return AddressClass.UNASSIGNED
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP_MARKS:
        return AddressClass.EMBEDDED
    return AddressClass.PUBLIC


def _longest_match(address: Address, table: tuple[Entry, ...]) -> AddressClass | None:
    matches = [entry for entry in table if address in entry.network]
    return max(matches, key=lambda entry: entry.network.prefixlen).kind if matches else None
