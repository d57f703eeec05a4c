"""What an enqueue returns: the job's id, and a way to its result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from duly.model.errors import InvalidInputError, JobFailedError, NotFoundError
from duly.model.states import FINAL, State
from duly.schema.naming import named
from duly.tasks.connections import link
from duly.tasks.context import Progress
from duly.tasks.options import Duration, as_duration

R_co = TypeVar("R_co", covariant=True)

_STATE = "select cast(duly.task_state(cast($1 as uuid)) as text)"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it stood when asked. `attempt`: how many were started; `error`: of the last one that ended."""

    state: State
    reason: str | None
    attempt: int
    result: Any
    error: str | None
    progress: Progress | None


@dataclass(frozen=True)
class _Handle(Generic[R_co]):
    """`job_id`; `created` is False where the job was there already: it holds the unique key, or is the same under
    the same id.
    """

    job_id: UUID
    created: bool
    schema: str
    connection: Any
    load: Callable[[Any], R_co]

    def _loaded(self, found: JobState | None) -> R_co:
        if found is None:
            raise NotFoundError("task", self.job_id)
        if found.state is not State.SUCCEEDED:
            raise JobFailedError(self.job_id, found.state, found.reason, found.error)
        return self.load(found.result)

    def _is_open(self) -> InvalidInputError:
        return InvalidInputError(
            f"a transaction is open on the connection that is to wait for job {self.job_id}: commit it first, since "
            "a job runs only once its transaction has committed, or wait on another connection with `on=`"
        )

    def _late(self, limit: timedelta) -> TimeoutError:
        return TimeoutError(f"job {self.job_id} has not ended within {limit.total_seconds():g} s")


class Handle(_Handle[R_co]):
    """A job enqueued on a connection whose statements block."""

    def state(self, *, on: Any = None) -> JobState | None:
        """How it stands; None if it does not exist, or not for this connection yet."""
        on = link(self.connection if on is None else on)
        began = not on.is_in_transaction()
        found = _read(on.text(named(_STATE, self.schema), str(self.job_id)))
        if began:
            on.end()
        return found

    def result(self, timeout: Duration, *, on: Any = None) -> R_co:
        """Wait until it has ended, at most `timeout`; its result. Commit first: `on` is another connection, where
        this one is needed.

        Raises TimeoutError, JobFailedError if it is dead or cancelled, NotFoundError if it does not exist.
        """
        limit = as_duration("timeout", timeout)
        if link(self.connection if on is None else on).is_in_transaction():
            raise self._is_open()
        for pause_s in _pauses(limit):
            found = self.state(on=on)
            if found is None or found.state in FINAL:
                return self._loaded(found)
            time.sleep(pause_s)
        raise self._late(limit)


class AsyncHandle(_Handle[R_co]):
    """A job enqueued on a connection whose statements are awaited."""

    async def state(self, *, on: Any = None) -> JobState | None:
        """How it stands; None if it does not exist, or not for this connection yet."""
        on = link(self.connection if on is None else on)
        began = not await on.is_in_transaction()
        found = _read(await on.text(named(_STATE, self.schema), str(self.job_id)))
        if began:
            await on.end()
        return found

    async def result(self, timeout: Duration, *, on: Any = None) -> R_co:
        """As `Handle.result`, awaited."""
        limit = as_duration("timeout", timeout)
        chosen: Any = link(self.connection if on is None else on)
        if await chosen.is_in_transaction():
            raise self._is_open()
        for pause_s in _pauses(limit):
            found = await self.state(on=on)
            if found is None or found.state in FINAL:
                return self._loaded(found)
            await asyncio.sleep(pause_s)
        raise self._late(limit)


def _read(text: str | None) -> JobState | None:
    if text is None:
        return None
    found = json.loads(text)
    progress = found["progress"]
    return JobState(
        State(found["state"]),
        found["reason"],
        found["attempt"],
        found["result"],
        found["error"],
        None if progress is None else Progress(progress["share"], progress["message"]),
    )


def _pauses(limit: timedelta) -> Iterator[float]:
    """Waits between two looks, 10 ms to 0.5 s, until the limit; one look at least, and one at the end."""
    until = time.monotonic() + limit.total_seconds()
    pause_s = 0.01
    while (left_s := until - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(pause_s * 1.5, 0.5)
    yield 0.0
