"""From an outcome to the edge that the job takes: the retry rules in one pure function."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Bury, Cancel, Hold, Interrupted, Outcome, Report, Retry, Snooze, Success
from duly.model.retry import LONGEST
from duly.model.states import DeadReason

Edge = Literal["succeeded", "dead", "cancelled", "retry", "snooze", "interrupted", "release", "hold"]


class Settlement(NamedTuple):
    """What `settle` writes for one leased job.

    `edge` names the way out of running:

    - a final state: succeeded, dead, cancelled;
    - `retry`: scheduled, with the next attempt number;
    - `snooze`: the same, and the budget grows by the attempt that was not used up;
    - `interrupted`: ready, and the budget grows, a bounded number of times; after that it counts as a failure;
    - `release`: ready again under the same number. It never started, so it leaves no attempt in the ledger;
    - `hold`: scheduled under the same number, with the delay. It never started either.

    `delay` is counted from the database's clock at the settle. `result`: a value to be mended, or the `JsonText` of one
    that was checked. `run_at`, for `hold`: when the job was due this time. The same attempt may be claimed again later,
    and a repeat of the hold must not match that lease.
    """

    job_id: UUID
    attempt: int
    edge: Edge
    delay: timedelta = timedelta(0)
    reason: DeadReason | None = None
    result: Any = None
    report: Report | None = None
    run_at: datetime | None = None


def settlement(job: ClaimedJob, outcome: Outcome, ran_for: timedelta, rng: random.Random) -> Settlement:
    """Decide the edge for an outcome. `ran_for` is the time since the claim, by a monotonic clock."""
    match outcome:
        case Success(result=result, report=report):
            return Settlement(job.id, job.attempt, "succeeded", result=result, report=report)
        case Bury(reason=reason, report=report):
            return Settlement(job.id, job.attempt, "dead", reason=reason, report=report)
        case Cancel(report=report):
            return Settlement(job.id, job.attempt, "cancelled", report=report)
        case Snooze(delay=delay, report=report):
            return Settlement(job.id, job.attempt, "snooze", delay=_clamped(delay), report=report)
        case Hold(delay=delay):
            return _held(job, delay, job.age + ran_for)
        case Interrupted(report=report):
            return Settlement(job.id, job.attempt, "interrupted", report=report)
        case Retry(report=report, at_least=at_least):  # pragma: no branch (the last outcome)
            return _after_failure(job, report, at_least, job.age + ran_for, rng)


def release(job: ClaimedJob) -> Settlement:
    """Give back a job that was claimed and never started."""
    return Settlement(job.id, job.attempt, "release")


def expired(job: ClaimedJob) -> Settlement:
    """End a job that came too late to be started."""
    return Settlement(job.id, job.attempt, "dead", reason=DeadReason.EXPIRED)


def _held(job: ClaimedJob, delay: timedelta, age: timedelta) -> Settlement:
    age_left = job.retry.max_age - age
    if age_left <= timedelta(0):
        return Settlement(job.id, job.attempt, "dead", reason=DeadReason.MAX_AGE)
    return Settlement(job.id, job.attempt, "hold", delay=_clamped(min(delay, age_left)), run_at=job.run_at)


def _after_failure(
    job: ClaimedJob, report: Report, at_least: timedelta | None, age: timedelta, rng: random.Random
) -> Settlement:
    if job.attempt >= job.final_attempt:
        return Settlement(job.id, job.attempt, "dead", reason=DeadReason.ATTEMPTS_EXHAUSTED, report=report)
    failures = job.max_attempts - (job.final_attempt - job.attempt)
    age_left = job.retry.max_age - age
    delay = job.retry.backoff.delay(failures, rng)
    if at_least is not None:
        delay = max(delay, min(at_least, max(age_left, timedelta(0))))
    if delay > age_left:
        return Settlement(job.id, job.attempt, "dead", reason=DeadReason.MAX_AGE, report=report)
    return Settlement(job.id, job.attempt, "retry", delay=_clamped(delay), report=report)


def _clamped(delay: timedelta) -> timedelta:
    return max(timedelta(0), min(delay, LONGEST))
