"""Putting the parts together: the database, and a worker with its upkeep.

The API is in `api_part`, so that a worker does not load it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from duly.http import BreakerSettings, Deliverer, EgressPolicy
from duly.model.errors import DatabaseUnavailableError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Outcome, Snooze
from duly.model.retention import Retention
from duly.queue import Database
from duly.schema import verify
from duly.service import SigningSecrets
from duly.service.breaking import Breaker
from duly.service.jobs import KIND
from duly.upkeep import Upkeep
from duly.worker import Wakeups, Worker, WorkerConfig
from duly.worker.runtime import Drained

_OTHERS_END_S = 1.0
_SECRETS_AGAIN = timedelta(seconds=2)
_HOST_AND_PORT = re.compile(r"(?:\[([^\]]+)\]|([^:,\[\]]+))(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process of the service is told."""

    concurrency: int = 100
    queues: tuple[str, ...] | None = None
    lease: timedelta = timedelta(seconds=20)
    grace: timedelta = timedelta(seconds=25)
    ca_file: Path | None = None
    retention: Retention = field(default_factory=Retention)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


@asynccontextmanager
async def open_database(url: str, schema: str, *, max_size: int, name: str) -> AsyncIterator[Database]:
    """Connect, and make sure that the schema is this program's. Raises DatabaseUnavailableError or SchemaError."""
    async with await Database.open(url, schema=schema, max_size=max_size, name=name) as db:
        async with db.session() as session:
            await verify(session.connection, schema)
        yield db


async def work(
    db: Database,
    url: str,
    policy: EgressPolicy,
    settings: WorkerSettings,
    draining: asyncio.Event,
    aborting: asyncio.Event,
    started: asyncio.Event | None = None,
) -> Drained:
    """Run a worker for HTTP jobs and its upkeep until `draining`, then drain."""
    wakeups = Wakeups(url, db.schema, db.trouble)
    secrets = SigningSecrets(db)
    breaker = Breaker(db, settings.breaker)
    ended = asyncio.Event()
    async with Deliverer(policy, ca_file=settings.ca_file) as deliverer:

        async def send(job: ClaimedJob) -> Outcome:
            try:
                signing = await secrets.for_project(job.project_id)
            except DatabaseUnavailableError:
                return Snooze(_SECRETS_AGAIN)  # the target was not asked: no attempt of its is used up
            return await deliverer.deliver(job, signing)

        async def deliver(job: ClaimedJob) -> Outcome:
            return await breaker.deliver(job, lambda: send(job))

        config = WorkerConfig(
            {KIND: deliver},
            queues=settings.queues,
            concurrency=settings.concurrency,
            claim_batch=min(1000, settings.concurrency),
            lease=settings.lease,
            grace=settings.grace,
        )
        worker = Worker(config, db, url, wakeups)
        upkeep = Upkeep(db, wakeups, settings.retention)
        await breaker.look()
        if started is not None:
            started.set()
        async with asyncio.TaskGroup() as group:
            others = {group.create_task(part.run(ended)) for part in (wakeups, upkeep, breaker)}
            try:
                return await worker.run(draining, aborting)
            finally:
                ended.set()
                await asyncio.wait(others, timeout=_OTHERS_END_S)
                for task in others:
                    task.cancel()  # a statement that gets no answer; every step may be cut off anywhere


def own_addresses(database_url: str, listeners: Sequence[tuple[str, int]]) -> list[str]:
    """What no job may call: the database's addresses as far as they are given as such, and our own listeners."""
    own = [place for host, port in listeners for place in _places(host, port)]
    hosts, ports = _database_hosts(database_url)
    return own + [place for host in hosts for port in ports or ["5432"] for place in _places(host, port)]


def _database_hosts(url: str) -> tuple[list[str], list[str]]:
    """Every host and every port in the URL, which may list several of them, before the path and in the query."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    listed = _HOST_AND_PORT.findall(parts.netloc.rpartition("@")[2])
    hosts = [bracketed or plain for bracketed, plain, _ in listed] + ",".join(query.get("host", [])).split(",")
    ports = [port for _, _, port in listed] + ",".join(query.get("port", [])).split(",")
    return [unquote(host) for host in hosts if host], sorted({port for port in ports if port.isdecimal()})


def _places(host: str, port: int | str) -> list[str]:
    if int(port) == 0:  # any free one: not known yet
        return []
    if host == "localhost":
        return [f"127.0.0.1:{port}", f"[::1]:{port}"]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return []  # a name, or the folder of a socket
    return [f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"]
