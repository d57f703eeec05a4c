"""Metrics as a part of a process: off unless a port is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.cli.console import note
from duly.queue import Database

if TYPE_CHECKING:
    from duly.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where metrics are served; `port` None: nowhere, and nothing is measured."""

    host: str = "127.0.0.1"
    port: int | None = None

    @property
    def listeners(self) -> list[tuple[str, int]]:
        """What no job may call."""
        return [] if self.port is None else [(self.host, self.port)]


@asynccontextmanager
async def observed(
    db: Database, url: str, settings: MetricsSettings, *, api: bool = False, work: bool = False
) -> AsyncIterator[Metrics | None]:
    """Metrics that are served while the block runs, read through a connection of their own, which nobody else waits
    for; None if they are off.
    """
    if settings.port is None:
        yield None
        return
    from duly.observe.metrics import Metrics  # not at the top: it costs memory, and is off as a rule

    metrics = Metrics(api=api, work=work)
    async with await Database.open(
        url, schema=db.schema, min_size=0, max_size=1, name="duly-metrics", trouble=db.trouble
    ) as own:
        metrics.database.watch(own)
        async with metrics.served(settings.host, settings.port) as (host, port):
            note(f"metrics on http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
            yield metrics
