"""Schedules as rows, for whoever needs one in a certain state."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from duly.model import uuid7
from duly.queue import Database
from support.engine import new_owner

SECOND = timedelta(seconds=1)


async def scheduled(
    db: Database,
    *,
    late: timedelta = SECOND,
    overlap: str = "allow",
    weight: int = 100,
    state: str = "active",
    is_task: bool = False,
) -> UUID:
    """A schedule whose fire was due `late` ago (negative: is due in a while)."""
    owner = await new_owner(db)
    schedule_id = uuid7()
    await db.execute(
        """insert into duly.schedule (id, account_id, project_id, cron, anchor_at, missed, missed_limit, missed_after,
                                      overlap, jitter, kind, payload, options, weight_bytes)
           values ($1, $2, $3, '* * * * *', now(), 'one', 1, '1 minute', $4, '0', 'k', '{}', '{}', $5)""",
        schedule_id,
        owner.account_id,
        owner.project_id,
        overlap,
        weight,
    )
    await db.execute(
        """insert into duly.schedule_turn (schedule_id, is_task, state, next_fire_at, since_at, look_at, parked_why)
           select $1, $4, $2, case when $2 = 'active' then a.at end, a.at - interval '1 hour',
                  case when $2 = 'active' then a.at end, case when $2 = 'parked' then 'why' end
           from (select clock_timestamp() - $3::interval as at) a""",
        schedule_id,
        state,
        late,
        is_task,
    )
    return schedule_id
