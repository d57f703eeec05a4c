"""The programs by name, in the order in which all of them run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bench import (
    claim,
    dashboard,
    deliver,
    drain,
    dump,
    fairness,
    held,
    ingest,
    latency,
    limits,
    lists,
    minute,
    standing,
    tasks,
)
from bench.finding import Finding
from bench.setting import Setting

PROGRAMS: dict[str, Callable[[Setting], Coroutine[Any, Any, Finding]]] = {
    "drain": drain.run,
    "latency": latency.run,
    "tasks": tasks.run,
    "deliver": deliver.run,
    "ingest": ingest.run,
    "claim": claim.run,
    "held": held.run,
    "standing": standing.run,
    "dump": dump.run,
    "fairness": fairness.run,
    "limits": limits.run,
    "minute": minute.run,
    "lists": lists.run,
    "dashboard": dashboard.run,
}
