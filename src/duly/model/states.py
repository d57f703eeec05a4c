"""The six states of a job and the edges between them.

Every edge is written by one guarded statement of `schema/functions/`; a state that is not the source of an edge
cannot be left by it, whoever asks and however late.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a job is. Exactly one at any moment."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class DeadReason(StrEnum):
    """Why a job is a dead letter."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    MAX_AGE = "max_age"
    PERMANENT = "permanent"
    TARGET_GONE = "target_gone"
    STOPPED_BY_TARGET = "stopped_by_target"
    TARGET_NOT_ALLOWED = "target_not_allowed"
    EXPIRED = "expired"
    WORKER_LOST = "worker_lost"


FINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

# edge (the function that writes it) → where it may start, where it may end
TRANSITIONS: dict[str, tuple[frozenset[State], frozenset[State]]] = {
    "enqueue": (frozenset(), frozenset({State.SCHEDULED, State.READY})),
    "promote": (frozenset({State.SCHEDULED}), frozenset({State.READY})),
    "claim": (frozenset({State.READY}), frozenset({State.RUNNING})),
    "settle": (frozenset({State.RUNNING}), frozenset({State.SCHEDULED, State.READY, *FINAL})),
    "rescue": (frozenset({State.RUNNING}), frozenset({State.SCHEDULED, State.DEAD, State.CANCELLED})),
    "cancel": (frozenset({State.SCHEDULED, State.READY}), frozenset({State.CANCELLED})),
    "run_now": (frozenset({State.SCHEDULED}), frozenset({State.READY})),
    "redrive": (frozenset({State.DEAD, State.CANCELLED}), frozenset({State.READY})),
}
