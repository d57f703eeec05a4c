"""Metrics and traces as a part of a process: off unless they are asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from duly.cli.console import note
from duly.model.errors import InvalidInputError
from duly.queue import Database

if TYPE_CHECKING:
    from duly.observe.metrics import Metrics
    from duly.observe.tracing import Tracing

Part = Literal["api", "worker", "up"]


@dataclass(frozen=True, slots=True)
class ObservationSettings:
    """Where metrics are served (`metrics_port` None: nowhere, and nothing is measured), and whether traces are sent.

    Of several `processes` under one command each serves at a port of its own: the first at `metrics_port`, the others
    at those behind it; `number` says which this one is.
    """

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    traces: bool = False
    processes: int = 1
    number: int = 1

    def __post_init__(self) -> None:
        if self.metrics_port is not None and self.metrics_port + self.processes > 65_536:
            raise InvalidInputError(
                f"--metrics-port {self.metrics_port} leaves no port for each of {self.processes} processes: "
                f"{65_536 - self.processes} at most"
            )

    @property
    def port(self) -> int | None:
        """Where this process serves its metrics; 0: at any free port."""
        return self.metrics_port and self.metrics_port + self.number - 1

    @property
    def listeners(self) -> list[tuple[str, int]]:
        """What no job may call."""
        first = self.metrics_port
        return [(self.metrics_host, first + place) for place in range(self.processes)] if first else []


@dataclass(frozen=True, slots=True)
class Observed:
    """The hooks for the parts of a process; None: that is off."""

    metrics: Metrics | None = None
    tracing: Tracing | None = None


NOTHING = Observed()


@asynccontextmanager
async def observed(db: Database, url: str, settings: ObservationSettings, part: Part) -> AsyncIterator[Observed]:
    """Metrics are served, and spans sent, while the block runs."""
    async with AsyncExitStack() as stack:
        metrics = None
        if settings.port is not None:
            metrics = await stack.enter_async_context(_metrics(db, url, settings.metrics_host, settings.port, part))
        tracing = await stack.enter_async_context(_tracing(part)) if settings.traces else None
        yield Observed(metrics, tracing)


@asynccontextmanager
async def _metrics(db: Database, url: str, host: str, port: int, part: Part) -> AsyncIterator[Metrics]:
    """Read through a connection of their own, which nobody else waits for."""
    from duly.observe.metrics import Metrics  # not at the top: it costs memory, and is off as a rule

    metrics = Metrics(api=part != "worker", work=part != "api")
    async with await Database.open(
        url, schema=db.schema, min_size=0, max_size=1, name="duly-metrics", trouble=db.trouble
    ) as own:
        metrics.database.watch(own)
        async with metrics.served(host, port) as (bound_host, bound_port):
            shown = f"[{bound_host}]" if ":" in bound_host else bound_host
            note(f"metrics on http://{shown}:{bound_port}/metrics")
            yield metrics


@asynccontextmanager
async def _tracing(part: Part) -> AsyncIterator[Tracing]:
    """Log lines tell their trace meanwhile."""
    from duly.cli.logs import add_to_every_line

    try:
        from duly.observe.exporting import provider
        from duly.observe.tracing import TraceFields, Tracing
    except ImportError as error:
        raise InvalidInputError("traces need OpenTelemetry: pip install 'duly[traces]'") from error
    given, end = provider("duly" if part == "up" else f"duly-{part}")
    add_to_every_line(TraceFields())
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # once a minute it says that nobody collects
    try:
        yield Tracing(given)
    finally:
        await asyncio.to_thread(end)
