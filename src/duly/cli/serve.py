"""`duly api` and `duly worker`: the two processes of a deployment, each as many times as needed."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from duly.cli.applying import apply_or_tell, schema_of
from duly.cli.apps import found_apps
from duly.cli.console import note
from duly.cli.keyrings import found_keyring
from duly.cli.logs import set_up_logs
from duly.cli.observing import ObservationSettings, observed
from duly.cli.opening import open_database
from duly.cli.options import (
    Allow,
    AllowPort,
    ApplySchedules,
    Apps,
    BreakerFailures,
    BreakerLongestPause,
    BreakerOver,
    BreakerPause,
    CaFile,
    Concurrency,
    DatabaseUrl,
    Deny,
    EncryptionKeys,
    Home,
    Host,
    Keep,
    KeepDead,
    LogFormat,
    MetricsHost,
    MetricsPort,
    NoEncryption,
    Port,
    Proxy,
    Schema,
    Traces,
    Verbose,
    found_database_url,
    read_breaker,
    read_retention,
)
from duly.cli.own import all_own_addresses
from duly.cli.parts import WorkerSettings, work
from duly.cli.stopping import Stop, run_loop
from duly.cli.supervising import is_supervised, own_number, supervise, until_orphaned
from duly.http import EgressPolicy, EgressProxy
from duly.model.errors import InvalidInputError
from duly.model.jobs import QUEUE_NAME
from duly.schema import DEFAULT_SCHEMA
from duly.service import NO_KEYRING
from duly.tasks.running import stacks_of, threads_left
from duly.tasks.worker import Serving, connections_for

log = logging.getLogger("duly.cli")


def api(
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    allow: Allow = [],  # noqa: B006  typer reads the default, nobody changes it
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    egress_proxy: Proxy = None,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    traces: Traces = False,
    log_format: LogFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Serve the REST API."""
    observation = ObservationSettings(metrics_host, metrics_port, traces)
    set_up_logs(log_format, verbose)
    url = found_database_url(database_url, home)
    keyring = found_keyring(encryption_keys, no_encryption, home)
    proxy = None if egress_proxy is None else EgressProxy.parse(egress_proxy)  # its address is no target
    from duly.cli.api_part import serving  # not at the top: a worker needs no web framework

    async def main() -> None:
        stop = Stop()
        EgressPolicy.parse(allow, deny, allow_port)  # what is wrong with it is said before anything else happens
        async with (
            open_database(url, schema, max_size=10, name="duly-api") as db,
            observed(db, url, observation, "api") as watched,
        ):
            own = await all_own_addresses(db, url, [(host, port), *observation.listeners], proxy)
            policy = EgressPolicy.parse(allow, deny, allow_port, own)
            async with serving(db, policy, host, port, keyring, watched) as (bound_host, bound_port):
                note(f"API on http://{bound_host}:{bound_port}")
                await stop.draining.wait()

    run_loop(main)


