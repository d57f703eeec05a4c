"""The hosts that HTTP jobs of a benchmark call: names for 127.0.0.1 … 127.0.0.250, and their certificates."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme

from duly.http import DnsError

MOST_HOSTS = 250
_SUFFIX = ".bench.example.com"


def name(n: int) -> str:
    """The name of host n, 1 to 250."""
    return f"h{n}{_SUFFIX}"


def address(n: int) -> str:
    """Its address on loopback."""
    return f"127.0.0.{n}"


class LoopbackNames:
    """A resolver that has these names at hand, as a hosts file would: what a look-up costs is not in the figures."""

    def at_hand(self, host: str) -> Sequence[str]:
        """One IPv4 address, no IPv6."""
        number = host.removeprefix("h").removesuffix(_SUFFIX)
        return [address(int(number))] if number.isdecimal() and 1 <= int(number) <= MOST_HOSTS else []

    async def lookup(self, host: str, family: socket.AddressFamily) -> Sequence[str]:
        """There are no others."""
        raise DnsError("no such name")

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority, and one leaf with its key for all the names."""

    authority: Path
    leaf: Path

    @classmethod
    def make(cls, folder: Path, stem: str) -> Certificates:
        """A new authority and leaf in the folder."""
        made = cls(folder / f"{stem}-ca.pem", folder / f"{stem}-leaf.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(made.authority)
        authority.issue_cert("*" + _SUFFIX, address(1)).private_key_and_cert_chain_pem.write_to_path(made.leaf)
        return made
