"""How much there is of everything, read so that it costs the same with ten million jobs as with ten."""

from __future__ import annotations

from dataclasses import dataclass

from duly.queue.database import Executor

COUNT_AT_MOST = 10_000
LOOK_AT_HEADS = 1_000

_FIGURES = """
    select f.scheduled, f.ready, f.running, f.dead, f.finished, f.breakers, f.estimated, f.oldest_due_seconds,
           f.promote_late_seconds, f.ready_segments, f.lease_segments, f.ready_dead_rows, f.lease_dead_rows,
           f.scheduled_dead_rows, w.workers, w.slots, coalesce(w.silent_seconds, 0) as silent_seconds,
           pg_notification_queue_usage() as notification_queue_usage
    from duly.figures($1, $2) f
    cross join (
        select count(*) filter (where w.lease_expires_at > clock_timestamp()) as workers,
               coalesce(sum(w.concurrency) filter (where w.lease_expires_at > clock_timestamp()), 0) as slots,
               extract(epoch from clock_timestamp() - max(w.heartbeat_at))::float8 as silent_seconds
        from duly.worker w) w
"""
_HOLDERS = """
    select h.kind, h.name, h.role, h.pid, h.state, h.seconds, h.transactions from duly.snapshot_holders($1) h
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The database's figures of one moment; `estimated` names those that are not exact. `oldest_due_seconds` None:
    nothing is due. `silent_seconds`: since the last heartbeat of any worker. Segments are the live ones.
    """

    scheduled: int
    ready: int
    running: int
    dead: int
    finished: int
    breakers: int
    estimated: frozenset[str]
    oldest_due_seconds: float | None
    promote_late_seconds: float
    ready_segments: int
    lease_segments: int
    ready_dead_rows: int
    lease_dead_rows: int
    scheduled_dead_rows: int
    workers: int
    slots: int
    silent_seconds: float
    notification_queue_usage: float


@dataclass(frozen=True, slots=True)
class SnapshotHolder:
    """Somebody behind whom vacuum cannot clean up. `kind`: session, prepared transaction, standby, replication slot.
    `seconds`: for how long; None: the server does not know. `transactions`: how many have begun since.
    """

    kind: str
    name: str
    role: str | None
    pid: int | None
    state: str | None
    seconds: float | None
    transactions: int


async def figures(db: Executor, *, at_most: int = COUNT_AT_MOST, heads: int = LOOK_AT_HEADS) -> Figures:
    """Read the figures; nothing is counted further than `at_most`."""
    row = await db.fetchrow(_FIGURES, at_most, heads)
    assert row is not None  # a function with out parameters returns one row
    return Figures(**{**dict(row), "estimated": frozenset(row["estimated"])})


async def snapshot_holders(db: Executor, at_most: int = 5) -> list[SnapshotHolder]:
    """Who holds vacuum back, the worst first; as far as this role may see it."""
    return [SnapshotHolder(**dict(row)) for row in await db.fetch(_HOLDERS, at_most)]
