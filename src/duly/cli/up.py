"""`duly up`: everything in one process, for development and trials."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import shlex
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from duly.cli import credentials
from duly.cli.applying import apply_or_tell, schema_of
from duly.cli.apps import found_apps
from duly.cli.console import note, say
from duly.cli.echo import echo_target
from duly.cli.keyrings import given_keyring, keyring_of_home
from duly.cli.logs import set_up_logs
from duly.cli.migrate import migrated
from duly.cli.observing import ObservationSettings, observed
from duly.cli.opening import open_database
from duly.cli.options import (
    Allow,
    AllowPort,
    ApplySchedules,
    Apps,
    CaFile,
    Concurrency,
    DatabaseUrl,
    Deny,
    EncryptionKeys,
    Home,
    Host,
    LogFormat,
    MetricsHost,
    MetricsPort,
    Port,
    Proxy,
    Schema,
    Traces,
    Verbose,
    checked_database_url,
    default_home,
)
from duly.cli.own import all_own_addresses
from duly.cli.parts import WorkerSettings, work
from duly.cli.stopping import Stop, run_loop
from duly.embedded import EmbeddedPostgres, passable
from duly.http import EgressPolicy, EgressProxy
from duly.http.ports import is_open_port
from duly.http.tls import tls_context
from duly.model.errors import EmbeddedError, InvalidInputError
from duly.queue import Database
from duly.schema import DEFAULT_SCHEMA, checked_name
from duly.service import Keyring, authenticate, create_key, ensure_default, ensure_operator
from duly.service.sessions import make_operator_token
from duly.tasks.worker import Serving, connections_for

log = logging.getLogger("duly.cli")

_CLOSED_HOMES = Path("/var/lib/duly/clusters")


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What `duly up` was told."""

    home: Path
    schema: str = DEFAULT_SCHEMA
    host: str = "127.0.0.1"
    port: int = 8080
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    observation: ObservationSettings = field(default_factory=ObservationSettings)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    app_names: tuple[str, ...] = ()
    applies_schedules: bool = False


