"""What the doctor concludes from what it has seen: pure rules, one for each thing that can be wrong.

A finding says what is, what that means, and what to do. Its code is stable: scripts and `--accept` name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from duly.observe import server_rules, work_rules
from duly.observe.examining import Examination
from duly.observe.finding import SEVERITIES, Finding

_RULES: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    work_rules.unread,
    work_rules.ledger,
    server_rules.durability,
    server_rules.vacuum,
    server_rules.connections,
    server_rules.timeouts,
    server_rules.grants,
    work_rules.plans,
    work_rules.days,
    work_rules.workers,
    work_rules.due,
    work_rules.schedules,
    server_rules.held,
    server_rules.bloat,
    work_rules.wake_ups,
    work_rules.clock,
    server_rules.version,
    work_rules.breakers,
)


def findings(seen: Examination, known_keys: Collection[str] | None) -> list[Finding]:
    """All findings, the worst first. `known_keys`: ids of the encryption keys at hand; None: nobody knows."""
    found = [finding for rule in _RULES for finding in rule(seen)]
    found += [] if known_keys is None else list(work_rules.keys(seen, known_keys))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
