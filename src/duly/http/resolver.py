"""From a host name to the addresses that may be dialled: one look-up per attempt, every answer vetted.

Off the thread pool (aiodns), because a few hanging names would otherwise stall every job. Absolute names only: no
search list and no environment variable can turn a public name into an internal one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Protocol

import aiodns

from duly.http.addresses import Address
from duly.http.errors import DnsError, TargetNotAllowedError
from duly.http.hosts_file import HostsFile
from duly.http.policy import EgressPolicy
from duly.http.url import Target

MAX_ANSWERS = 32
LOOKUP_LIMIT_S = 5.0
# How long the slower family may lag behind the first good answer (RFC 8305, section 3, says 50 ms; DNS over a lossy
# link repeats after more than that).
SECOND_ANSWER_S = 0.25


class Resolver(Protocol):
    """Looks one name up in one address family. Addresses as text; raises DnsError when there are none or none came.

    With a method `at_hand(host)` it says what it knows without asking anybody: the addresses of both families, in the
    order to be tried. Only a name that it does not have is looked up then.
    """

    async def lookup(self, host: str, family: socket.AddressFamily) -> Sequence[str]: ...

    async def close(self) -> None: ...


class SystemResolver:
    """The machine's hosts file, then its name servers, through c-ares. Create it inside a running loop."""

    def __init__(
        self, hosts: HostsFile | None = None, nameservers: Sequence[str] | None = None, **options: Any
    ) -> None:
        self._hosts = hosts or HostsFile()
        # Given explicitly, so that RES_OPTIONS and LOCALDOMAIN have nothing left to decide. Six tries, since c-ares
        # makes the first as short as a quarter of a second where others are answered quickly, and from there doubles
        # at random: with four the last question could go out within the first second. The five seconds are ours.
        settings: dict[str, Any] = {"timeout": 2.0, "tries": 6, "domains": [], "ndots": 1, "rotate": False, **options}
        self._dns = aiodns.DNSResolver(nameservers, **settings)

    def at_hand(self, host: str) -> Sequence[str]:
        """Addresses of a name that the hosts file has, IPv6 first."""
        return sorted(self._hosts.addresses(host), key=lambda address: ":" not in address)

    async def lookup(self, host: str, family: socket.AddressFamily) -> Sequence[str]:
        """Addresses of a name without trailing dot."""
        listed = self._hosts.addresses(host)
        if listed:
            wanted = 6 if family == socket.AF_INET6 else 4
            return [address for address in listed if ip_address(address).version == wanted]
        try:
            answer = await self._dns.getaddrinfo(host + ".", family=family, type=socket.SOCK_STREAM)
        except aiodns.error.DNSError as error:
            raise DnsError("the target's name could not be resolved") from error
        return [node.addr[0].decode("ascii") for node in answer.nodes]

    async def close(self) -> None:
        """Drop pending look-ups and sockets."""
        await self._dns.close()


async def resolve(
    resolver: Resolver, policy: EgressPolicy, target: Target, limit_s: float = LOOKUP_LIMIT_S
) -> tuple[Address, ...]:
    """The vetted addresses of a target, IPv6 first as the system would; a literal is its own answer.

    DnsError: no answer, no address, or more than 32. TargetNotAllowedError: any answer is denied, so the whole name is.
    """
    if target.is_literal:
        addresses: tuple[Address, ...] = (ip_address(target.host),)
    else:
        addresses = _parsed(_at_hand(resolver, target.host) or await _answers(resolver, target.host, limit_s))
    for address in addresses:
        policy.check_address(address, target.port, target.host)
    return addresses


def _at_hand(resolver: Resolver, host: str) -> Sequence[str]:
    known: Callable[[str], Sequence[str]] | None = getattr(resolver, "at_hand", None)
    return () if known is None else known(host)


async def _answers(resolver: Resolver, host: str, limit_s: float) -> list[str]:
    """IPv6 is asked in a task of its own, IPv4 here; whichever is first with an address gives the other a moment."""
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(limit_s)
    end = loop.time() + limit_s

    def hurry(task: asyncio.Task[list[str] | DnsError]) -> None:
        if not (ended or limit.expired()) and _has_addresses(_result_of(task)):
            limit.reschedule(min(end, loop.time() + SECOND_ANSWER_S))

    ended = False
    v4: list[str] | DnsError | None = None
    v6 = asyncio.create_task(_lookup(resolver, host, socket.AF_INET6), name="duly-dns-AF_INET6")
    try:
        try:
            async with limit:
                v6.add_done_callback(hurry)
                await asyncio.sleep(0)  # its question goes out first
                v4 = await _lookup(resolver, host, socket.AF_INET)
        except TimeoutError:
            pass
        finally:
            ended = True
        if not v6.done():
            left_s = end - loop.time()
            await asyncio.wait([v6], timeout=min(left_s, SECOND_ANSWER_S) if _has_addresses(v4) else left_s)
        return _together([_result_of(v6), v4])
    finally:
        if not v6.done():
            v6.cancel()
            await asyncio.gather(v6, return_exceptions=True)


def _result_of(task: asyncio.Task[list[str] | DnsError]) -> list[str] | DnsError | None:
    return task.result() if task.done() and not task.cancelled() else None


def _has_addresses(result: list[str] | DnsError | None) -> bool:
    return isinstance(result, list) and bool(result)


async def _lookup(resolver: Resolver, host: str, family: socket.AddressFamily) -> list[str] | DnsError:
    try:
        return list(await resolver.lookup(host, family))
    except DnsError as error:
        return error
    except (OSError, UnicodeError) as error:
        failed = DnsError("the target's name could not be resolved")
        failed.__cause__ = error
        return failed


def _together(results: Sequence[list[str] | DnsError | None]) -> list[str]:
    answers = [address for result in results if isinstance(result, list) for address in result]
    if answers:
        return answers
    for result in results:
        if isinstance(result, DnsError):
            raise result
    if None in results:
        raise DnsError("looking up the target's name took too long")
    raise DnsError("the target's name has no addresses")


_address = lru_cache(maxsize=8192)(ip_address)  # strict: what is not a canonical address raises, and is not kept


def _parsed(answers: Sequence[str]) -> tuple[Address, ...]:
    if len(answers) > MAX_ANSWERS:
        raise DnsError(f"the target's name has more than {MAX_ANSWERS} addresses")
    try:
        return tuple(dict.fromkeys([_address(answer) for answer in answers]))
    except ValueError as error:
        raise TargetNotAllowedError("target address not allowed", rule="address", setting="none") from error
