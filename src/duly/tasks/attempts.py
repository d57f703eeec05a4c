"""From a claimed job to a call, and from what the call did to an outcome: the same on a loop, in a thread and in a
process.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import TYPE_CHECKING, Any

from duly.model.outcomes import Bury, Outcome, Report, Retry, Success
from duly.model.states import DeadReason
from duly.model.storable import describe
from duly.tasks.arguments import ArgumentsError
from duly.tasks.context import Context
from duly.tasks.options import is_retried
from duly.tasks.outcomes import JobOutcome

if TYPE_CHECKING:
    from duly.tasks.task import Task

Stored = str | tuple[int | str, ...]
"""What the job stored of the exceptions to retry: `RetryPolicy.on`."""


async def run_async(task: Task[Any, Any, Any], payload_json: str, context: Context, stored: Stored) -> Outcome:
    """Run an async task. Raises nothing: SystemExit, GeneratorExit and CancelledError are failed attempts too."""
    try:
        args, kwargs = task.arguments.to_call(json.loads(payload_json), context)
        value = task.function(*args, **kwargs)
        return ended(task, await value if inspect.isawaitable(value) else value)
    except BaseException as error:
        return failed(task, error, stored)


def run_sync(task: Task[Any, Any, Any], payload_json: str, context: Context, stored: Stored) -> Outcome:
    """Run a sync task; an async one gets a loop of its own. Raises nothing."""
    try:
        args, kwargs = task.arguments.to_call(json.loads(payload_json), context)
        value = task.function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return ended(task, value)
    except BaseException as error:
        return failed(task, error, stored)


def ended(task: Task[Any, Any, Any], value: Any) -> Outcome:
    """What a returned value means: one of the four outcomes, or the result."""
    if isinstance(value, JobOutcome):
        return value.to_outcome()
    return Success(task.arguments.dump_result(value))


def failed(task: Task[Any, Any, Any], error: BaseException, stored: Stored) -> Outcome:
    """What a raised exception means."""
    if isinstance(error, JobOutcome):
        return error.to_outcome()
    if isinstance(error, ArgumentsError):  # by another release: this one may not know what that one means
        return Retry(Report("arguments", error=str(error)))
    if isinstance(error, asyncio.CancelledError):
        return Retry(Report("error", error="the handler cancelled itself"))
    report = Report("error", error=describe(error))
    return Retry(report) if is_retried(error, task.options, stored) else Bury(DeadReason.PERMANENT, report)
