"""What keeps the queue turning: promote, rescue, segments, days, retention, unique keys that nobody holds, idempotency
keys of yesterday, claims that nobody reads; and what was asked for many jobs at once. Small steps called by a loop,
each callable by a test.

May import: model, schema, queue, worker. Touches scheduled, ready, lease, worker, unique_key, idempotency,
operation, the segments and old facts, through `queue`.
Must hold: every step is safe to run anywhere, any number of times, beside any number of others of its kind.
"""

from duly.upkeep.promoter import Promoter
from duly.upkeep.pruner import Pruner
from duly.upkeep.running import Upkeep
from duly.upkeep.segments import SegmentKeeper

__all__ = ["Promoter", "Pruner", "SegmentKeeper", "Upkeep"]
