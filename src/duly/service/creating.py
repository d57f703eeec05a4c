"""Creating jobs: concurrent creates share statements, and each caller still waits for its own commit.

Jobs are sealed here, before anything is stored (see `sealing`), and take what they leave to their queue (see `queues`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta

from duly.model import NewJob
from duly.model.errors import DatabaseBusyError, DatabaseUnavailableError, IdConflictError, UniqueKeyTakenError
from duly.queue import Database, Enqueued, Executor, Owner, Session, enqueue, get_job
from duly.service.coalescing import Bounds, Coalescer
from duly.service.faults import BatchRefusedError
from duly.service.jobs import KIND
from duly.service.keyring import NO_KEYRING, KeyMissingError, Keyring
from duly.service.queues import QueueDefaults, as_stored
from duly.service.sealing import key_of, sealed_job
from duly.service.transacting import transacted

Carry = Callable[[Sequence[NewJob]], AbstractContextManager[Mapping[str, str]]]
"""Entered around the storing of jobs: what each is to carry of the trace that it belongs to (empty: nothing)."""

PATIENCE = timedelta(seconds=1)  # for a rival's open transaction: others wait behind this statement
ROW_BYTES = 1_024  # what a job weighs beside its body and payload


class Created(Enqueued):
    """What became of a job, and the job itself in the clear, with what its queue gave it."""

    job: NewJob


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
        self._carry: Carry = carry or (lambda _: nullcontext({}))
        self._keyring = keyring
        self.defaults = QueueDefaults(db)
        self._coalescer = Coalescer(self._enqueue, weigh=_weight, key=_id, bounds=bounds)

    async def create(self, owner: Owner, job: NewJob, session: Session | None = None) -> Created:
        """Store a job; when this returns it is committed (in a session: once that is): created now, repeated when this
        very job was there, or kept when another one holds its unique key and that is all right.

        Raises IdConflictError if another job has the id, UniqueKeyTakenError if another holds the unique key,
        DatabaseUnavailableError if nothing could be confirmed.
        """
        given, job = job, await self.defaults.applied(owner, job)
        with self._carry([job]) as trace:
            sealed = self._sealed(owner, job, trace)
            if session is None:
                enqueued = await self._coalescer.submit((owner, sealed))
            else:
                [enqueued] = await enqueue(session, [(owner, sealed)], patience=PATIENCE)
            if enqueued.result == "conflict":
                enqueued = await self._repeated(owner, given, key_of(sealed.payload), session) or enqueued
            if enqueued.result == "conflict":
                raise IdConflictError(job.id)
            if enqueued.result == "taken" and job.unique is not None:
                raise UniqueKeyTakenError(job.unique.key, enqueued.other)
        created = Created(*enqueued)
        created.job = job
        return created

    async def create_all(
        self, owner: Owner, jobs: Sequence[NewJob], session: Session | None = None
    ) -> Sequence[Enqueued]:
        """Store all of them in one transaction (that of the session, if one is given), or none.

        Raises BatchRefusedError naming every job whose id or unique key another one has.
        """
        given, jobs = jobs, [await self.defaults.applied(owner, job) for job in jobs]

        async def store(tx: Session, sealed: Sequence[NewJob]) -> Sequence[Enqueued]:
            answers = await enqueue(tx, [(owner, job) for job in sealed], patience=PATIENCE)
            for place, answer in enumerate(answers):
                if answer.result == "conflict":
                    alike = await self._repeated(owner, given[place], key_of(sealed[place].payload), tx)
                    answers[place] = alike or answer
            refused = {place: a for place, a in enumerate(answers) if a.result in ("conflict", "taken")}
            if refused:
                raise BatchRefusedError(
                    {
                        place: IdConflictError(answer.job_id)
                        if answer.result == "conflict" or (unique := jobs[place].unique) is None
                        else UniqueKeyTakenError(unique.key, answer.other)
                        for place, answer in refused.items()
                    }
                )
            return answers

        with self._carry(jobs) as trace:
            sealed = [self._sealed(owner, job, trace) for job in jobs]
            return await (store(session, sealed) if session else transacted(self._db, lambda tx: store(tx, sealed)))

    @property
    def waiting(self) -> int:
        """How many jobs wait for a statement to be free."""
        return self._coalescer.waiting

    async def close(self) -> None:
        """Wait until everything that was handed over is answered."""
        await self._coalescer.close()

    def _sealed(self, owner: Owner, job: NewJob, trace: Mapping[str, str]) -> NewJob:
        """The job as it is stored."""
        sealed = sealed_job(self._keyring, owner, job)
        if trace and job.kind == KIND:
            sealed = replace(sealed, payload={**sealed.payload, "trace": dict(trace)})
        return sealed

    async def _repeated(
        self, owner: Owner, job: NewJob, key_id: str | None, session: Session | None
    ) -> Enqueued | None:
        """Whether a conflict is none: this very job, stored under a key that is not the first any more, or before
        there were keys, or when its queue had other defaults. Sealed as the stored one is, the same job has the same
        bytes, and the database compares them by the same rules as ever. None: it is another job.
        """
        db: Executor = session or self._db
        stored = await get_job(db, owner, job.id)
        if stored is None or (key_of(stored.payload) == key_id and not job.inherits):
            return None
        stored_key, job = key_of(stored.payload), as_stored(job, stored)
        try:
            alike = job if stored_key is None else sealed_job(self._keyring, owner, job, stored_key)
            async with self._nested(session) as tx:
                [enqueued] = await enqueue(tx, [(owner, alike)], patience=PATIENCE)
                if enqueued.result != "repeated":
                    raise _NotRepeated  # it was pruned meanwhile: nothing may be stored in this form
        except (KeyMissingError, _NotRepeated):
            return None
        return enqueued

    @asynccontextmanager
    async def _nested(self, session: Session | None) -> AsyncIterator[Session]:
        """A transaction that can be rolled back by itself."""
        if session is None:
            async with self._db.transaction() as tx:
                yield tx
        else:
            async with session.connection.transaction():
                yield session

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
