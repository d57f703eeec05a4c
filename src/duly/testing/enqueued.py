"""What was enqueued, as the caller's own connection sees it: its open transaction's jobs too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from duly.schema.naming import named
from duly.tasks.connections import AsyncLink, SyncLink, link
from duly.tasks.task import KIND_PREFIX, Task

_JOBS = """
    select cast(coalesce(json_agg(json_build_object(
               'id', v.id, 'kind', v.kind, 'args', j.payload, 'queue', v.queue, 'state', v.status, 'run_at', v.run_at,
               'priority', v.priority, 'unique_key', j.unique_key, 'concurrency_key', v.concurrency_key)
               order by v.created_at, v.id), '[]') as text)
    from duly.jobs v join duly.job j on j.id = v.id
    where v.kind like 'task:' || chr(37)
      and (cast($1 as text) is null or v.kind = any (string_to_array(cast($2 as text), ' ')))
"""


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job of a task. `args`: by name, as JSON has them."""

    job_id: UUID
    task: str
    args: dict[str, Any]
    queue: str
    state: str
    run_at: datetime
    priority: int
    unique_key: str | None
    concurrency_key: str | None


def enqueued(on: Any, task: Task[Any, Any, Any] | None = None) -> list[EnqueuedJob]:
    """The jobs of a task, or of all, oldest first; on a connection whose statements block."""
    chosen = cast(SyncLink, link(on))
    kinds = _kinds(task)
    return _read(chosen.text(_statement(task), kinds, kinds))


async def enqueued_async(on: Any, task: Task[Any, Any, Any] | None = None) -> list[EnqueuedJob]:
    """The same on a connection whose statements are awaited."""
    chosen = cast(AsyncLink, link(on))
    kinds = _kinds(task)
    return _read(await chosen.text(_statement(task), kinds, kinds))


def assert_enqueued(on: Any, task: Task[Any, Any, Any], *args: Any, **kwargs: Any) -> EnqueuedJob:
    """A job of the task with these arguments (those that are given) exists; the newest such one. Raises
    AssertionError that lists what there is instead.
    """
    return found_among(enqueued(on, task), task, args, kwargs)


def assert_not_enqueued(on: Any, task: Task[Any, Any, Any]) -> None:
    """No job of the task exists. Raises AssertionError."""
    jobs = enqueued(on, task)
    if jobs:
        raise AssertionError(f"{len(jobs)} jobs of {task.name} were enqueued: {_shown(jobs)}")


def found_among(
    jobs: list[EnqueuedJob], task: Task[Any, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> EnqueuedJob:
    """What `assert_enqueued` looks for, among jobs that were read before: `found_among(await enqueued_async(…),
    task, (7,), {})`.
    """
    positional = dict(zip(task.arguments.signature.parameters, args, strict=False))
    if task.arguments.context_name is not None:
        names = [name for name in task.arguments.signature.parameters if name != task.arguments.context_name]
        positional = dict(zip(names, args, strict=False))
    asked = json.loads(json.dumps(task.arguments.partly(positional | kwargs)))
    for job in reversed(jobs):
        if all(name in job.args and job.args[name] == value for name, value in asked.items()):
            return job
    there = f"there are {_shown(jobs)}" if jobs else "there is none at all"
    raise AssertionError(f"no job of {task.name} with {asked} was enqueued: {there}")


def _kinds(task: Task[Any, Any, Any] | None) -> str | None:
    return None if task is None else " ".join(task.kinds)


def _statement(task: Task[Any, Any, Any] | None) -> str:
    return _JOBS if task is None else named(_JOBS, task.schema)


def _read(text: str | None) -> list[EnqueuedJob]:
    return [
        EnqueuedJob(
            UUID(row["id"]),
            row["kind"].removeprefix(KIND_PREFIX),
            row["args"],
            row["queue"],
            row["state"],
            datetime.fromisoformat(row["run_at"]),
            row["priority"],
            row["unique_key"],
            row["concurrency_key"],
        )
        for row in json.loads(text or "[]")
    ]


def _shown(jobs: list[EnqueuedJob]) -> str:
    return ", ".join(str(job.args) for job in jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")
