"""Creating jobs: concurrent creates share statements, and each caller still waits for its own commit.

Jobs are sealed here, before anything is stored (see `sealing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

from duly.model import NewJob
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError, IdConflictError, UniqueKeyTakenError
from duly.queue import Database, Enqueued, Owner, enqueue, get_job
from duly.service.coalescing import Bounds, Coalescer
from duly.service.jobs import KIND
from duly.service.keyring import NO_KEYRING, KeyMissingError, Keyring
from duly.service.sealing import key_of, sealed_job

Carry = Callable[[NewJob], AbstractContextManager[Mapping[str, str]]]
"""Entered around the storing of a job: what is to be carried in it of the trace that it belongs to (empty: nothing)."""

PATIENCE = timedelta(seconds=1)  # for a rival's open transaction: others wait behind this statement
ROW_BYTES = 1_024  # what a job weighs beside its body and payload


class Creator:
    """Stores jobs. One per process: what it gathers is what this process has to write. `carry` None: without traces."""

    def __init__(
        self,
        db: Database,
        *,
        keyring: Keyring = NO_KEYRING,
        bounds: Bounds | None = None,
        carry: Carry | None = None,
    ) -> None:
        self._db = db
        self._carry = carry
        self._keyring = keyring
        self._coalescer = Coalescer(self._enqueue, weigh=_weight, key=_id, bounds=bounds)

    async def create(self, owner: Owner, job: NewJob) -> Enqueued:
        """Store a job; when this returns it is committed: created now, repeated when this very job was there, or kept
        when another one holds its unique key and that is all right.

        Raises IdConflictError if another job has the id, UniqueKeyTakenError if another holds the unique key,
        DatabaseUnavailableError if nothing could be confirmed.
        """
        if self._carry is None:
            return await self._create(owner, job, {})
        with self._carry(job) as trace:
            return await self._create(owner, job, trace)

    async def _create(self, owner: Owner, job: NewJob, trace: Mapping[str, str]) -> Enqueued:
        sealed = sealed_job(self._keyring, owner, job)
        if trace and job.kind == KIND:
            sealed = replace(sealed, payload={**sealed.payload, "trace": dict(trace)})
        enqueued = await self._coalescer.submit((owner, sealed))
        if enqueued.result == "conflict":
            enqueued = await self._repeated(owner, job, key_of(sealed.payload)) or enqueued
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

    async def _repeated(self, owner: Owner, job: NewJob, key_id: str | None) -> Enqueued | None:
        """Whether a conflict is none: this very job, stored under a key that is not the first any more, or before
        there were keys. Sealed as the stored one is, the same job has the same bytes, and the database compares them
        by the same rules as ever. None: it is another job.
        """
        stored = await get_job(self._db, owner, job.id)
        if stored is None or key_of(stored.payload) == key_id:
            return None
        stored_key = key_of(stored.payload)
        try:
            alike = job if stored_key is None else sealed_job(self._keyring, owner, job, stored_key)
            async with self._db.transaction() as tx:
                [enqueued] = await enqueue(tx, [(owner, alike)], patience=PATIENCE)
                if enqueued.result != "repeated":
                    raise _NotRepeated  # it was pruned meanwhile: nothing may be stored in this form
        except (KeyMissingError, _NotRepeated):
            return None
        return enqueued

    async def _enqueue(self, items: Sequence[tuple[Owner, NewJob]]) -> Sequence[Enqueued | BaseException]:
        try:
            return await enqueue(self._db, items, patience=PATIENCE)
        except DatabaseBusyError as error:  # one of them waits for somebody's transaction: the others need not
            if len(items) == 1:
                return [error]
        except DatabaseUnavailableError:
            raise
        except Exception as error:
            if len(items) == 1:
                return [error]
        # Some item was refused and took its neighbours along: each goes alone and fails for itself.
        return [await self._enqueue_alone(item) for item in items]

    async def _enqueue_alone(self, item: tuple[Owner, NewJob]) -> Enqueued | BaseException:
        try:
            [enqueued] = await enqueue(self._db, [item], patience=PATIENCE)
        except Exception as error:
            return error
        return enqueued


class _NotRepeated(Exception):
    """Rolls back."""


def _weight(item: tuple[Owner, NewJob]) -> int:
    _, job = item
    return (
        ROW_BYTES
        + len(job.body or b"")
        + sum(len(str(part)) for part in (job.payload, job.metadata, job.on_success, job.on_dead))
    )


def _id(item: tuple[Owner, NewJob]) -> object:
    return item[1].id
