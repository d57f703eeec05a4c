"""Write outcomes in batches: what comes in while one statement runs goes out with the next.

A batch is bounded in rows; nothing waits longer than the statement in flight. While the database is away outcomes are
kept (their slots stay taken, so their number is bounded by the concurrency) and written when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError
from duly.model.outcomes import Report
from duly.model.settlement import Settlement
from duly.queue.database import Database
from duly.worker.backing_off import database_pause
from duly.worker.config import Observer
from duly.worker.waiting import first_of

log = logging.getLogger("duly.worker")

_LOCKED_AT_MOST = 3

# What one outcome may do to a batch. Values are mended before they are sent, so this is the second net.
_OF_THE_CONTENT = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    ValueError,
    TypeError,
)


class Settler:
    """Collects settlements and writes them.

    `on_settled(n)` is called as slots become free. `on_unsure()`: a release was sent and its answer lost. It is not
    sent again: the same job may be claimed again meanwhile, under the same attempt number; who holds what is to be
    compared with the database instead.
    """

    def __init__(
        self,
        db: Database,
        batch: int,
        on_settled: Callable[[int], None],
        on_unsure: Callable[[], None] = lambda: None,
        observer: Observer | None = None,
    ) -> None:
        self._db = db
        self._on_unsure = on_unsure
        self._batch = batch
        self._on_settled = on_settled
        self._observer = observer
        self._waiting: deque[tuple[int, Settlement]] = deque()
        self._came = asyncio.Event()
        self._in_flight: set[tuple[UUID, int]] = set()
        self.refused_total = 0
        self.settled_total = 0

    @property
    def unsettled(self) -> int:
        """Outcomes not yet confirmed by the database."""
        return len(self._waiting) + len(self._in_flight)

    def holding(self) -> set[UUID]:
        """The jobs whose outcomes are not yet confirmed."""
        return {settlement.job_id for _, settlement in self._waiting} | {job_id for job_id, _ in self._in_flight}

    def add(self, settlement: Settlement, worker_id: int) -> None:
        """Hand over an outcome, under the worker id that claimed the job."""
        self._waiting.append((worker_id, settlement))
        self._came.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write until `stopping` is set and nothing is left."""
        pause = database_pause()
        while True:
            if not self._waiting:
                if stopping.is_set():
                    return
                self._came.clear()
                await first_of(self._came, stopping)
                continue
            worker_id, batch = self._next_batch()
            self._in_flight.update((s.job_id, s.attempt) for s in batch)
            try:
                unwritten = await self._write(worker_id, batch)
            except DatabaseBusyError as error:  # rolled back for certain
                unwritten = batch if len(batch) == 1 else await self._write_apart(worker_id, batch)
                if len(unwritten) == len(batch):
                    self._db.trouble.failed("settle", error)
            except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
                self._db.trouble.failed("settle", error)
                self._keep(worker_id, batch)
                await asyncio.sleep(pause.next_s())
                continue
            self._waiting.extend((worker_id, s) for s in unwritten)  # behind the others, to hold none of them up
            self._landed(batch)
            self._on_settled(len(batch) - len(unwritten))
            if len(unwritten) < len(batch):
                self._db.trouble.fine("settle")
            if unwritten:
                await asyncio.sleep(pause.next_s())
            else:
                pause.reset()

    def _keep(self, worker_id: int, batch: list[Settlement]) -> None:
        """Put a batch whose answer was lost back in front, but for its releases."""
        again = [s for s in batch if s.edge != "release"]
        self._waiting.extendleft((worker_id, s) for s in reversed(again))
        self._landed(batch)
        if len(again) < len(batch):
            self._on_unsure()
            self._on_settled(len(batch) - len(again))

    def _landed(self, batch: list[Settlement]) -> None:
        for settlement in batch:
            self._in_flight.discard((settlement.job_id, settlement.attempt))

    def _next_batch(self) -> tuple[int, list[Settlement]]:
        worker_id = self._waiting[0][0]
        batch: list[Settlement] = []
        while self._waiting and len(batch) < self._batch and self._waiting[0][0] == worker_id:
            batch.append(self._waiting.popleft()[1])
        return worker_id, batch

    async def _write(self, worker_id: int, batch: list[Settlement]) -> list[Settlement]:
        """Write a batch; returns what could not be written because of what it holds, which keeps nothing else back."""
        try:
            await self._settle(worker_id, batch)
        except _OF_THE_CONTENT as error:
            if len(batch) > 1:
                return [one for part in batch for one in await self._write(worker_id, [part])]
            return await self._write_bare(worker_id, batch[0], error)
        return []

    async def _write_apart(self, worker_id: int, batch: list[Settlement]) -> list[Settlement]:
        """Write a batch one by one, because somebody has locked the lease of one of them; returns those to try again.
        After a few that are locked, the rest waits for the next round. A release whose answer is lost is not among
        them.
        """
        locked: list[Settlement] = []
        for place, one in enumerate(batch):
            try:
                locked += await self._write(worker_id, [one])
            except DatabaseBusyError:
                locked.append(one)
                if len(locked) >= _LOCKED_AT_MOST:
                    return locked + batch[place + 1 :]
            except (DatabaseUnavailableError, asyncpg.PostgresError):  # it may be written or not
                if one.edge == "release":
                    self._on_unsure()
                else:
                    locked.append(one)
                return locked + batch[place + 1 :]
        return locked

    async def _write_bare(self, worker_id: int, one: Settlement, why: Exception) -> list[Settlement]:
        log.error("an outcome could not be written as it is", extra={"job_id": str(one.job_id), "error": str(why)})
        try:
            await self._settle(worker_id, [_bare(one, why)])
        except _OF_THE_CONTENT as error:
            log.error("an outcome cannot be written", extra={"job_id": str(one.job_id), "error": str(error)})
            return [one]
        return []

    async def _settle(self, worker_id: int, batch: Sequence[Settlement]) -> None:
        sent_s = time.monotonic()
        refused = await queue.settle(self._db, worker_id, batch)
        if self._observer is not None:
            self._observer.settled(batch, refused, time.monotonic() - sent_s)
        self.settled_total += len(batch) - len(refused)
        if refused:
            self.refused_total += len(refused)
            log.warning(
                "outcomes refused: the lease was lost",
                extra={"worker_id": worker_id, "job_ids": [str(job_id) for job_id in refused]},
            )


def _bare(settlement: Settlement, error: Exception) -> Settlement:
    """The same edge with nothing attached that the database could refuse."""
    result = "error" if settlement.report is None else settlement.report.result
    report = Report(result, error=f"the outcome could not be stored: {type(error).__name__}")
    return settlement._replace(result=None, report=report)
