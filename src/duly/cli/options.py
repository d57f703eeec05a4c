"""Options that several commands share, and the environment they may come from. Read once, here."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from duly.http import BreakerSettings
from duly.model.errors import InvalidInputError
from duly.model.retention import Retention
from duly.service.durations import parse_duration
from duly.service.faults import FieldError

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", envvar="DULY_DATABASE_URL", help="PostgreSQL to use, as postgresql://…", show_default=False
    ),
]
Schema = Annotated[str, typer.Option("--schema", envvar="DULY_SCHEMA", help="Name of Duly's schema.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", envvar="DULY_HOME", help="Folder of `duly up`: database and credentials.", show_default=False
    ),
]
Host = Annotated[str, typer.Option("--host", envvar="DULY_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", envvar="DULY_PORT", min=0, max=65535, help="Port to listen on.")]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", envvar="DULY_CONCURRENCY", min=1, help="Jobs that one worker process runs at once."),
]
Allow = Annotated[
    list[str],
    typer.Option(
        "--allow",
        envvar="DULY_EGRESS_ALLOW",
        help="Open a private range (10.0.0.0/8) or host=name as target. Repeatable.",
    ),
]
Deny = Annotated[
    list[str],
    typer.Option("--deny", envvar="DULY_EGRESS_DENY", help="Close a range or host=name as target. Repeatable."),
]
AllowPort = Annotated[
    list[str],
    typer.Option(
        "--allow-port", envvar="DULY_EGRESS_PORTS", help="Open a target port that is closed by default. Repeatable."
    ),
]
Apps = Annotated[
    list[str],
    typer.Option(
        "--app",
        envvar="DULY_APP",
        help="Run the tasks of this app: package.module, or package.module:app. Repeatable.",
        show_default=False,
    ),
]
ApplySchedules = Annotated[
    bool,
    typer.Option(
        "--apply-schedules", help="At the start, make the schedules what the apps declare (see duly schedules apply)."
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="DULY_CA_FILE",
        help="PEM bundle of the certificate authorities to trust.",
        show_default=False,
    ),
]
Proxy = Annotated[
    str | None,
    typer.Option(
        "--egress-proxy",
        envvar="DULY_EGRESS_PROXY",
        help="Deliver through this proxy and no other way: http://[user:password@]host:port.",
        show_default=False,
    ),
]
EncryptionKeys = Annotated[
    Path | None,
    typer.Option(
        "--encryption-keys",
        envvar="DULY_ENCRYPTION_KEYS_FILE",
        help="File with the keys that seal secrets at rest, as id:base64; the first seals. Or DULY_ENCRYPTION_KEYS.",
        show_default=False,
    ),
]
NoEncryption = Annotated[
    bool, typer.Option("--no-encryption", envvar="DULY_NO_ENCRYPTION", help="Store secrets and bodies in the clear.")
]
Keep = Annotated[
    str,
    typer.Option(
        "--keep", envvar="DULY_KEEP", help="How long succeeded and cancelled jobs are kept: 12h, 30d, or forever."
    ),
]
KeepDead = Annotated[
    str, typer.Option("--keep-dead", envvar="DULY_KEEP_DEAD", help="How long dead letters are kept, in the same way.")
]
BreakerFailures = Annotated[
    int,
    typer.Option(
        "--breaker-failures",
        envvar="DULY_BREAKER_FAILURES",
        min=0,
        help="Failures in a row after which deliveries of an account to a host are held; 0: never.",
    ),
]
BreakerOver = Annotated[
    str,
    typer.Option("--breaker-over", envvar="DULY_BREAKER_OVER", help="The least time that those failures must span."),
]
BreakerPause = Annotated[
    str,
    typer.Option(
        "--breaker-pause", envvar="DULY_BREAKER_PAUSE", help="How long a host is left alone before the first probe."
    ),
]
BreakerLongestPause = Annotated[
    str,
    typer.Option(
        "--breaker-longest-pause",
        envvar="DULY_BREAKER_LONGEST_PAUSE",
        help="The pause doubles with each probe that fails, up to this.",
    ),
]
Account = Annotated[
    str, typer.Option("--account", help="The account, and its project of the same name; made if it is not there.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        envvar="DULY_METRICS_PORT",
        min=0,
        max=65535,
        help="Serve /metrics for Prometheus on this port.",
        show_default="off",
    ),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", envvar="DULY_METRICS_HOST", help="Address to serve /metrics on.")
]
Traces = Annotated[
    bool,
    typer.Option("--traces", envvar="DULY_TRACES", help="Send traces by OTLP, to where the OTEL_* variables say."),
]
LogFormat = Annotated[str, typer.Option("--log-format", envvar="DULY_LOG_FORMAT", help="text or json.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, not only what goes wrong.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def default_home() -> Path:
    """Where `duly up` keeps its things: /var/lib/duly for root, ~/.local/share/duly for others."""
    if os.geteuid() == 0:
        return Path("/var/lib/duly")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "duly"


def read_retention(keep: str, keep_dead: str) -> Retention:
    """Retention as typed. Raises InvalidInputError for what is no duration, or not a sensible one."""
    return Retention(_kept_for("--keep", keep), _kept_for("--keep-dead", keep_dead))


def read_breaker(failures: int, over: str, pause: str, longest_pause: str) -> BreakerSettings:
    """When a breaker opens and how it probes, as typed. Raises InvalidInputError for what makes no sense."""
    return BreakerSettings(
        failures,
        read_duration("--breaker-over", over),
        read_duration("--breaker-pause", pause),
        read_duration("--breaker-longest-pause", longest_pause),
    )


def _kept_for(option: str, text: str) -> timedelta | None:
    return None if text == "forever" else read_duration(option, text, ", or forever")


def read_duration(option: str, text: str, otherwise: str = "") -> timedelta:
    """A duration as typed. Raises InvalidInputError that names the option."""
    try:
        return parse_duration(text)
    except FieldError as error:
        raise InvalidInputError(f"{option} {error}{otherwise}") from error


def found_database_url(given: str | None, home: Path | None) -> str:
    """The database to use: as given, or that of a `duly up` in the home folder. Raises InvalidInputError if there is
    none.
    """
    if given:
        return checked_database_url(given)
    credentials = (home or default_home()) / "credentials.json"
    try:
        url = json.loads(credentials.read_text())["database_url"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"no database: give --database-url (or DULY_DATABASE_URL), or start `duly up` (looked for {credentials})"
        ) from error
    return str(url)


def checked_database_url(url: str) -> str:
    """The URL as given. Raises InvalidInputError if it is not PostgreSQL's, without repeating it (passwords)."""
    try:
        known = urlsplit(url).scheme in ("postgresql", "postgres")
    except ValueError:
        known = False
    if not known:
        raise InvalidInputError("the database URL is not PostgreSQL's: write it as postgresql://user@host:port/name")
    return url
