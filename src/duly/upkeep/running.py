"""The upkeep loops of one process."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.model.retention import Retention
from duly.queue.database import STATEMENT_LIMIT, Database
from duly.queue.trouble import Trouble
from duly.upkeep.promoter import Promoter
from duly.upkeep.pruner import Pruner
from duly.upkeep.segments import SegmentKeeper
from duly.worker.backing_off import database_pause
from duly.worker.listener import Wakeups
from duly.worker.waiting import first_of

log = logging.getLogger("duly.upkeep")

_RESCUE_EVERY = timedelta(seconds=1)
_RESCUE_BATCH = 500
_NAMED = 5  # jobs of a pass that the log names
_SEGMENTS_EVERY = timedelta(seconds=1)
_SEGMENTS_EVERY_BUSY = timedelta(milliseconds=250)  # a drained segment costs every claim until it is retired
_DAYS_EVERY = timedelta(hours=1)
_DAYS_AHEAD = 4
_QUOTAS_BATCH = 5_000
_UNREAD_EVERY = timedelta(seconds=5)
_KEYS_EVERY = timedelta(minutes=10)
_KEYS_BATCH = 500
_FIRST_KEY = (0, "")
_IDEMPOTENCY_EVERY = timedelta(minutes=5)
_IDEMPOTENCY_BATCH = 500
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_OPERATIONS_EVERY = timedelta(seconds=1)
_OPERATION_BATCH = 100
_OPERATION_LOOK = 2000


class Upkeep:
    """Promote, rescue, segments, days and retention, each in a loop of its own until told to stop.

    `on_rescued` is told of every lease that was lost.
    """

    def __init__(
        self,
        db: Database,
        wakeups: Wakeups,
        retention: Retention | None = None,
        on_rescued: Callable[[Sequence[queue.Rescued]], None] = lambda _: None,
    ) -> None:
        self._db = db
        self._woken = wakeups.subscribe()
        self._on_rescued = on_rescued
        self._promoter = Promoter(db)
        self._pruner = Pruner(db, retention)
        self._keepers = (SegmentKeeper(db, "ready"), SegmentKeeper(db, "lease"))
        self._swept_to = _FIRST_KEY
        self._forgotten_to = _LONG_AGO
        self._unread_after = 1.5 * STATEMENT_LIMIT
        self._watching_since: float | None = None  # monotonic seconds; None: the last rescue failed, or there was none

    async def run(self, stopping: asyncio.Event) -> None:
        """Run every loop until `stopping`. A step that fails because the database is away is tried again."""
        async with asyncio.TaskGroup() as group:
            trouble = self._db.trouble
            group.create_task(every(self._promoter.step, stopping, trouble, "promote", self._woken))
            group.create_task(every(self.rescue_step, stopping, trouble, "rescue"))
            group.create_task(every(self.segments_step, stopping, trouble, "segments"))
            group.create_task(every(self.days_step, stopping, trouble, "days"))
            group.create_task(every(self.keys_step, stopping, trouble, "keys"))
            group.create_task(every(self.idempotency_step, stopping, trouble, "idempotency keys"))
            group.create_task(every(self.operations_step, stopping, trouble, "operations"))
            group.create_task(every(self.unread_step, stopping, trouble, "unread claims"))
            group.create_task(every(self.retention_step, stopping, trouble, "retention"))

    async def rescue_step(self) -> timedelta:
        """Rescue what lost its lease, from workers that had a lease's time to renew since the database answers."""
        since = self._watching_since
        watched = timedelta(seconds=0 if since is None else time.monotonic() - since)
        self._watching_since = None  # unless this step succeeds
        rescued = await queue.rescue(self._db, await queue.live_segments(self._db, "lease"), _RESCUE_BATCH, watched)
        self._watching_since = time.monotonic() if since is None else since
        if rescued:
            _tell(rescued)
            self._on_rescued(rescued)
        return timedelta(0) if len(rescued) == _RESCUE_BATCH else _jittered(_RESCUE_EVERY)

    async def segments_step(self) -> timedelta:
        """One round over the segments of both lines."""
        before = sum(keeper.retired_total for keeper in self._keepers)
        for keeper in self._keepers:
            await keeper.step()
        busy = sum(keeper.retired_total for keeper in self._keepers) > before
        return _jittered(_SEGMENTS_EVERY_BUSY if busy else _SEGMENTS_EVERY)

    async def days_step(self) -> timedelta:
        """Make the partitions of the days to come, and forget what was taken of quotas in months long ended."""
        await queue.add_days(self._db, _DAYS_AHEAD)
        await queue.forget_quotas(self._db, _QUOTAS_BATCH)
        return _jittered(_DAYS_EVERY)

    async def unread_step(self) -> timedelta:
        """End claims that a stopped process or a dead link keeps from their commit."""
        ended = await queue.end_unread_claims(self._db, self._unread_after)
        if ended:
            log.warning("ended claims whose answer nobody reads", extra={"claims": ended})
        return _jittered(_UNREAD_EVERY)

    async def keys_step(self) -> timedelta:
        """Forget unique keys that nobody holds any more, one batch."""
        place = await queue.sweep_keys(self._db, self._swept_to, _KEYS_BATCH)
        self._swept_to = place or _FIRST_KEY
        return timedelta(milliseconds=50) if place else _jittered(_KEYS_EVERY)

    async def idempotency_step(self) -> timedelta:
        """Forget idempotency keys that are more than a day old, one batch."""
        place = await queue.forget_idempotency(self._db, self._forgotten_to, _IDEMPOTENCY_BATCH)
        self._forgotten_to = place or self._forgotten_to
        return timedelta(milliseconds=50) if place else _jittered(_IDEMPOTENCY_EVERY)

    async def operations_step(self) -> timedelta:
        """One step of an operation whose time has come, at its rate."""
        step = await queue.step_operation(self._db, _OPERATION_BATCH, _OPERATION_LOOK)
        if step is None:
            return _jittered(_OPERATIONS_EVERY)
        if step.finished:
            log.info("operation finished", extra={"operation_id": str(step.operation_id)})
        return timedelta(0)  # others may be due

    async def retention_step(self) -> timedelta:
        """Drop an old day, or delete one batch of what is old enough."""
        return _jittered(await self._pruner.step())


async def every(
    step: Callable[[], Awaitable[timedelta]],
    stopping: asyncio.Event,
    trouble: Trouble,
    part: str,
    woken: asyncio.Event | None = None,
) -> None:
    """Call `step` again and again, each time after the delay it returns, or at once when `woken` is set. After a
    failure it pauses, longer each time, whoever wakes it, and reports it to `trouble` as that of `part`.
    """
    pause = database_pause()
    while not stopping.is_set():
        try:
            delay_s = (await step()).total_seconds()
        except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
            trouble.failed(part, error)
            await first_of(stopping, limit_s=pause.next_s())
            continue
        pause.reset()
        trouble.fine(part)
        await first_of(stopping, *([woken] if woken else []), limit_s=delay_s)
        if woken is not None:
            woken.clear()


def _tell(rescued: Sequence[queue.Rescued]) -> None:
    why: Counter[str] = Counter(lost.outcome for lost in rescued)
    log.warning(
        "leases lost",
        extra={
            "jobs": len(rescued),
            **dict(why),
            "job_ids": [str(lost.job_id) for lost in rescued[:_NAMED]],
            "worker_ids": sorted({lost.worker_id for lost in rescued})[:_NAMED],
        },
    )


def _jittered(delay: timedelta) -> timedelta:
    return delay * random.uniform(0.75, 1.25)
