"""What an operator lets jobs reach: ports, names, addresses. Pure.

Order at an address: own addresses, deny entries, classes that nothing opens, ports; then public addresses pass, and
others only through an allow entry for their range or for the exact name. Deny wins. Allow entries never open ports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from duly.http.addresses import NEVER_OPENED, Address, AddressClass, Network, kind_of
from duly.http.errors import TargetNotAllowedError
from duly.http.hostname import parse_host
from duly.http.ports import BAD_PORTS, is_open_port
from duly.http.url import Target
from duly.model.errors import InvalidInputError

ALLOW_SETTING = "DULY_EGRESS_ALLOW"
DENY_SETTING = "DULY_EGRESS_DENY"
PORTS_SETTING = "DULY_EGRESS_PORTS"

_REMEMBERED = 4096
_REMEMBERED_LENGTH = 512

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

# RFC 6761, RFC 6762, RFC 7686, RFC 8375, RFC 9476, ICANN's reservation of .internal; and suffixes that exist only
# inside (search lists, home routers, clusters) or outside DNS.
SPECIAL_SUFFIXES = frozenset(
    [
        "alt",
        "arpa",
        "example",
        "internal",
        "invalid",
        "local",
        "localhost",
        "onion",
        "test",
        "broadcasthost",
        "consul",
        "corp",
        "default",
        "docker",
        "home",
        "intranet",
        "lan",
        "localdomain",
        "localdomain6",
        "localhost6",
        "mail",
        "private",
        "svc",
        "bit",
        "exit",
        "gnu",
        "i2p",
    ]
)
# Public-looking names that clouds answer with their metadata address.
METADATA_NAMES = frozenset({"metadata.goog", "metadata.tencentyun.com"})


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The operator's rules. Empty: public addresses on open ports, nothing else.

    `own` holds (address, port) of the service's database and listeners; port None means every port.
    """

    allow: tuple[Network, ...] = ()
    allow_hosts: frozenset[str] = frozenset()
    deny: tuple[Network, ...] = ()
    deny_hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    own: frozenset[tuple[Address, int | None]] = frozenset()
    _passed: set[Target] = field(default_factory=set, init=False, compare=False, repr=False)

    @classmethod
    def parse(
        cls,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        ports: Iterable[int | str] = (),
        own: Iterable[str] = (),
        *,
        allow_loopback: bool = False,
    ) -> EgressPolicy:
        """Read settings: ranges and `host=name` entries, port numbers, own addresses as ip, ip:port or [ip]:port.

        `allow_loopback` opens 127.0.0.0/8 and ::1, for a developer's machine.
        """
        allow_ranges, allow_hosts = _read_entries(allow, ALLOW_SETTING)
        deny_ranges, deny_hosts = _read_entries(deny, DENY_SETTING)
        return cls(
            allow=(*allow_ranges, *LOOPBACK) if allow_loopback else allow_ranges,
            allow_hosts=allow_hosts,
            deny=deny_ranges,
            deny_hosts=deny_hosts,
            ports=frozenset(_read_port(port, PORTS_SETTING) for port in ports),
            own=frozenset(_read_own(entry) for entry in own),
        )

    @property
    def opens_loopback(self) -> bool:
        """True when an operator opened both 127.0.0.1 and ::1; `localhost` is then an allowed name."""
        return all(_contains(self.allow, ip_address(text)) for text in ("127.0.0.1", "::1"))

    def check_target(self, target: Target) -> None:
        """Raise TargetNotAllowedError unless the target may be asked for: its port, its name, or its literal
        address.

        The rules never change, so what passed lately is remembered: the same targets come again, at each create and at
        each delivery.
        """
        if target in self._passed:
            return
        if target.is_literal:
            self._check_literal(ip_address(target.host), target.port)
        else:
            self._check_port(target.port)
            self._check_name(target.host)
        if len(target.path_and_query) > _REMEMBERED_LENGTH:
            return
        if len(self._passed) >= _REMEMBERED:
            self._passed.clear()
        self._passed.add(target)

    def check_address(self, address: Address, port: int, host: str) -> None:
        """Raise TargetNotAllowedError unless this very address may be dialled for `host`. The message never names
        it."""
        if self._is_own(address, port) or not self._is_reachable(address, host):
            raise _not_allowed("target address not allowed", "address", ALLOW_SETTING)
        self._check_port(port)

    def _check_literal(self, address: Address, port: int) -> None:
        kind = kind_of(address)
        if not self._is_reachable(address, str(address)):
            if _contains(self.deny, address):
                raise _not_allowed("target address not allowed: a deny entry covers it", "deny", DENY_SETTING)
            if kind in NEVER_OPENED:
                raise _not_allowed(f"target address not allowed: {kind} addresses are never reachable", kind, "none")
            raise _not_allowed(f"target address not allowed: {kind} addresses are closed", kind, ALLOW_SETTING)
        self.check_address(address, port, str(address))

    def _is_reachable(self, address: Address, host: str) -> bool:
        kind = kind_of(address)
        if _contains(self.deny, address) or host in self.deny_hosts or kind in NEVER_OPENED:
            return False
        return kind is AddressClass.PUBLIC or host in self.allow_hosts or _contains(self.allow, address)

    def _is_own(self, address: Address, port: int) -> bool:
        if (address, port) in self.own or (address, None) in self.own:
            return True
        # A listener on every interface, or on one loopback address, is reached through any loopback address.
        return kind_of(address) is AddressClass.LOOPBACK and any(
            own_port in (port, None) and (own.is_unspecified or own.is_loopback) for own, own_port in self.own
        )

    def _check_port(self, port: int) -> None:
        if port in self.ports or is_open_port(port):
            return
        why = BAD_PORTS.get(port, "ports below 1024 other than 80 and 443 are closed")
        raise _not_allowed(f"target port {port} not allowed ({why})", "port", PORTS_SETTING)

    def _check_name(self, host: str) -> None:
        if host in self.deny_hosts:
            raise _not_allowed("target name not allowed: a deny entry names it", "deny", DENY_SETTING)
        if host in self.allow_hosts or (host == "localhost" and self.opens_loopback):
            return
        if "." not in host:
            raise _not_allowed(
                "target name not allowed: names without a dot are closed", "single_label", f"{ALLOW_SETTING}=host=…"
            )
        if host.rpartition(".")[2] in SPECIAL_SUFFIXES or host in METADATA_NAMES:
            raise _not_allowed(
                "target name not allowed: special-use names are closed", "special_use", f"{ALLOW_SETTING}=host=…"
            )


