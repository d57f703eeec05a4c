"""All metrics of one process, whichever parts of Duly run in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from duly import __version__
from duly.observe.breakers import BreakerMetrics
from duly.observe.database import DatabaseMetrics
from duly.observe.exposition import serve_metrics
from duly.observe.requests import RequestMetrics
from duly.observe.work import WorkMetrics


class Metrics:
    """One registry; `api` and `work` say whose metrics are in it beside the database's and the process's own.

    `requests`, `work` and `breakers` are to be handed to the parts that they watch; an unused one stays at 0.
    """

    def __init__(self, *, api: bool = True, work: bool = True) -> None:
        self.registry = CollectorRegistry()
        self.database = DatabaseMetrics(self.registry)
        self.requests = RequestMetrics(self.registry) if api else None
        self.work = WorkMetrics(self.registry) if work else None
        self.breakers = BreakerMetrics(self.registry) if work else None
        Info("duly", "The program.", registry=self.registry).info({"version": __version__})
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    @asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
        """Answer scrapes while the block runs; the address that was bound."""
        async with serve_metrics(self.registry, self.database.refresh, host, port) as bound:
            yield bound
