"""Creating jobs: concurrent creates share statements, and each caller still waits for its own commit."""

from __future__ import annotations

from collections.abc import Sequence

from duly.model import NewJob
from duly.model.errors import DatabaseUnavailableError, IdConflictError, UniqueKeyTakenError
from duly.queue import Enqueued, Executor, Owner, enqueue
from duly.service.coalescing import Bounds, Coalescer

ROW_BYTES = 1_024  # what a job weighs beside its body and payload


class Creator:
    """Stores jobs. One per process: what it gathers is what this process has to write."""

    def __init__(self, db: Executor, *, bounds: Bounds | None = None) -> None:
        self._db = db
        self._coalescer = Coalescer(self._enqueue, weigh=_weight, key=_id, bounds=bounds)

    async def create(self, owner: Owner, job: NewJob) -> Enqueued:
        """Store a job; when this returns it is committed: created now, repeated when this very job was there, or kept
        when another one holds its unique key and that is all right.

        Raises IdConflictError if another job has the id, UniqueKeyTakenError if another holds the unique key,
        DatabaseUnavailableError if nothing could be confirmed.
        """
        enqueued = await self._coalescer.submit((owner, job))
        if enqueued.result == "conflict":
            raise IdConflictError(job.id)
        if enqueued.result == "taken" and job.unique is not None:
            raise UniqueKeyTakenError(job.unique.key, enqueued.other)
        return enqueued

    @property
    def waiting(self) -> int:
        """How many jobs wait for a statement to be free."""
        return self._coalescer.waiting

    async def close(self) -> None:
        """Wait until everything that was handed over is answered."""
        await self._coalescer.close()

    async def _enqueue(self, items: Sequence[tuple[Owner, NewJob]]) -> Sequence[Enqueued | BaseException]:
        try:
            return await enqueue(self._db, items)
        except DatabaseUnavailableError:
            raise
        except Exception as error:
            if len(items) == 1:
                return [error]
        # Some item was refused and took its neighbours along: each goes alone and fails for itself.
        return [await self._enqueue_alone(item) for item in items]

    async def _enqueue_alone(self, item: tuple[Owner, NewJob]) -> Enqueued | BaseException:
        try:
            [enqueued] = await enqueue(self._db, [item])
        except Exception as error:
            return error
        return enqueued


def _weight(item: tuple[Owner, NewJob]) -> int:
    _, job = item
    return (
        ROW_BYTES
        + len(job.body or b"")
        + sum(len(str(part)) for part in (job.payload, job.metadata, job.on_success, job.on_dead))
    )


def _id(item: tuple[Owner, NewJob]) -> object:
    return item[1].id
