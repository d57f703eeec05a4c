"""Metrics and traces as a part of a process: off unless they are asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from duly.cli.console import note
from duly.queue import Database

if TYPE_CHECKING:
    from duly.observe.metrics import Metrics
    from duly.observe.tracing import Tracing

Part = Literal["api", "worker", "up"]


@dataclass(frozen=True, slots=True)
class ObservationSettings:
    """Where metrics are served (`metrics_port` None: nowhere, and nothing is measured), and whether traces are sent."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    traces: bool = False

    @property
    def listeners(self) -> list[tuple[str, int]]:
        """What no job may call."""
        return [] if self.metrics_port is None else [(self.metrics_host, self.metrics_port)]


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
        if settings.metrics_port is not None:
            metrics = await stack.enter_async_context(
                _metrics(db, url, settings.metrics_host, settings.metrics_port, part)
            )
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
    from duly.model.errors import InvalidInputError

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
