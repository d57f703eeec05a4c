"""An account with a project, a worker registered by hand, and short words for what tests do with jobs all the time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from duly import queue
from duly.model import ClaimedJob, DeadReason, NewJob, Report, RetryPolicy, Settlement
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Conservation, Database, Enqueued, JobView, LiveSegments, Owner
from duly.queue.database import Executor

LEASE = timedelta(seconds=60)
_names = itertools.count()


async def new_owner(db: Executor, account_id: int | None = None) -> Owner:
    """A fresh project, in a fresh account or in the given one."""
    name = f"owner-{next(_names)}-{uuid4().hex[:8]}"
    if account_id is None:
        account_id = await db.fetchval(
            "insert into duly.account (public_id, name) values (gen_random_uuid(), $1) returning id", name
        )
    assert account_id is not None
    project_id = await db.fetchval(
        "insert into duly.project (public_id, account_id, name) values (gen_random_uuid(), $1, $2) returning id",
        account_id,
        name,
    )
    return Owner(account_id, project_id)


def new_job(**settings: Any) -> NewJob:
    """A job of kind "k"; `max_attempts` is short for a policy that differs in it only."""
    if "max_attempts" in settings:
        settings["retry"] = RetryPolicy(max_attempts=settings.pop("max_attempts"))
    return NewJob(**{"kind": "k", "payload": {}, **settings})


def settled(job: ClaimedJob, edge: Edge, **settings: Any) -> Settlement:
    """A settlement of a claimed job; the edges of a failure carry a report of class "error"."""
    return settled_attempt(job.id, job.attempt, edge, **settings)


def settled_attempt(job_id: UUID, attempt: int, edge: Edge, **settings: Any) -> Settlement:
    """The same, of a lease that only its key is known of."""
    if edge in ("retry", "dead") and "report" not in settings:
        settings["report"] = Report("error", error="it failed")
    if edge == "dead":
        settings.setdefault("reason", DeadReason.PERMANENT)
    return Settlement(job_id, attempt, edge, **settings)


@dataclass
class Engine:
    """One owner and one worker on a database."""

    db: Database
    owner: Owner
    worker_id: int
    cursor: ClaimCursor = field(default_factory=ClaimCursor)

    @classmethod
    async def start(cls, db: Database, lease: timedelta = LEASE) -> Engine:
        return cls(db, await new_owner(db), await new_worker(db, lease))

    async def enqueue(
        self, n: int = 1, *, owner: Owner | None = None, db: Executor | None = None, **settings: Any
    ) -> list[UUID]:
        """Enqueue n like jobs; returns their ids, in the order given."""
        jobs = [(owner or self.owner, new_job(**settings)) for _ in range(n)]
        answers = await queue.enqueue(db or self.db, jobs)
        assert {answer.result for answer in answers} == {"created"}
        return [answer.job_id for answer in answers]

    async def enqueue_on(self, session: Executor, **settings: Any) -> UUID:
        """Enqueue one job inside the session's transaction."""
        [answer] = await queue.enqueue(session, [(self.owner, new_job(**settings))])
        return answer.job_id

    async def put(self, *jobs: NewJob, owner: Owner | None = None) -> list[Enqueued]:
        return await queue.enqueue(self.db, [(owner or self.owner, job) for job in jobs])

    async def claim(
        self,
        limit: int = 1000,
        *,
        worker: int | None = None,
        kinds: Sequence[str] = ("k",),
        queues: Sequence[str] | None = None,
        cursor: ClaimCursor | None = None,
        segments: LiveSegments | None = None,
        db: Executor | None = None,
    ) -> list[ClaimedJob]:
        db = db or self.db
        if segments is None:
            segments = await queue.live_segments(db, "ready")
        worker = self.worker_id if worker is None else worker
        return await queue.claim(db, worker, limit, kinds, queues, cursor or self.cursor, segments)

    async def claim_one(self, **settings: Any) -> ClaimedJob:
        [job] = await self.claim(1, **settings)
        return job

    async def running(self, **settings: Any) -> ClaimedJob:
        """Enqueue one job and claim it."""
        [job_id] = await self.enqueue(**settings)
        job = await self.claim_one(kinds=(settings.get("kind", "k"),))
        assert job.id == job_id
        return job

    async def settle(
        self, *settlements: Settlement, worker: int | None = None, db: Executor | None = None
    ) -> frozenset[UUID]:
        return await queue.settle(db or self.db, self.worker_id if worker is None else worker, settlements)

    async def finish(self, job: ClaimedJob, edge: Edge = "succeeded", **settings: Any) -> None:
        """Settle one job; it must not be refused."""
        assert await self.settle(settled(job, edge, **settings)) == frozenset()

    async def due_now(self, job_id: UUID) -> None:
        """As if the job's time had come: its scheduled row is due since a moment ago, and promoted."""
        await self.db.execute(
            "update duly.scheduled set run_at = now() - interval '1 second' where job_id = $1", job_id
        )
        await queue.promote(self.db, 100)

    async def expire_worker(self, worker: int | None = None) -> None:
        """As if the worker had not renewed for longer than a lease."""
        await self.db.execute(
            "update duly.worker set lease_expires_at = now() - interval '1 second' where id = $1",
            self.worker_id if worker is None else worker,
        )

    async def rescue(self, limit: int = 1000, db: Executor | None = None) -> list[queue.Rescued]:
        db = db or self.db
        return await queue.rescue(db, await queue.live_segments(db, "lease"), limit)

    async def view(self, job_id: UUID) -> JobView:
        view = await queue.get_job(self.db, self.owner, job_id)
        assert view is not None
        return view

    async def attempts(self, job_id: UUID) -> list[tuple[int, str, str]]:
        """The ledger of a job: number, trigger, outcome."""
        rows = await queue.list_attempts(self.db, self.owner, job_id)
        assert rows is not None
        return sorted((row.number, row.trigger, row.outcome) for row in rows)

    async def last_attempt(self, job_id: UUID) -> queue.AttemptView:
        rows = await queue.list_attempts(self.db, self.owner, job_id)
        assert rows
        return rows[-1]

    async def sound(self) -> Conservation:
        """Conservation, which must hold."""
        count = await queue.conservation(self.db)
        assert count.faults == {}
        return count


async def new_worker(db: Executor, lease: timedelta = LEASE, name: str = "by hand") -> int:
    """A worker whose lease is good for a minute at least: a short one is soon past the grace after a server start."""
    worker = await queue.register(db, name, ["k"], None, 100, lease)
    await db.execute(
        """update duly.worker set lease_expires_at = greatest(lease_expires_at, now() + interval '1 minute')
           where id = $1""",
        worker,
    )
    return worker
