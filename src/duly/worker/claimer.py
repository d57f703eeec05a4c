"""Claim for free slots: fast while there is work, slower while there is none, at once on a wake-up."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError, LeaseLostError
from duly.model.jobs import ClaimedJob
from duly.queue import ClaimCursor, Database, LiveSegments, Shares
from duly.worker.backing_off import database_pause
from duly.worker.config import WorkerConfig
from duly.worker.waiting import first_of

log = logging.getLogger("duly.worker")

_SEGMENTS_EVERY_S = 0.25
_CLAIMS_AT_ONCE = 2  # while one claim's jobs start, the next is under way


class Slots:
    """How many jobs may be held: claimed, running, or waiting for their settle."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._freed = asyncio.Event()
        self.ended = asyncio.Event()  # a job of ours was settled: where a limit held others back, there may be room

    @property
    def free(self) -> int:
        return self.total - self.taken

    def take(self, n: int) -> None:
        self.taken += n

    def give(self, n: int) -> None:
        self.taken -= n
        self._freed.set()

    def end(self, n: int) -> None:
        """n jobs were settled."""
        self.give(n)
        self.ended.set()

    async def room(self, at_most: int) -> int:
        """How many to claim: what is free, after a moment's wait for a better batch when that is little. 0: nothing
        was freed within a tenth of a second.
        """
        if self.free * 8 < min(self.total, at_most):
            self._freed.clear()
            try:
                async with asyncio.timeout(0.005 if self.free else 0.1):
                    await self._freed.wait()
            except TimeoutError:
                pass
        return max(0, min(self.free, at_most))


class Claimer:
    """Claims for the worker and starts what it gets. `shares(wanted)`: how many of each account a claim may take.
    `start(job, worker_id)` must not block.
    """

    def __init__(
        self,
        db: Database,
        config: WorkerConfig,
        slots: Slots,
        worker_id: Callable[[], int],
        fenced: Callable[[], bool],
        held: Callable[[], Collection[UUID]],
        start: Callable[[ClaimedJob, int], None],
        woken: asyncio.Event,
        shares: Callable[[int], Shares] = lambda _: Shares(),
    ) -> None:
        self._db = db
        self._config = config
        self._slots = slots
        self._worker_id = worker_id
        self._fenced = fenced
        self._held = held
        self._shares = shares
        self._start = start
        self._woken = woken
        self._kinds = sorted(config.handlers)
        self._cursor = ClaimCursor()
        self._segments: LiveSegments | None = None
        self._segments_read_at = 0.0
        self._plenty = asyncio.Event()  # the last claim was full: a second one is worth while
        self._under_way = 0
        self._quiet = asyncio.Event()  # no claim is under way
        self._quiet.set()
        self._unheard = False  # a claim failed after it may have been committed
        self._alone = asyncio.Lock()
        self.claimed_total = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Claim until `stopping`."""
        async with asyncio.TaskGroup() as group:
            for n in range(_CLAIMS_AT_ONCE):
                group.create_task(self._loop(stopping, main=n == 0))

    async def _loop(self, stopping: asyncio.Event, main: bool) -> None:
        pause = database_pause()
        delay = self._config.poll_min
        idle = False
        while not stopping.is_set():
            if not main and not self._plenty.is_set():
                await first_of(self._plenty, stopping)
                continue
            if self._fenced():  # the lease may end before the next renewal: nothing new until it is good again
                await first_of(stopping, limit_s=0.1)
                continue
            room = await self._slots.room(self._config.claim_batch)
            if room == 0:
                continue
            wait = delay * random.uniform(0.75, 1.25)
            if main:
                self._slots.ended.clear()
            self._slots.take(room)  # before anything is awaited: the other loop must not count on the same slots
            try:
                jobs = await self._claim(room, wait if idle and main else timedelta(0))
            except LeaseLostError:
                await first_of(stopping, limit_s=0.2)  # the heartbeat renews it, or registers anew
                continue
            except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
                self._plenty.clear()
                self._db.trouble.failed("claim", error)
                await first_of(stopping, limit_s=pause.next_s())
                continue
            pause.reset()
            self._db.trouble.fine("claim")
            if jobs:
                delay, idle = self._config.poll_min, False
                if len(jobs) * 4 >= room:
                    self._plenty.set()
                continue
            self._plenty.clear()
            if main:
                wait = wait if self._cursor.wait is None else min(wait, self._cursor.wait)
                await first_of(self._woken, self._slots.ended, stopping, limit_s=wait.total_seconds())
                if self._woken.is_set():
                    self._woken.clear()
                    delay, idle = self._config.poll_min, False
                elif not self._slots.ended.is_set():
                    delay, idle = min(delay * 2, self._config.poll_max), True

    async def _claim(self, room: int, rest: timedelta) -> list[ClaimedJob]:
        """Claim into slots already taken; those that stay empty are given back, whatever happens."""
        jobs: list[ClaimedJob] = []
        try:
            segments = await self._live_segments()
            if self._unheard:  # asked last: nothing is awaited from here to the claim, so none starts during a recovery
                await self._recover_unheard(self._db)
            worker_id = self._worker_id()
            jobs = await self._ask(worker_id, room, segments, rest)
        finally:
            self._slots.give(room - len(jobs))
        self.claimed_total += len(jobs)
        for job in jobs:
            self._start(job, worker_id)
        return jobs

    async def _ask(self, worker_id: int, room: int, segments: LiveSegments, rest: timedelta) -> list[ClaimedJob]:
        self._under_way += 1
        self._quiet.clear()
        self._cursor.shares = self._shares(room)
        asked_s = time.monotonic()
        try:
            jobs = await queue.claim(
                self._db, worker_id, room, self._kinds, self._config.queues, self._cursor, segments, rest
            )
        except (DatabaseBusyError, LeaseLostError, asyncpg.PostgresError):
            raise  # rolled back, the server says so
        except BaseException:
            self._unheard = True
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()
        if self._config.observer is not None:
            self._config.observer.claimed(jobs, time.monotonic() - asked_s)
        return jobs

    def doubt(self) -> None:
        """Whether the database has leases for us that we do not know of is to be looked up before the next claim."""
        self._unheard = True

    async def last_word(self, db: Database) -> None:
        """At the end, when no claim is under way any more: give back what none of them was heard to bring."""
        if self._unheard:
            await self._recover_unheard(db)

    async def _recover_unheard(self, db: Database) -> None:
        """Give back what a claim took in an answer that never arrived, while no other claim is under way."""
        async with self._alone:
            if not self._unheard:
                return
            await self._quiet.wait()
            released = await queue.give_back(
                db, self._worker_id(), list(self._held()), await queue.live_segments(db, "lease")
            )
            self._unheard = False
            if released:
                log.info("gave back jobs of a claim whose answer was lost", extra={"jobs": released})

    async def _live_segments(self) -> LiveSegments:
        now = asyncio.get_running_loop().time()
        if self._segments is None or now - self._segments_read_at > _SEGMENTS_EVERY_S:
            self._segments = await queue.live_segments(self._db, "ready")
            self._segments_read_at = now
        return self._segments
