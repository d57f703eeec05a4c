"""One thing that is wrong, and how bad it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` is the case, what it `means`, what to `do`."""

    code: str
    severity: Severity
    what: str
    means: str
    do: str


def worst(found: Collection[Finding], accepted: Collection[str]) -> Severity | None:
    """The severity of the worst finding that nobody has accepted; None: there is none."""
    left = {finding.severity for finding in found if finding.code not in accepted}
    return next((severity for severity in SEVERITIES if severity in left), None)


def counted(found: Collection[Finding]) -> Mapping[Severity, int]:
    """How many there are of each severity."""
    return {severity: sum(finding.severity == severity for finding in found) for severity in SEVERITIES}
