"""The server's settings: ours for a queue on a developer's machine, the caller's over them, the launcher's over all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from duly.model.errors import EmbeddedError

DEFAULTS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": "5432",  # also names the Unix socket
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "wal_compression": "on",
    "jit": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "cluster_name": "duly",
}
RESERVED = frozenset({"data_directory", "unix_socket_directories", "unix_socket_permissions"})


def merge(settings: Mapping[str, str]) -> dict[str, str]:
    """Our defaults with the caller's settings over them. EmbeddedError for a setting that the launcher must decide."""
    given = {name.lower(): str(value) for name, value in settings.items()}
    taken = sorted(RESERVED & given.keys())
    if taken:
        raise EmbeddedError(f"the setting {taken[0]} is the launcher's own: leave it out")
    merged = {**DEFAULTS, **given}
    if not (merged["port"].isascii() and merged["port"].isdigit() and 1 <= int(merged["port"]) <= 65535):
        raise EmbeddedError(f"the setting port is {merged['port']!r}: give a number from 1 to 65535")
    return merged


def arguments(merged: Mapping[str, str], data: Path, socket_folder: Path) -> list[str]:
    """The command line that follows `postgres`."""
    quoted = str(socket_folder).replace(
        '"', '""'
    )  # the setting is a list: quotes keep a space or comma inside one item
    options = {**merged, "unix_socket_directories": f'"{quoted}"', "unix_socket_permissions": "0700"}
    return ["-D", str(data), *(part for name, value in options.items() for part in ("-c", f"{name}={value}"))]
