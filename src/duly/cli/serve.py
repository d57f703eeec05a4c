"""`duly api` and `duly worker`: the two processes of a deployment, each as many times as needed."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Annotated

import typer

from duly.cli.console import note
from duly.cli.keyrings import found_keyring
from duly.cli.logs import set_up_logs
from duly.cli.observing import ObservationSettings, observed
from duly.cli.options import (
    Allow,
    AllowPort,
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
from duly.cli.parts import WorkerSettings, open_database, work
from duly.cli.stopping import Stop, run_loop
from duly.http import EgressPolicy, EgressProxy
from duly.model.errors import InvalidInputError
from duly.model.jobs import QUEUE_NAME
from duly.schema import DEFAULT_SCHEMA

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
    concurrency: Concurrency = 100,
    queues: Annotated[
        str | None, typer.Option("--queues", help="Serve these queues only, as mail,reports.", show_default=False)
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            "--lease", min=1, max=86_400, help="Seconds after which a worker that fell silent counts as lost."
        ),
    ] = 20,
    grace: Annotated[
        float, typer.Option("--grace", min=0, max=86_400, help="Seconds that a stop waits for running jobs.")
    ] = 25,
    allow: Allow = [],  # noqa: B006  typer reads the default, nobody changes it
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
    """Run a worker: deliver HTTP jobs, and do the upkeep."""
    set_up_logs(log_format, verbose)
    url = found_database_url(database_url, home)
    settings = WorkerSettings(
        concurrency=concurrency,
        queues=None if queues is None else read_queues(queues),
        lease=timedelta(seconds=lease),
        grace=timedelta(seconds=grace),
        ca_file=ca_file,
        retention=read_retention(keep, keep_dead),
        keyring=found_keyring(encryption_keys, no_encryption, home),
        proxy=None if egress_proxy is None else EgressProxy.parse(egress_proxy),
        breaker=read_breaker(breaker_failures, breaker_over, breaker_pause, breaker_longest_pause),
    )

    observation = ObservationSettings(metrics_host, metrics_port, traces)

    async def main() -> bool:
        stop = Stop(lambda: note("draining; once more to abort"))
        EgressPolicy.parse(allow, deny, allow_port)  # what is wrong with it is said before anything else happens
        async with (
            open_database(url, schema, max_size=6, name="duly-worker") as db,
            observed(db, url, observation, "worker") as watched,
        ):
            own = await all_own_addresses(db, url, observation.listeners, settings.proxy)
            policy = EgressPolicy.parse(allow, deny, allow_port, own)
            note(f"worker started, {concurrency} slots")
            drained = await work(db, url, policy, settings, stop.draining, stop.aborting, watched=watched)
            return drained.clean and not stop.aborting.is_set()

    if not run_loop(main):
        raise typer.Exit(1)


def read_queues(text: str) -> tuple[str, ...]:
    """Queue names as typed, comma between. Raises InvalidInputError for none, or for a name that no queue can have."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not QUEUE_NAME.fullmatch(name):
            raise InvalidInputError(f"{name!r} is no queue name: letters, digits and . _ : / -, comma between names")
    return names
