"""Facts and rules, pure: jobs, states and their edges, outcomes, retry policy, errors.

May import: nothing of ours, no driver, no framework. Touches no table.
Must hold: same input, same answer; clocks and randomness are passed in; durations are `timedelta`.
"""

from duly.model.defaults import INHERITABLE, JobDefaults
from duly.model.errors import DulyError
from duly.model.ids import uuid7, uuid7_time
from duly.model.jobs import ClaimedJob, NewJob, Trigger, Unique
from duly.model.outcomes import Bury, Cancel, Hold, Interrupted, Outcome, Report, Retry, Snooze, Success
from duly.model.retention import Retention
from duly.model.retry import Backoff, RetryPolicy
from duly.model.settlement import Settlement, settlement
from duly.model.states import FINAL, TRANSITIONS, DeadReason, State

__all__ = [
    "FINAL",
    "INHERITABLE",
    "TRANSITIONS",
    "Backoff",
    "Bury",
    "Cancel",
    "ClaimedJob",
    "DeadReason",
    "DulyError",
    "Hold",
    "Interrupted",
    "JobDefaults",
    "NewJob",
    "Outcome",
    "Report",
    "Retention",
    "Retry",
    "RetryPolicy",
    "Settlement",
    "Snooze",
    "State",
    "Success",
    "Trigger",
    "Unique",
    "settlement",
    "uuid7",
    "uuid7_time",
]
