"""Write outcomes in batches: what comes in while one statement runs goes out with the next.

A batch is bounded in rows; nothing waits longer than the statement in flight. While the database is away outcomes are
kept (their slots stay taken, so their number is bounded by the concurrency) and written when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.model.outcomes import Report
from duly.model.settlement import Settlement
from duly.queue.database import Database
from duly.worker.backing_off import database_pause
from duly.worker.waiting import first_of

log = logging.getLogger("duly.worker")


class Settler:
    """Collects settlements and writes them. `on_settled(n)` is called as slots become free."""

    def __init__(self, db: Database, batch: int, on_settled: Callable[[int], None]) -> None:
        self._db = db
        self._batch = batch
        self._on_settled = on_settled
        self._waiting: deque[tuple[int, Settlement]] = deque()
        self._came = asyncio.Event()
        self._in_flight: dict[UUID, int] = {}
        self.refused_total = 0
        self.settled_total = 0

    @property
    def unsettled(self) -> int:
        """Outcomes not yet confirmed by the database."""
        return len(self._waiting) + len(self._in_flight)

    def holding(self) -> set[UUID]:
        """The jobs whose outcomes are not yet confirmed."""
        return {settlement.job_id for _, settlement in self._waiting} | self._in_flight.keys()

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
                await self._write(worker_id, batch)
            except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
                self._db.trouble.failed("settle", error)
                self._waiting.extendleft((worker_id, s) for s in reversed(batch))
                self._landed(batch)
                await asyncio.sleep(pause.next_s())
            else:
                self._landed(batch)
                pause.reset()
                self._db.trouble.fine("settle")
                self._on_settled(len(batch))

    def _landed(self, batch: list[Settlement]) -> None:
        for settlement in batch:
            self._in_flight.pop(settlement.job_id, None)

    def _next_batch(self) -> tuple[int, list[Settlement]]:
        worker_id = self._waiting[0][0]
        batch: list[Settlement] = []
        while self._waiting and len(batch) < self._batch and self._waiting[0][0] == worker_id:
            batch.append(self._waiting.popleft()[1])
        return worker_id, batch

    async def _write(self, worker_id: int, batch: list[Settlement]) -> None:
        try:
            refused = await queue.settle(self._db, worker_id, batch)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
            if len(batch) > 1:  # one of them cannot be written: do not let it hold up the others
                for one in batch:
                    await self._write(worker_id, [one])
                return
            log.exception("an outcome could not be written as it is", extra={"job_id": str(batch[0].job_id)})
            refused = await queue.settle(self._db, worker_id, [_bare(batch[0], error)])
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
