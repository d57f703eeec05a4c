"""Creates inside their account's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duly.api.services import Services
from duly.model import NewJob
from duly.queue import Enqueued, Owner, Session, get_job
from duly.service import AccountLimits
from duly.service.creating import Created
from duly.service.faults import OverLimitError


class Caller(Protocol):
    """For whom jobs are made, and the limits of their account."""

    @property
    def owner(self) -> Owner: ...

    @property
    def limits(self) -> AccountLimits: ...


async def create_within_limits(
    services: Services, caller: Caller, job: NewJob, session: Session | None = None
) -> Created:
    """Store a job and count it; one that was there already costs nothing, and is answered at the limit too.

    Raises OverLimitError, and as `Creator.create` does; nothing is stored then.
    """
    try:
        async with services.allowances.take(caller.owner.account_id, caller.limits) as taking:
            enqueued = await services.creator.create(caller.owner, job, session)
            taking.created = int(enqueued.result == "created")
            return enqueued
    except OverLimitError:
        if await get_job(session or services.database, caller.owner, job.id) is None:
            raise
        return await services.creator.create(caller.owner, job, session)  # its id is taken: it cannot be made once more


async def create_all_within_limits(
    services: Services, caller: Caller, jobs: Sequence[NewJob], session: Session | None = None
) -> Sequence[Enqueued]:
    """The same for a batch, all or none: there must be room for every job of it, also for those that were there."""
    async with services.allowances.take(caller.owner.account_id, caller.limits, len(jobs)) as taking:
        enqueued = await services.creator.create_all(caller.owner, jobs, session)
        taking.created = sum(answer.result == "created" for answer in enqueued)
        return enqueued
