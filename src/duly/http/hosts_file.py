"""The machine's hosts file. The resolver asks for absolute names, which c-ares does not look up there by itself."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

HOSTS_PATH = Path("/etc/hosts")
_LOCALHOST = ("127.0.0.1", "::1")  # RFC 6761, section 6.3: whatever the file says


class HostsFile:
    """Names and addresses of a hosts file, read again when the file changes. A missing file is an empty one."""

    def __init__(self, path: Path = HOSTS_PATH) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._names: dict[str, tuple[str, ...]] = {}

    def addresses(self, host: str) -> tuple[str, ...]:
        """The addresses of a lower-case name, both families; empty when the file does not have it."""
        if host == "localhost":
            return _LOCALHOST
        self._refresh()
        return self._names.get(host, ())

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._names, self._stamp = parse_hosts(self._path.read_text("utf-8", "replace")), stamp
        except OSError:
            self._names, self._stamp = {}, None


def parse_hosts(text: str) -> dict[str, tuple[str, ...]]:
    """Read the format of hosts(5). Lines whose address has a zone id or is not canonical are left out."""
    names: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        try:
            canonical = str(ip_address(address))
        except ValueError:
            continue
        if "%" in canonical:
            continue
        for alias in aliases:
            name = alias.lower().removesuffix(".")
            names[name] = (*names.get(name, ()), canonical)
    return names
