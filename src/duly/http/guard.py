"""The last gate: aiohttp calls it once per address that it is about to connect to, and without it there is no socket.

Between this check and connect(2) on the same tuple there is no look-up and no await, so nothing can change in
between; and IP literals, retries and happy-eyeballs candidates all pass through it (a custom resolver is not even
asked about literals).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from typing import Any

from duly.http.addresses import Address
from duly.http.errors import AddressRefusedError, TargetNotAllowedError
from duly.http.policy import EgressPolicy

AddrInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
_FAMILY_OF_VERSION = {4: socket.AF_INET, 6: socket.AF_INET6}


def check_dial(policy: EgressPolicy, host: str, family: int, sockaddr: object) -> Address:
    """The address of a sockaddr, or AddressRefusedError. Only canonical internet addresses pass; no paths, no names."""
    try:
        if not isinstance(sockaddr, tuple) or len(sockaddr) < 2:
            raise AddressRefusedError
        address = ip_address(sockaddr[0])  # a name or 127.1 raises: connect(2) can never resolve by itself
        if not isinstance(sockaddr[0], str) or family != _FAMILY_OF_VERSION[address.version]:
            raise AddressRefusedError
        if any(part != 0 for part in sockaddr[2:]):  # flow label, zone
            raise AddressRefusedError
        policy.check_address(address, int(sockaddr[1]), host)
    except (ValueError, TargetNotAllowedError) as error:
        raise AddressRefusedError from error
    return address


def guarded_sockets(
    policy: EgressPolicy, host: str, port: int, vetted: Iterable[Address]
) -> Callable[[AddrInfo], socket.socket]:
    """A `socket_factory` that opens sockets towards one port at the vetted addresses of one host, and no others."""
    pinned = frozenset(vetted)

    def open_socket(info: AddrInfo) -> socket.socket:
        check_pinned(policy, host, port, pinned, info)
        family, kind, protocol, _, _ = info
        return socket.socket(family, kind, protocol)

    return open_socket


def check_pinned(policy: EgressPolicy, host: str, port: int, vetted: Collection[Address], info: AddrInfo) -> Address:
    """The address that is about to be dialled, or AddressRefusedError unless it is one of those vetted for the host."""
    family, _, _, _, sockaddr = info
    address = check_dial(policy, host, family, sockaddr)
    if address not in vetted or sockaddr[1] != port:
        raise AddressRefusedError
    return address