def worker(
    database_url: DatabaseUrl = None,
    home: Home = None,
    schema: Schema = DEFAULT_SCHEMA,
    app: Apps = [],  # noqa: B006  typer reads the default, nobody changes it
    http: Annotated[
        bool | None,
        typer.Option(
            "--http/--no-http", help="Deliver HTTP jobs. [default: unless --app is given]", show_default=False
        ),
    ] = None,
    concurrency: Concurrency = 100,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            help="Serve these queues only, as mail,reports; with slots of their own, as mail:10,reports:2.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Worker processes to run, restarted as they end.")
    ] = 1,
    process_slots: Annotated[
        int | None,
        typer.Option(
            "--process-slots",
            min=1,
            help='Tasks with run_in="process" that run at once, each in a process of its own. [default: one per core]',
            show_default=False,
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file below this folder changes: for development.")
    ] = False,
    apply_schedules: ApplySchedules = False,
    lease: Annotated[
        float,
        typer.Option(
            "--lease", min=1, max=86_400, help="Seconds after which a worker that fell silent counts as lost."
        ),
    ] = 20,
    grace: Annotated[
        float, typer.Option("--grace", min=0, max=86_400, help="Seconds that a stop waits for running jobs.")
    ] = 25,
    allow: Allow = [],  # noqa: B006
    deny: Deny = [],  # noqa: B006
    allow_port: AllowPort = [],  # noqa: B006
    ca_file: CaFile = None,
    egress_proxy: Proxy = None,
    encryption_keys: EncryptionKeys = None,
    no_encryption: NoEncryption = False,
    keep: Keep = "30d",
    keep_dead: KeepDead = "90d",
    breaker_failures: BreakerFailures = 20,
    breaker_over: BreakerOver = "10s",
    breaker_pause: BreakerPause = "10s",
    breaker_longest_pause: BreakerLongestPause = "10m",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    traces: Traces = False,
    log_format: LogFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Run a worker: deliver HTTP jobs or run tasks, and do the upkeep."""
    observation = ObservationSettings(metrics_host, metrics_port, traces, processes, own_number())
    set_up_logs(log_format, verbose)
    url = found_database_url(database_url, home)
    has_http = not app if http is None else http
    if not has_http and not app:
        raise InvalidInputError("--no-http leaves nothing to do: give --app")
    if apply_schedules and not app:
        raise InvalidInputError("--apply-schedules applies what an app declares: give --app")
    serving = Serving(
        queues=None if queues is None else read_queues(queues),
        concurrency=concurrency,
        lease=timedelta(seconds=lease),
        grace=timedelta(seconds=grace),
        shared=has_http,
        **({} if process_slots is None else {"process_slots": process_slots}),
    )
    settings = WorkerSettings(
        serving=serving,
        http=has_http,
        ca_file=ca_file,
        retention=read_retention(keep, keep_dead),
        keyring=found_keyring(encryption_keys, no_encryption, home) if has_http else NO_KEYRING,
        proxy=None if egress_proxy is None else EgressProxy.parse(egress_proxy),
        breaker=read_breaker(breaker_failures, breaker_over, breaker_pause, breaker_longest_pause),
    )
    EgressPolicy.parse(allow, deny, allow_port)  # what is wrong with it is said before anything else happens
    if (processes > 1 or reload) and not is_supervised():
        if not run_loop(lambda: supervise(processes, reload)):
            raise typer.Exit(1)
        return
    settings = replace(settings, apps=found_apps(app))
    schema = schema_of(settings.apps, schema)

    async def main() -> bool:
        stop = Stop(lambda: note("draining; once more to abort"))
        orphaned = asyncio.create_task(_drain_when_orphaned(stop))
        size = 6 + connections_for(2 + len(serving.queues or ()))
        async with (
            open_database(url, schema, max_size=size, name="duly-worker") as db,
            observed(db, url, observation, "worker") as watched,
        ):
            if own_number() == 1:  # for all of them
                await apply_or_tell(db, settings.apps, app, told_to=apply_schedules)
            policy = None
            if has_http:
                own = await all_own_addresses(db, url, observation.listeners, settings.proxy)
                policy = EgressPolicy.parse(allow, deny, allow_port, own)
            started = asyncio.Event()

            async def tell() -> None:
                await started.wait()
                note(f"worker started, {_shown(settings)}")

            telling = asyncio.create_task(tell())
            try:
                drained = await work(db, url, policy, settings, stop.draining, stop.aborting, started, watched)
            finally:
                telling.cancel()
                orphaned.cancel()
            return drained.clean and not stop.aborting.is_set()

    leave(0 if run_loop(main) else 1)


async def _drain_when_orphaned(stop: Stop) -> None:
    await until_orphaned()
    stop.draining.set()


def _shown(settings: WorkerSettings) -> str:
    tasks = sum(1 for app in settings.apps for _ in app)
    what = [f"{settings.serving.concurrency} slots"] + (["HTTP"] if settings.http and tasks else [])
    return ", ".join([*what, f"{tasks} task{'' if tasks == 1 else 's'}"] if tasks else what)


def leave(code: int) -> None:
    """End the process, also where job code has left threads that would keep it. Raises typer.Exit for a code other
    than 0.
    """
    threads = threads_left()
    if threads:
        log.warning("job code has left %d threads that do not end:\n%s", len(threads), stacks_of(threads))
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
    if code:
        raise typer.Exit(code)


def read_queues(text: str) -> dict[str, int | None]:
    """Queue names as typed, comma between; `:10` after a name gives it ten slots of its own. Raises
    InvalidInputError for none, or for a name that no queue can have. What follows the last colon is always slots: a
    queue whose own name has a colon is written with its slots, as `eu:mail:10`.
    """
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, slots = part.strip().rpartition(":")
        if not colon:
            name, slots = part.strip(), ""
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidInputError(f"{name!r} is no queue name: letters, digits and . _ : / -, comma between names")
        if colon and not (slots.isascii() and slots.isdigit()):
            raise InvalidInputError(
                f"queue {name} has {slots!r} slots: write a number, as {name}:10, or {name} alone; a queue that is "
                f"itself named {part.strip()!r} is written with its slots, {part.strip().rstrip(':')}:10"
            )
        if slots and (len(slots) > 9 or not 1 <= int(slots) <= 10_000):
            raise InvalidInputError(f"queue {name} has {slots} slots: 1 to 10000")
        if name in queues:
            raise InvalidInputError(f"queue {name} is given twice: name it once")
        queues[name] = int(slots) if slots else None
    return queues
