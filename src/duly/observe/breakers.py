"""What the breaker of a worker process did."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from duly.service.breaking import Breaker


class BreakerMetrics(Collector):
    """Reads the breaker's own counters at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._breaker: Breaker | None = None
        registry.register(self)

    def watch(self, breaker: Breaker) -> None:
        """Read this one from now on; before there is one, everything is 0."""
        self._breaker = breaker

    def collect(self) -> Iterable[Metric]:
        it = self._breaker
        yield GaugeMetricFamily(
            "duly_breakers_known_open", "Breakers that this process knows to be open.", it.open_now if it else 0
        )
        for name, what, value in (
            ("duly_breakers_opened", "Breakers that this process opened.", it.opened_total if it else 0),
            ("duly_breakers_closed", "Breakers that this process closed.", it.closed_total if it else 0),
            ("duly_deliveries_held", "Deliveries held because a breaker was open.", it.held_total if it else 0),
            ("duly_breaker_probes", "Probes sent to see whether a target is back.", it.probes_total if it else 0),
        ):
            yield CounterMetricFamily(name, what, value)
