"""How job code says what is to become of its job: raised from anywhere, or returned.

Anything else that is returned is the result; anything else that is raised is a failed attempt.
"""

from __future__ import annotations

from datetime import timedelta

from duly.model import outcomes
from duly.model.outcomes import Outcome, Report
from duly.model.states import DeadReason
from duly.model.storable import storable_text
from duly.tasks.options import Duration, as_duration


class JobOutcome(Exception):
    """Root of the four."""

    def to_outcome(self) -> Outcome:
        raise NotImplementedError


class Retry(JobOutcome):
    """The attempt failed: run it again after the policy's backoff, or `after` if that is longer. It uses up the
    attempt.
    """

    def __init__(self, after: Duration | None = None, reason: str = "asked for a retry") -> None:
        super().__init__(reason)
        self.after = None if after is None else as_duration("after", after)

    def to_outcome(self) -> Outcome:
        return outcomes.Retry(_report("error", self), self.after)


class Snooze(JobOutcome):
    """Not now: run it again after `delay`. It uses up no attempt."""

    def __init__(self, delay: Duration, reason: str = "snoozed") -> None:
        super().__init__(reason)
        self.delay: timedelta = as_duration("delay", delay)

    def to_outcome(self) -> Outcome:
        return outcomes.Snooze(self.delay, _report("snoozed", self))


class Bury(JobOutcome):
    """It will never work: straight to the dead letters."""

    def __init__(self, reason: str = "buried by its own code") -> None:
        super().__init__(reason)

    def to_outcome(self) -> Outcome:
        return outcomes.Bury(DeadReason.PERMANENT, _report("error", self))


class Cancel(JobOutcome):
    """It is not wanted any more: cancelled, not dead."""

    def __init__(self, reason: str = "cancelled by its own code") -> None:
        super().__init__(reason)

    def to_outcome(self) -> Outcome:
        return outcomes.Cancel(_report("cancelled", self))


def _report(result: str, outcome: JobOutcome) -> Report:
    return Report(result, error=storable_text(str(outcome)))
