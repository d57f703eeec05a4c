"""Every error that Duly raises on purpose.

    DulyError
    ├── InvalidInputError        a value that can never be right; `.pointer` says where it stood
    ├── IdConflictError          a job id that another job already has
    ├── NotFoundError            no such job, or somebody else's
    ├── WrongStateError          the job's state does not allow the call
    ├── JobFailedError           a job whose result was waited for ended without one
    ├── LeaseLostError           the worker's lease ended; its writes are refused
    ├── DatabaseUnavailableError PostgreSQL could not be reached, or refused the work for now
    │   └── DatabaseBusyError    it answered: a time-out of its own, a lock, a deadlock; nothing was written
    ├── SchemaError              the schema is missing, too old or too new
    └── EmbeddedError            the private PostgreSQL could not be started

The message says what, which, and what to do; data is in attributes.
"""

from __future__ import annotations

from uuid import UUID


class DulyError(Exception):
    """Root of everything Duly raises on purpose."""


class InvalidInputError(DulyError):
    """A value that can never be right. `pointer` is a JSON pointer into the input ("" for the whole)."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class IdConflictError(DulyError):
    """A job id that another job already has, with other content."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(
            f"job id {job_id} is already used by a different job: make a new id, or send the same job again"
        )
        self.job_id = job_id


class UniqueKeyTakenError(DulyError):
    """Another job of the project holds the unique key. `holder`: its id, None where it is not known."""

    def __init__(self, key: str, holder: UUID | None) -> None:
        whose = "another job" if holder is None else f"job {holder}"
        super().__init__(
            f"the unique key {key!r} is held by {whose}: wait for its end, cancel it, or choose another on_conflict"
        )
        self.key = key
        self.holder = holder


class NotFoundError(DulyError):
    """No such thing, or somebody else's."""

    def __init__(self, what: str, which: object) -> None:
        super().__init__(f"{what} {which} does not exist")
        self.what = what
        self.which = which


class WrongStateError(DulyError):
    """The job's state does not allow the call."""

    def __init__(self, job_id: UUID, state: str, call: str, allowed: str) -> None:
        super().__init__(f"job {job_id} is {state}: {call} works on {allowed} jobs")
        self.job_id = job_id
        self.state = state


class ExpiredJobError(DulyError):
    """The job's `expires_at` has passed: it may not start any more."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"job {job_id} has expired and may not start any more: create a new job without that limit")
        self.job_id = job_id


class JobFailedError(DulyError):
    """A job whose result was waited for is dead or cancelled. `reason`: why it is dead; `error`: its last attempt's."""

    def __init__(self, job_id: UUID, state: str, reason: str | None, error: str | None) -> None:
        why = "".join(f", {part}" for part in (reason, error) if part)
        super().__init__(f"job {job_id} is {state}{why}: it has no result")
        self.job_id = job_id
        self.state = state
        self.reason = reason
        self.error = error


class LeaseLostError(DulyError):
    """The worker's lease ended: what it held belongs to others now."""


class DatabaseUnavailableError(DulyError):
    """PostgreSQL could not be reached, or refused the work for now. Nothing was accepted."""


class DatabaseBusyError(DatabaseUnavailableError):
    """PostgreSQL answered that it could not do the work just now: a time-out of its own, a lock, a deadlock. The
    statement was rolled back, for certain, and the connection is good.
    """


class SchemaError(DulyError):
    """The schema is missing, too old or too new for this program."""


class EmbeddedError(DulyError):
    """The private PostgreSQL could not be started."""
