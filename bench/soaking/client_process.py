"""A client process of a soak: enqueues until SIGTERM, cancels some, and journals each job that was acknowledged, and
only those. `python -m bench.soaking.client_process JSON`; JSON: dsn, journal, number, account, project.

A batch whose answer was lost is sent again under the same ids until it is answered. Some batches are enqueued in a
transaction that stays open for seconds; some of those are rolled back.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import deque
from pathlib import Path
from uuid import UUID

import asyncpg

from bench.soaking.journal import Journal
from bench.soaking.orders import LATE_QUEUE, random_job
from bench.soaking.worker_process import die_with_parent
from duly import queue
from duly.cli.stopping import Stop, run_loop
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database, Owner

_PAUSE_S = 0.1
_LATE_AT_ONCE = 3
_RECENT = 300


class Client:
    """One client and what it remembers."""

    def __init__(self, db: Database, owner: Owner, journal: Journal, seed: int) -> None:
        self._db = db
        self._owner = owner
        self._journal = journal
        self._rng = random.Random(seed)
        self._recent: deque[UUID] = deque(maxlen=_RECENT)

    async def run(self, stopping: asyncio.Event) -> None:
        late: set[asyncio.Task[None]] = set()
        while not stopping.is_set():
            await self._enqueue()
            if self._rng.random() < 0.1 and self._recent:
                await self._cancel(self._rng.choice(self._recent))
            if self._rng.random() < 0.03 and len(late) < _LATE_AT_ONCE:
                late.add(asyncio.create_task(self._enqueue_early_and_commit_late()))
            for task in [task for task in late if task.done()]:
                late.discard(task)
                task.result()
            await asyncio.sleep(_PAUSE_S * self._rng.uniform(0.5, 1.5))
        await asyncio.gather(*late)

    async def _enqueue(self) -> None:
        batch = [(self._owner, random_job(self._rng)) for _ in range(self._rng.randint(1, 7))]
        while True:
            try:
                answers = await queue.enqueue(self._db, batch)
            except DatabaseUnavailableError:
                await asyncio.sleep(0.1)
            else:
                break
        for answer in answers:
            assert answer.result in ("created", "repeated"), answer
            self._acknowledged(answer.job_id)

    async def _enqueue_early_and_commit_late(self) -> None:
        batch = [(self._owner, random_job(self._rng, LATE_QUEUE)) for _ in range(5)]
        try:
            async with self._db.transaction() as session:
                await queue.enqueue(session, batch)
                await asyncio.sleep(self._rng.uniform(0.2, 8.0))
                if self._rng.random() < 0.2:
                    raise LookupError
        except (LookupError, DatabaseUnavailableError):
            return
        except asyncpg.SerializationError:  # a lane that a rival made: the caller is to run its transaction again
            return
        for _, job in batch:
            self._acknowledged(job.id)

    async def _cancel(self, job_id: UUID) -> None:
        self._journal.write("cancel", job_id)
        try:
            answer = await queue.cancel(self._db, self._owner, job_id, abort=self._rng.random() < 0.5)
        except DatabaseUnavailableError:
            return
        assert answer != "missing", f"job {job_id} was acknowledged and is not there"

    def _acknowledged(self, job_id: UUID) -> None:
        self._journal.write("acknowledged", job_id)
        self._recent.append(job_id)


async def serve(dsn: str, journal: Journal, owner: Owner, number: int) -> None:
    stop = Stop()
    while True:
        try:
            db = await Database.open(dsn, max_size=1 + _LATE_AT_ONCE, name="soak-client")
        except DatabaseUnavailableError:
            if stop.draining.is_set():
                return
            await asyncio.sleep(0.2)
        else:
            break
    orphaned = asyncio.create_task(die_with_parent())
    try:
        async with db:
            await Client(db, owner, journal, number).run(stop.draining)
    finally:
        orphaned.cancel()


def main() -> None:
    told = json.loads(sys.argv[1])
    journal = Journal(Path(told["journal"]), told["number"])
    owner = Owner(told["account"], told["project"])
    run_loop(lambda: serve(told["dsn"], journal, owner, told["number"]))


if __name__ == "__main__":
    main()
