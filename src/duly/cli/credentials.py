"""`credentials.json` in the home folder of `duly up`: how to reach it, for scripts and for the other commands."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Credentials:
    """`url` of the API, an `api_key` of the default project, the `database_url`, an `admin_key` that administers all
    accounts.
    """

    url: str
    api_key: str
    database_url: str
    admin_key: str = ""


def read(home: Path) -> Credentials | None:
    """What an earlier start wrote; None if there is none that can be read."""
    try:
        there = json.loads((home / "credentials.json").read_text())
        return Credentials(
            str(there["url"]), str(there["api_key"]), str(there["database_url"]), str(there.get("admin_key", ""))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(home: Path, credentials: Credentials) -> Path:
    """Write the file with mode 0600; it is whole or as it was before."""
    path = home / "credentials.json"
    aside = home / f".credentials.{os.getpid()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(credentials), file, indent=2)
        file.write("\n")
    os.replace(aside, path)
    return path
