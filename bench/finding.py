"""What a program found: rounds, figures, and whether its goal was met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the printed table."""

    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one program.

    `measured` is one sentence on what was measured. `met` None: there is no goal. `rounds` are kept as JSON lines,
    `figures` in the last one; `rows` are printed; `remarks` are what a reader must know to read them (a peer that is
    missing, a phase cut short).
    """

    program: str
    measured: str
    rows: Sequence[Row]
    rounds: Sequence[Mapping[str, Any]]
    figures: Mapping[str, Spread | float]
    goal: str = "none set"
    met: bool | None = None
    remarks: Sequence[str] = field(default_factory=tuple)

    @property
    def verdict(self) -> str:
        """met, missed, or no goal."""
        return "no goal" if self.met is None else "met" if self.met else "MISSED"
