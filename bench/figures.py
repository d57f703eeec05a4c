"""Numbers over rounds: medians with their range, percentiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few rounds and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        kept = sorted(values)
        return cls(median(kept), kept[0], kept[-1])

    def to_json(self) -> dict[str, float]:
        """Rounded to what such a measurement can tell."""
        return {"median": significant(self.median), "low": significant(self.low), "high": significant(self.high)}

    def shown(self, digits: int = 0) -> str:
        """`median (low–high)`."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed. Values need not be sorted."""
    kept = sorted(values)
    return kept[max(0, math.ceil(share * len(kept)) - 1)]


def ratio(these: Sequence[float], those: Sequence[float]) -> Spread:
    """Round by round, this ÷ that: each round is compared with its neighbour in time, so a slow minute hurts both."""
    return Spread.of(a / b for a, b in zip(these, those, strict=True))


def significant(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")
