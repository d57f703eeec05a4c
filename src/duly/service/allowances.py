"""How many jobs an account may create: those it has stored, and its monthly quota. No row is updated per job.

This process holds an allowance of both and takes from it; only when it is used up does it ask the database, for the
next part. So a create of an account below its limits costs nothing more, and one at its limits is refused from memory.

- **Monthly quota.** The allowance is a block, 1/256 of the quota, written down as taken before any of it is used: the
  quota is never exceeded, by however many processes. What a process holds and does not use is given back when it
  stops; one that is killed loses its block, so an account may get up to 1/256 less for each kill.
- **Stored jobs.** Counted, and the allowance is an eighth of the room that is left. Exact in one process; several may
  go over by a job each, while they fill the last few places at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, give_back_quota, stored_jobs, take_quota
from duly.service.faults import OverLimitError
from duly.service.plans import AccountLimits

BLOCKS = 256
PARTS = 8
FULL_S = 0.2
"""For so long a limit that was met counts as met without asking again; and ten times as long as asking took."""

MONTHLY_QUOTA = "monthly_quota"
STORED = "stored"
_MONTH_S = 31 * 86_400


@dataclass(slots=True)
class Taking:
    """Jobs about to be created; whoever creates them says how many of them really were."""

    created: int = 0


@dataclass(slots=True)
class _Allowance:
    """What this process may create of one account before it asks again. `full_until`: monotonic seconds."""

    limit: int
    left: int = 0
    in_flight: int = 0
    ends_at: float = 0.0
    full_until: float = 0.0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    landed: asyncio.Event = field(default_factory=asyncio.Event)  # set when nothing is in flight

    def take(self, jobs: int) -> None:
        self.left -= jobs
        self.in_flight += jobs
        self.landed.clear()

    def settle(self, jobs: int, created: int) -> None:
        self.left += jobs - created
        self.in_flight -= jobs
        if self.in_flight == 0:
            self.landed.set()


class Allowances:
    """One per process."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._quotas: dict[int, _Allowance] = {}
        self._stored: dict[int, _Allowance] = {}

    @asynccontextmanager
    async def take(self, account_id: int, limits: AccountLimits, jobs: int = 1) -> AsyncIterator[Taking]:
        """Room for creating so many jobs inside the block; what was not created is given back at its end.

        Raises OverLimitError, before anything is stored, if there is not room for all of them.
        """
        taking = Taking()
        stored = quota = None
        try:
            if limits.stored is not None:
                stored = await self._take_stored(account_id, limits.stored, jobs)
            if limits.monthly_quota is not None:
                quota = await self._take_quota(account_id, limits.monthly_quota, jobs)
            yield taking
        finally:
            for allowance in (stored, quota):
                if allowance is not None:
                    allowance.settle(jobs, taking.created)

    def held(self, account_id: int) -> int:
        """What this process holds of an account's quota and has not used."""
        allowance = self._quotas.get(account_id)
        return 0 if allowance is None or self._clock() >= allowance.ends_at else allowance.left

    async def close(self) -> None:
        """Give back what was not used, as far as the database is there to take it."""
        quotas, self._quotas = self._quotas, {}
        for account_id, allowance in quotas.items():
            if allowance.left > 0:
                with suppress(DatabaseUnavailableError):
                    await give_back_quota(self._db, account_id, allowance.left, allowance.ends_at - self._clock())

    async def _take_quota(self, account_id: int, quota: int, jobs: int) -> _Allowance:
        allowance = self._quotas.setdefault(account_id, _Allowance(quota))
        async with allowance.asking:
            now = self._clock()
            if now >= allowance.ends_at:
                allowance.left = 0
            if allowance.limit != quota:
                if allowance.left > 0:  # of the old quota: the new one may not have it
                    await give_back_quota(self._db, account_id, allowance.left, allowance.ends_at - now)
                allowance.limit, allowance.left, allowance.full_until = quota, 0, 0.0
            wanted = jobs - allowance.left
            if wanted > 0:
                if now < allowance.full_until:
                    raise _quota_used_up(quota, allowance.ends_at - now)
                got = await take_quota(self._db, account_id, quota, wanted, quota // BLOCKS)
                allowance.ends_at = now + got.ends_in_s
                if not got.taken:
                    allowance.full_until = now + FULL_S
                    raise _quota_used_up(quota, got.ends_in_s)
                allowance.left += got.taken
            allowance.take(jobs)
        return allowance

    async def _take_stored(self, account_id: int, limit: int, jobs: int) -> _Allowance:
        allowance = self._stored.setdefault(account_id, _Allowance(limit))
        async with allowance.asking:
            if allowance.limit != limit:
                allowance.limit, allowance.left, allowance.full_until = limit, 0, 0.0
            if allowance.left < jobs:
                asked_at = self._clock()
                if asked_at < allowance.full_until:
                    raise _store_full(limit, allowance.full_until - asked_at)
                flying = allowance.in_flight  # read first: these may land while the others are counted
                room = limit - await stored_jobs(self._db, account_id, limit) - flying
                if room < jobs and flying:  # some of those may have been counted as stored, too
                    await allowance.landed.wait()
                    room = limit - await stored_jobs(self._db, account_id, limit)
                now = self._clock()
                if room < jobs:
                    allowance.left = 0
                    allowance.full_until = now + max(FULL_S, 10 * (now - asked_at))
                    raise _store_full(limit, allowance.full_until - now)
                allowance.left = max(jobs, room // PARTS)
            allowance.take(jobs)
        return allowance


def _quota_used_up(quota: int, ends_in_s: float) -> OverLimitError:
    return OverLimitError(
        MONTHLY_QUOTA,
        quota,
        f"the account's quota of {quota} jobs a month does not allow this: wait for the next month, or ask for more",
        retry_after_s=ends_in_s,
        window_s=_MONTH_S,
    )


def _store_full(limit: int, retry_after_s: float) -> OverLimitError:
    return OverLimitError(
        STORED,
        limit,
        f"the account may have {limit} jobs that have not ended, and this would be more: wait until some end, "
        "cancel some, or ask for more",
        retry_after_s=retry_after_s,
    )
