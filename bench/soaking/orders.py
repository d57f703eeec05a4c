"""The jobs of a soak: what each carries, and how it may end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from duly.model.jobs import NewJob
from duly.model.retry import Backoff, RetryPolicy

KIND = "soak"
LEASE = timedelta(seconds=4)
LATE_QUEUE = "late"
"""Jobs of transactions that commit late: due before anybody can see them."""

_MIX: Mapping[str, float] = {
    "quick": 45,
    "sleep": 40,
    "long": 1,
    "fail": 6,
    "hopeless": 1,
    "snooze": 3,
    "bury": 3,
    "block": 0.15,
    "poison": 0.03,
}
_DELAYED = 0.15
_PATIENT = 50  # attempts: what is not told to die must not run out of them, however often its worker is killed
_BACKOFF = Backoff(kind="fixed", base=timedelta(seconds=1), jitter=0.5)


def random_job(rng: random.Random, queue: str = "default") -> NewJob:
    """One job of the mix; some are due 1 to 20 s from now."""
    [do] = rng.choices(list(_MIX), list(_MIX.values()))
    order: dict[str, Any] = {"do": do}
    lease_s = LEASE.total_seconds()
    match do:
        case "sleep":
            order["seconds"] = round(rng.uniform(0.0, 0.2), 3)
        case "long":
            order["seconds"] = round(rng.uniform(1.2, 2.0) * lease_s, 3)
        case "block":
            order["seconds"] = round(rng.uniform(0.55, 1.2) * lease_s, 3)
        case "fail":
            order["times"] = rng.randint(1, 2)
        case "snooze":
            order |= {"times": 1, "seconds": round(rng.uniform(0.2, 2.0), 3)}
    attempts = {"hopeless": 3, "poison": rng.randint(2, 3)}.get(do, _PATIENT)
    return NewJob(
        KIND,
        order,
        queue=queue,
        concurrency_key=str(rng.randrange(20)),
        priority=rng.choice((3, 5, 5, 7)),
        delay=timedelta(seconds=rng.uniform(1.0, 20.0)) if rng.random() < _DELAYED else None,
        retry=RetryPolicy(max_attempts=attempts, backoff=_BACKOFF),
    )


def may_end(do: str, state: str, reason: str | None, cancel_asked: bool) -> bool:
    """Whether a job that was told to `do` this may be in this final state."""
    if state == "cancelled":
        return cancel_asked
    match do:
        case "poison":
            return (state, reason) == ("dead", "worker_lost")
        case "hopeless":  # the last attempt's worker may have been killed
            return state == "dead" and reason in ("attempts_exhausted", "worker_lost")
        case "bury":
            return (state, reason) == ("dead", "permanent")
        case _:
            return state == "succeeded"
