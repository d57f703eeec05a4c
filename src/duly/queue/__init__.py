"""The only code that calls the queue's SQL: enqueue, claim, settle, heartbeat, cancel, redrive, limits, inspect.

May import: model, schema, asyncpg. Touches every hot table, through the functions of `schema/functions`.
Knows no loops: each call is one statement with a time limit, sent again a few times if a rival's deadlock or conflict
rolled it back. Must hold: every write names the lease (job id and
attempt) or the job's owner; rows come back as frozen dataclasses or tuples.
"""

from duly.queue.clock import DatabaseClock
from duly.queue.control import cancel, redrive, run_now
from duly.queue.database import Database, Executor, Session
from duly.queue.enqueue import Enqueued, Owner, enqueue
from duly.queue.figures import Figures, SnapshotHolder, figures, snapshot_holders
from duly.queue.inspect import (
    AttemptView,
    Conservation,
    JobView,
    WorkerView,
    conservation,
    get_job,
    list_attempts,
    list_jobs,
    list_workers,
    server_now,
)
from duly.queue.leases import Renewal, deregister, heartbeat, register
from duly.queue.limits import QueueSettings, get_queue, set_account_concurrency, set_queue
from duly.queue.pruning import Pruned, drop_day, forget_redrives, look_at_day, prunable_days, prune_day
from duly.queue.running import ClaimCursor, claim, give_back, settle
from duly.queue.sealed import KeyUse, keys_in_use, unfinished_by_key
from duly.queue.segments import (
    Line,
    LiveSegments,
    advance,
    live_segments,
    move,
    raise_floor,
    retire,
    segment_holders,
    segment_rows,
)
from duly.queue.turning import Promoted, Rescued, add_days, end_unread_claims, promote, rescue, sweep_keys

__all__ = [
    "AttemptView",
    "ClaimCursor",
    "Conservation",
    "Database",
    "DatabaseClock",
    "Enqueued",
    "Executor",
    "Figures",
    "JobView",
    "KeyUse",
    "Line",
    "LiveSegments",
    "Owner",
    "Promoted",
    "Pruned",
    "QueueSettings",
    "Renewal",
    "Rescued",
    "Session",
    "SnapshotHolder",
    "WorkerView",
    "add_days",
    "advance",
    "cancel",
    "claim",
    "conservation",
    "deregister",
    "drop_day",
    "end_unread_claims",
    "enqueue",
    "figures",
    "forget_redrives",
    "get_job",
    "get_queue",
    "give_back",
    "heartbeat",
    "keys_in_use",
    "list_attempts",
    "list_jobs",
    "list_workers",
    "live_segments",
    "look_at_day",
    "move",
    "promote",
    "prunable_days",
    "prune_day",
    "raise_floor",
    "redrive",
    "register",
    "rescue",
    "retire",
    "run_now",
    "segment_holders",
    "segment_rows",
    "server_now",
    "set_account_concurrency",
    "set_queue",
    "settle",
    "snapshot_holders",
    "sweep_keys",
    "unfinished_by_key",
]