def _contains(networks: tuple[Network, ...], address: Address) -> bool:
    return any(address in network for network in networks)


def _not_allowed(what: str, rule: str, setting: str) -> TargetNotAllowedError:
    hint = f" (an operator can change this with {setting})" if setting.startswith("DULY_") else ""
    return TargetNotAllowedError(what + hint, rule=rule, setting=setting)


def _read_entries(entries: Iterable[str], setting: str) -> tuple[tuple[Network, ...], frozenset[str]]:
    ranges: list[Network] = []
    hosts: set[str] = set()
    for entry in (raw.strip() for raw in entries):
        if entry.startswith("host="):
            hosts.add(_read_host(entry, setting))
        else:
            ranges.append(_read_range(entry, setting))
    return tuple(ranges), frozenset(hosts)


def _read_range(entry: str, setting: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise InvalidInputError(
            f"{setting}: {entry!r} is neither a range such as 10.0.0.0/8 nor host=exact.name ({error})"
        ) from error


def _read_host(entry: str, setting: str) -> str:
    try:
        host, is_literal = parse_host(entry.removeprefix("host="))
    except InvalidInputError as error:
        raise InvalidInputError(f"{setting}: {entry!r} is not an exact host name ({error})") from error
    if is_literal:
        raise InvalidInputError(f"{setting}: {entry!r} is an address: write it as a range, without host=")
    return host


def _read_port(port: int | str, setting: str) -> int:
    text = str(port).strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise InvalidInputError(f"{setting}: {port!r} is not a port: write a number from 1 to 65535")
    return int(text)


def _read_own(entry: str) -> tuple[Address, int | None]:
    host, port = entry, None
    if entry.startswith("["):
        host, _, after = entry[1:].partition("]")
        port = _read_port(after.removeprefix(":"), "own addresses") if after else None
    elif entry.count(":") == 1:
        host, _, after = entry.partition(":")
        port = _read_port(after, "own addresses")
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError as error:
        raise InvalidInputError(
            f"own addresses: {entry!r} is not ip, ip:port or [ip]:port: resolve names first"
        ) from error
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, port
