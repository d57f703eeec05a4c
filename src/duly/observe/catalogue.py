"""What metrics there are, as a table: for the reference page, and for whoever checks that a query names only those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """One metric as Prometheus stores it. `kind`: counter, gauge, histogram, info."""

    name: str
    kind: str
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def catalogue(registry: CollectorRegistry) -> Iterator[MetricDescription]:
    """Every metric of Duly's own in the registry, by name."""
    for family in sorted(registry.collect(), key=lambda family: family.name):
        if family.name.startswith("duly"):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            yield MetricDescription(family.name + suffix, family.type, family.documentation)