def up(
    home: Home = None,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    database_url: DatabaseUrl = None,
    schema: Schema = DEFAULT_SCHEMA,
    concurrency: Concurrency = 100,
    app: Apps = [],  # noqa: B006  typer reads the default, nobody changes it
    apply_schedules: ApplySchedules = False,
    postgres: Annotated[
        Path | None,
        typer.Option("--postgres", envvar="DULY_POSTGRES", help="Folder with bin/postgres to use.", show_default=False),
    ] = None,
    allow: Allow = [],  # noqa: B006
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    ca_file: CaFile = None,
    egress_proxy: Proxy = None,
    encryption_keys: EncryptionKeys = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    traces: Traces = False,
    log_format: LogFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Start everything: a private PostgreSQL (unless a database is given), the API, a worker."""
    set_up_logs(log_format, verbose)
    if apply_schedules and not app:
        raise InvalidInputError("--apply-schedules applies what an app declares: give --app")
    apps = found_apps(app)
    settings = UpSettings(
        home=(home or default_home()).absolute(),
        schema=schema_of(apps, schema),
        host=host,
        port=port,
        worker=WorkerSettings(
            serving=Serving(concurrency=concurrency, shared=True),
            apps=apps,
            ca_file=ca_file,
            proxy=None if egress_proxy is None else EgressProxy.parse(egress_proxy),
        ),
        observation=ObservationSettings(metrics_host, metrics_port, traces),
        allow=tuple(allow),
        deny=tuple(deny),
        ports=tuple(allow_port),
        app_names=tuple(app),
        applies_schedules=apply_schedules,
    )
    refuse_mistakes(settings, database_url)
    given_keyring(encryption_keys)
    refuse_taken_port(host, port)
    make_home(settings.home)
    keyring = keyring_of_home(encryption_keys, settings.home)
    settings = replace(settings, worker=replace(settings.worker, keyring=keyring))
    with ExitStack() as stack:
        server = None if database_url else stack.enter_context(private_postgres(settings.home, postgres))
        url = database_url or (server.dsn() if server else "")
        clean = run_loop(lambda: run_everything(url, settings, server))
        note("stopped")
    if not clean:
        raise typer.Exit(1)


async def run_everything(url: str, settings: UpSettings, server: EmbeddedPostgres | None = None) -> bool:
    """Migrate, serve, work; True if the end was a clean drain."""
    from duly.cli.api_part import serving  # not at the top: other commands, workers above all, need no web framework

    stop = Stop(lambda: note("draining; once more to abort"))
    done = await migrated(url, settings.schema)
    note(f"schema {settings.schema} is at version {done.after}")
    async with (
        open_database(url, settings.schema, max_size=10 + connections_for(2), name="duly-up") as db,
        observed(db, url, settings.observation, "up") as watched,
    ):
        keyring = settings.worker.keyring
        api_key = await default_key(db, settings.home, keyring)
        admin_key = await operator_key(db, settings.home, keyring)
        await apply_or_tell(db, settings.worker.apps, settings.app_names, told_to=settings.applies_schedules)
        listeners = [(settings.host, settings.port), *settings.observation.listeners]
        own = await all_own_addresses(db, url, listeners, settings.worker.proxy)
        policy = EgressPolicy.parse(settings.allow, settings.deny, settings.ports, own, allow_loopback=True)
        started = asyncio.Event()
        async with (
            echo_target("127.0.0.1", ports_to_try(settings.port)) as echo,
            serving(db, policy, settings.host, settings.port, keyring, watched) as (host, port),
        ):
            api_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            credentials.write(settings.home, credentials.Credentials(api_url, api_key, url, admin_key))
            working = asyncio.create_task(
                work(db, url, policy, settings.worker, stop.draining, stop.aborting, started=started, watched=watched)
            )
            ready = asyncio.create_task(started.wait())
            await asyncio.wait({working, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _welcome(api_url, api_key, echo, settings, url, await make_operator_token(db))
            watching = asyncio.create_task(keep_alive(server)) if server else None
            try:
                drained = await working
            finally:
                if watching is not None:
                    watching.cancel()
    return drained.clean and not stop.aborting.is_set()


async def keep_alive(server: EmbeddedPostgres) -> None:
    """Start the private PostgreSQL again whenever it has died. Blocks the loop meanwhile: without it nothing here can
    go on, and the server's death signal follows the thread that starts it.
    """
    while True:
        await asyncio.sleep(0.5)
        if not server.alive:
            log.warning("PostgreSQL has died, starting it again")
            server.stop()
            try:
                server.start()
            except EmbeddedError as error:
                log.warning("PostgreSQL does not start, trying again", extra={"error": str(error)})


def private_postgres(home: Path, binaries: Path | None) -> EmbeddedPostgres:
    """The private PostgreSQL of a home folder, not yet started."""
    fallback = _CLOSED_HOMES / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    place = passable(home / "postgres", fallback)
    if place == fallback:
        note(f"{home} is closed to the account that PostgreSQL runs as: the database is kept in {place}")
    return EmbeddedPostgres(place, binaries=binaries, on_progress=note)


async def default_key(db: Database, home: Path, keyring: Keyring) -> str:
    """An API key of the default project: that of an earlier start if it is still good, else a new one."""
    tenant = await ensure_default(db, keyring=keyring)
    before = credentials.read(home)
    principal = None if before is None else await authenticate(db, before.api_key)
    if before is not None and principal is not None and principal.owner == tenant.owner:
        return before.api_key
    return (await create_key(db, tenant.owner.project_id, "duly up")).key


async def operator_key(db: Database, home: Path, keyring: Keyring) -> str:
    """An admin key of the operator's account: that of an earlier start if it is still good, else a new one."""
    before = credentials.read(home)
    principal = None if before is None else await authenticate(db, before.admin_key)
    if before is not None and principal is not None and principal.operator and "admin" in principal.scopes:
        return before.admin_key
    tenant = await ensure_operator(db, keyring=keyring)
    return (await create_key(db, tenant.owner.project_id, "duly up", scopes=["admin"])).key


def make_home(home: Path) -> None:
    """Make the folder, passable for the account that PostgreSQL runs as when we are root. Raises InvalidInputError."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(f"{home} is not writable")
    except OSError as error:
        raise InvalidInputError(
            f"cannot use {home} as home folder ({error.strerror or error}): choose another with --home"
        ) from error


def refuse_mistakes(settings: UpSettings, database_url: str | None) -> None:
    """Raise InvalidInputError for what would be found later, when a cluster was already made."""
    EgressPolicy.parse(settings.allow, settings.deny, settings.ports)
    checked_name(settings.schema)
    if settings.worker.ca_file is not None:
        tls_context(settings.worker.ca_file)
    if database_url:
        checked_database_url(database_url)


def refuse_taken_port(host: str, port: int) -> None:
    """Raise PortTakenError or AddressError before anything is started; the port may still be lost until it is bound."""
    from duly.api.serve import AddressError, PortTakenError

    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        socket.create_server((str(address[0]), port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(host, port) from error
        raise AddressError(f"cannot listen on {host}, port {port} ({error.strerror or error})") from error


def ports_to_try(api_port: int) -> list[int]:
    """Ports for the echo target: the ones behind the API's that a job may call, then any."""
    behind = range(api_port + 1, min(api_port + 50, 65536)) if api_port else range(0)
    return [*(port for port in behind if is_open_port(port)), 0]


def _welcome(api_url: str, api_key: str, echo: str, settings: UpSettings, url: str, token: str) -> None:
    home = settings.home
    say()
    say(f"Duly is up: {api_url}   (database: {_without_password(url)})")
    say(f"Dashboard: {api_url}/dashboard/   (sign in with {token}, once; `duly dashboard token` prints another)")
    say(f"Credentials: {home / 'credentials.json'} (api_key for jobs, admin_key for accounts)")
    say("Loopback targets are open, since this is a developer's machine; private ranges are closed.")
    say()
    say("Try it:")
    say()
    say(
        f"  curl -sS {api_url}/v1/jobs -H 'Authorization: Bearer {api_key}' -H 'Content-Type: application/json' "
        f'-d \'{{"url": "{echo}hello", "json": {{"n": 1}}}}\''
    )
    say()
    if settings.app_names:
        tasks = sum(1 for app in settings.worker.apps for _ in app)
        say(f"It runs {tasks} task{'' if tasks == 1 else 's'} of {', '.join(settings.app_names)}. Where you enqueue:")
        say()
        say(f"  export DULY_DATABASE_URL={shlex.quote(_without_password(url))}")
        say()
    where = "" if home == default_home().absolute() else f" --home {shlex.quote(str(home))}"
    say(f"Then look at it with `duly jobs list{where}`, or GET /v1/jobs/{{id}}/attempts. Stop with Ctrl-C.")


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    netloc = parts.netloc if parts.password is None else parts.netloc.replace(f":{parts.password}@", ":***@", 1)
    query = re.sub(r"(^|&)(\w*password)=[^&]*", r"\1\2=***", parts.query)
    return urlunsplit(parts._replace(netloc=netloc, query=query))
