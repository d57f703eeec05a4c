"""A new job copied from one that has ended. Pure."""

from __future__ import annotations

from duly.http.errors import TargetNotAllowedError
from duly.http.policy import EgressPolicy
from duly.http.url import parse_target
from duly.model import FINAL, NewJob, Unique
from duly.model.errors import InvalidInputError, WrongStateError
from duly.queue import JobView
from duly.service.faults import Fault, InvalidJobError
from duly.service.jobs import KIND


def replayed_job(job: JobView, *, policy: EgressPolicy) -> NewJob:
    """A copy of an opened job, due now, under a new id. What was to happen by a time (run_at, expires_at) is left out.

    Raises WrongStateError unless it has ended, InvalidJobError if its target may not be called any more.
    """
    if job.state not in FINAL:
        raise WrongStateError(job.id, job.state, "replay", "succeeded, dead and cancelled")
    if job.kind == KIND and isinstance(job.payload, dict):
        try:
            policy.check_target(parse_target(str(job.payload.get("url"))))
        except (InvalidInputError, TargetNotAllowedError) as error:
            raise InvalidJobError([Fault("", f"its target may not be called any more: {error}")]) from None
    return NewJob(
        kind=job.kind,
        payload=job.payload,
        body=job.body,
        queue=job.queue,
        concurrency_key=job.concurrency_key,
        priority=job.priority,
        timeout=job.timeout,
        retry=job.retry,
        unique=job.unique and Unique(job.unique.key, job.unique.until),
        tags=job.tags,
        metadata=job.metadata,
        on_success=job.on_success,
        on_dead=job.on_dead,
        replay_of=job.id,
    )
