"""A create inside its account's limits."""

from __future__ import annotations

from duly.api.services import Services
from duly.model import NewJob
from duly.queue import Enqueued, get_job
from duly.service import Principal
from duly.service.faults import OverLimitError


async def create_within_limits(services: Services, caller: Principal, job: NewJob) -> Enqueued:
    """Store a job and count it; one that was there already costs nothing, and is answered at the limit too.

    Raises OverLimitError, and as `Creator.create` does; nothing is stored then.
    """
    try:
        async with services.allowances.take(caller.owner.account_id, caller.limits) as taking:
            enqueued = await services.creator.create(caller.owner, job)
            taking.created = int(enqueued.result == "created")
            return enqueued
    except OverLimitError:
        if await get_job(services.database, caller.owner, job.id) is None:
            raise
        return await services.creator.create(caller.owner, job)  # its id is taken: it cannot be made once more
