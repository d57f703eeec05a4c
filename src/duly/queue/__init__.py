"""The only code that calls the queue's SQL: enqueue, claim, settle, heartbeat, cancel, redrive, limits, inspect.

May import: model, schema, asyncpg. Touches every hot table, through the functions of `schema/functions`.
Knows no loops: each call is one statement with a time limit, sent again a few times if a rival's deadlock or conflict
rolled it back (a claim that finds nothing may be several). Must hold: every write names the lease (job id and
attempt) or the job's owner; rows come back as frozen dataclasses or tuples.
"""

from duly.queue.changing import Change, Changed, change_job
from duly.queue.claiming import ClaimCursor, Shares, claim
from duly.queue.clock import DatabaseClock
from duly.queue.control import cancel, redrive, run_now
from duly.queue.database import Database, Executor, Session
from duly.queue.enqueue import Enqueued, Owner, enqueue
from duly.queue.events import Event, events_between
from duly.queue.finding import JobFilter, Page, find_ids, look_at
from duly.queue.idempotency import (
    IdempotencyKey,
    Taken,
    forget_idempotency,
    note_answer,
    take_idempotency_key,
)
from duly.queue.inspect import (
    AttemptView,
    Conservation,
    Health,
    JobView,
    WorkerView,
    conservation,
    get_job,
    health,
    list_attempts,
    list_jobs,
    list_workers,
    server_now,
)
from duly.queue.leases import Renewal, deregister, heartbeat, register
from duly.queue.limits import (
    QueueSettings,
    Rate,
    get_queue,
    list_queues,
    pause_queue,
    queue_is_known,
    set_account_concurrency,
    set_account_weight,
    set_queue,
    unset_queue,
)
from duly.queue.operations import Call, Operation, Step, get_operation, make_operation, step_operation
from duly.queue.pruning import Pruned, drop_day, forget_redrives, look_at_day, prunable_days, prune_day
from duly.queue.running import give_back, settle
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
from duly.queue.usage import (
    AccountUsage,
    QuotaTaken,
    account_usage,
    apply_limits,
    apply_plan,
    forget_quotas,
    give_back_quota,
    project_has_jobs,
    stored_jobs,
    take_quota,
)

__all__ = [
    "AccountUsage",
    "AttemptView",
    "Call",
    "Change",
    "Changed",
    "ClaimCursor",
    "Conservation",
    "Database",
    "DatabaseClock",
    "Enqueued",
    "Event",
    "Executor",
    "Health",
    "IdempotencyKey",
    "JobFilter",
    "JobView",
    "KeyUse",
    "Line",
    "LiveSegments",
    "Operation",
    "Owner",
    "Page",
    "Promoted",
    "Pruned",
    "QueueSettings",
    "QuotaTaken",
    "Rate",
    "Renewal",
    "Rescued",
    "Session",
    "Shares",
    "Step",
    "Taken",
    "WorkerView",
    "account_usage",
    "add_days",
    "advance",
    "apply_limits",
    "apply_plan",
    "cancel",
    "change_job",
    "claim",
    "conservation",
    "deregister",
    "drop_day",
    "end_unread_claims",
    "enqueue",
    "events_between",
    "find_ids",
    "forget_idempotency",
    "forget_quotas",
    "forget_redrives",
    "get_job",
    "get_operation",
    "get_queue",
    "give_back",
    "give_back_quota",
    "health",
    "heartbeat",
    "keys_in_use",
    "list_attempts",
    "list_jobs",
    "list_queues",
    "list_workers",
    "live_segments",
    "look_at",
    "look_at_day",
    "make_operation",
    "move",
    "note_answer",
    "pause_queue",
    "project_has_jobs",
    "promote",
    "prunable_days",
    "prune_day",
    "queue_is_known",
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
    "set_account_weight",
    "set_queue",
    "settle",
    "step_operation",
    "stored_jobs",
    "sweep_keys",
    "take_idempotency_key",
    "take_quota",
    "unfinished_by_key",
    "unset_queue",
]
