"""Inline: an enqueue runs its task here and now, without a database. Arguments and results go through JSON as they
would.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from duly.model.results import checked_result
from duly.model.states import State
from duly.tasks.connections import link
from duly.tasks.context import Context
from duly.tasks.enqueueing import Call
from duly.tasks.handle import AsyncHandle, Handle, JobState
from duly.tasks.outcomes import JobOutcome
from duly.tasks.task import Task, intercepted


@dataclass
class InlineJobs:
    """What was enqueued, in order."""

    made: list[Call[Any]] = field(default_factory=list)

    def of(self, task: Task[Any, Any, Any]) -> list[dict[str, Any]]:
        """The arguments of each call of a task, by name, as JSON has them."""
        return [call.stored for call in self.made if call.task is task]


@contextmanager
def inline(*, run: bool = True) -> Iterator[InlineJobs]:
    """Meanwhile `.enqueue` and `enqueue_many` run tasks at once, whatever connection they are given (None too), in
    any thread.

    An exception of the task is raised by its enqueue; Retry, Snooze, Bury and Cancel are not: the handle's state
    says them. With `run` False nothing runs, the calls are only listed. Every call runs, once: nothing is retried, and
    `unique` holds no call back, since without a database there is no other job. The caller's transaction does not
    matter here: what depends on its commit or rollback is tested on the real engine.
    """
    jobs = InlineJobs()

    def take(on: Any, calls: Sequence[Call[Any]]) -> Any:
        jobs.made += calls
        chosen = None if on is None else link(on)
        if chosen is not None and inspect.iscoroutinefunction(chosen.text):
            return _take_async(calls, run)
        return [_SyncDone(*_done(call, _ran(call) if run else None)) for call in calls]

    with intercepted(take):
        yield jobs


async def _take_async(calls: Sequence[Call[Any]], run: bool) -> list[Any]:
    return [_AsyncDone(*_done(call, await _ran_async(call) if run else None)) for call in calls]


def _done(call: Call[Any], state: JobState | None) -> tuple[Any, ...]:
    waiting = JobState(State.READY, None, 0, None, None, None)
    return call.id, True, call.schema, None, call.task.arguments.load_result, state or waiting


@dataclass(frozen=True)
class _SyncDone(Handle[Any]):
    found: JobState

    def state(self, *, on: Any = None) -> JobState:
        return self.found

    def result(self, timeout: Any = 0, *, on: Any = None) -> Any:
        return self._loaded(self.found)


@dataclass(frozen=True)
class _AsyncDone(AsyncHandle[Any]):
    found: JobState

    async def state(self, *, on: Any = None) -> JobState:
        return self.found

    async def result(self, timeout: Any = 0, *, on: Any = None) -> Any:
        return self._loaded(self.found)


def _called(call: Call[Any]) -> Any:
    stored = json.loads(json.dumps(call.stored))
    context = Context(
        call.id, 1, call.options.max_attempts == 1, call.task.name, call.options.queue, call.options.timeout
    )
    args, kwargs = call.task.arguments.to_call(stored, context)
    return call.task.function(*args, **kwargs)


def _ran(call: Call[Any]) -> JobState:
    try:
        value = _called(call)
        return _ended(call, _awaited(value) if inspect.iscoroutine(value) else value)
    except JobOutcome as outcome:
        return _said(outcome)


async def _ran_async(call: Call[Any]) -> JobState:
    try:
        value = _called(call)
        return _ended(call, await value if inspect.isawaitable(value) else value)
    except JobOutcome as outcome:
        return _said(outcome)


def _ended(call: Call[Any], value: Any) -> JobState:
    if isinstance(value, JobOutcome):
        return _said(value)
    result = json.loads(checked_result(call.task.arguments.dump_result(value)).text)
    return JobState(State.SUCCEEDED, None, 1, result, None, None)


def _said(outcome: JobOutcome) -> JobState:
    state = {"Bury": State.DEAD, "Cancel": State.CANCELLED}.get(type(outcome).__name__, State.SCHEDULED)
    return JobState(state, "permanent" if state is State.DEAD else None, 1, None, str(outcome), None)


def _awaited(coroutine: Any) -> Any:
    """Run it to its end, in a loop of another thread: one may be running in this."""
    found: list[Callable[[], Any]] = []

    def run() -> None:
        try:
            value = asyncio.run(coroutine)
            found.append(lambda: value)
        except BaseException as error:
            caught = error
            found.append(lambda: _raise(caught))

    thread = threading.Thread(target=run, name="duly-inline")
    thread.start()
    thread.join()
    return found[0]()


def _raise(error: BaseException) -> None:
    raise error
