"""The address tables: every entry is needed, and no mask is too wide or too narrow."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from duly.http.addresses import IPV4_TABLE, IPV6_TABLE, NEVER_OPENED, AddressClass, Entry, classify

# One line per entry: an address inside that no other entry decides, and its class. Written apart from the tables.
PROBES = """
0.0.0.0 this_network
0.255.255.255 this_network
10.255.255.255 private
100.64.0.0 shared
100.127.255.255 shared
127.0.0.0 loopback
127.255.255.255 loopback
169.254.0.0 link_local
169.254.255.255 link_local
172.16.0.0 private
172.31.255.255 private
192.0.0.0 protocol
192.0.0.255 protocol
192.0.2.0 documentation
192.0.2.255 documentation
192.88.99.0 relay
192.88.99.255 relay
192.168.0.0 private
192.168.255.255 private
198.18.0.0 benchmarking
198.19.255.255 benchmarking
198.51.100.0 documentation
198.51.100.255 documentation
203.0.113.0 documentation
203.0.113.255 documentation
224.0.0.0 multicast
239.255.255.255 multicast
240.0.0.0 reserved
255.255.255.254 reserved
255.255.255.255 broadcast
100.100.100.200 metadata
100.100.100.199 shared
100.100.100.201 shared
168.63.129.16 metadata
169.254.0.23 metadata
169.254.0.22 link_local
169.254.42.42 metadata
169.254.42.43 link_local
169.254.169.0 metadata
169.254.169.254 metadata
169.254.168.255 link_local
169.254.170.2 metadata
169.254.171.0 link_local
192.0.0.192 metadata
192.0.0.191 protocol
:: this_network
::1 loopback
::2 embedded
::127.0.0.1 embedded
::ffff:8.8.8.8 embedded
::ffff:0:127.0.0.1 embedded
64:ff9b::1 embedded
64:ff9b:1::1 embedded
64:ff9b:1:ffff:ffff:ffff:ffff:ffff embedded
64:ff9b:2::1 unassigned
100::1 discard
100:0:0:1::1 discard
100:0:0:2::1 unassigned
2001::1 embedded
2001:1::1 protocol
2001:1ff:ffff::1 protocol
2001:db8::1 documentation
2002::1 embedded
2002:ffff:ffff::1 embedded
3fff::1 documentation
3fff:fff:ffff::1 documentation
4000::1 unassigned
1fff:ffff::1 unassigned
5f00::1 srv6
fc00::1 private
fdff:ffff::1 private
fe00::1 unassigned
fe80::1 link_local
febf:ffff::1 link_local
fec0::1 site_local
feff:ffff::1 site_local
ff00::1 multicast
ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff multicast
fd00:42::42 metadata
fd00:42::41 private
fd00:ec2::23 metadata
fd00:ec2:ffff::1 metadata
fd00:ec3::1 private
fd20:ce::254 metadata
fd20:ce::253 private
2606:4700:0:1:0:5efe:7f00:1 embedded
2606:4700:0:1:200:5efe:808:808 embedded
0.0.0.0 this_network
1.0.0.0 public
9.255.255.255 public
11.0.0.0 public
100.63.255.255 public
100.128.0.0 public
126.255.255.255 public
128.0.0.0 public
169.253.255.255 public
169.255.0.0 public
168.63.129.15 public
168.63.129.17 public
172.15.255.255 public
172.32.0.0 public
191.255.255.255 public
192.0.1.0 public
192.0.3.0 public
192.88.98.255 public
192.88.100.0 public
192.167.255.255 public
192.169.0.0 public
198.17.255.255 public
198.20.0.0 public
198.51.99.255 public
198.51.101.0 public
203.0.112.255 public
203.0.114.0 public
223.255.255.255 public
2000::1 public
2001:200::1 public
2001:db7:ffff::1 public
2001:db9::1 public
2003::1 public
3fff:1000::1 public
3ffe:ffff::1 public
3eff::1 public
"""
EXPECTED = [(text, AddressClass(kind)) for text, kind in (line.split() for line in PROBES.split("\n") if line)]


@pytest.mark.parametrize(("text", "kind"), EXPECTED)
def test_class_of_a_boundary_address(text: str, kind: AddressClass) -> None:
    """Both ends of every range, and the neighbours outside."""
    assert classify(ip_address(text)) is kind
    assert kind.is_denied is (kind is not AddressClass.PUBLIC)


@pytest.mark.parametrize("entry", [*IPV4_TABLE, *IPV6_TABLE], ids=lambda entry: str(entry.network))
def test_no_entry_can_be_taken_away(entry: Entry) -> None:
    """Mutation: without the entry, some probe gets another class, so the test above would fail."""
    ipv4 = tuple(other for other in IPV4_TABLE if other is not entry)
    ipv6 = tuple(other for other in IPV6_TABLE if other is not entry)
    assert any(classify(ip_address(text), ipv4=ipv4, ipv6=ipv6) is not kind for text, kind in EXPECTED)


@pytest.mark.parametrize("entry", [*IPV4_TABLE, *IPV6_TABLE], ids=lambda entry: str(entry.network))
def test_every_entry_has_a_reason(entry: Entry) -> None:
    """Data comes with its source."""
    assert entry.reason
    assert entry.kind is not AddressClass.PUBLIC


def test_scoped_addresses_are_never_public() -> None:
    """A zone id makes any address a local matter."""
    assert classify(ip_address("2606:4700::1%eth0")) is AddressClass.LINK_LOCAL


def test_what_nothing_opens() -> None:
    """Metadata, disguises and groups stay closed under any allow entry."""
    names = {"metadata", "this_network", "embedded", "multicast", "broadcast"}
    assert {str(kind) for kind in NEVER_OPENED} == names
