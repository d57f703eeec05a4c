"""Calls become jobs, in one statement on the caller's connection, inside the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from duly.model.errors import IdConflictError, InvalidInputError, UniqueKeyTakenError
from duly.model.ids import uuid7
from duly.model.jobs import Unique
from duly.schema.naming import named
from duly.tasks.connections import AsyncLink, SyncLink
from duly.tasks.json_input import input_text
from duly.tasks.options import Key, Options, checked_key

if TYPE_CHECKING:
    from duly.tasks.task import Task

R_co = TypeVar("R_co", covariant=True)

_ENQUEUE = """
    select cast(coalesce(json_agg(json_build_object(
               'place', e.place, 'job_id', e.job_id, 'result', e.result, 'other', e.other)), '[]') as text)
    from duly.enqueue_tasks(cast(cast($1 as text) as jsonb)) e
"""
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task with its arguments, validated, and what is said about this call. It can be enqueued once."""

    task: Task[Any, Any, R_co]
    stored: dict[str, Any]
    options: Options
    id: UUID
    unique: Unique | None
    concurrency_key: str | None

    @property
    def schema(self) -> str:
        return self.task.schema

    @property
    def is_refusable(self) -> bool:
        """Whether the answer can be that it makes no job: its key is taken, or its id is another job's. A call that
        is enqueued again is another one if its end is counted anew.
        """
        may_be_taken = self.unique is not None and self.unique.on_conflict != "keep"
        return may_be_taken or self.options.id is not None or self.options.expires_after is not None

    def to_row(self) -> dict[str, Any]:
        """The object that `duly.enqueue_tasks` takes; what is None is left out."""
        options = self.options
        row = {
            "id": str(self.id),
            "task": self.task.name,
            "args": self.stored,
            "queue": options.queue,
            "concurrency_key": self.concurrency_key,
            "priority": options.priority,
            "run_at": None if options.run_at is None else options.run_at.isoformat(),
            "delay_seconds": None if options.delay is None else options.delay.total_seconds(),
            "max_attempts": options.max_attempts,
            "timeout_seconds": options.timeout.total_seconds(),
            "expires_seconds": None if options.expires_after is None else options.expires_after.total_seconds(),
            "retry": options.policy(self.task.options).to_json(),
            "tags": list(options.tags) or None,
            "metadata": options.metadata,
        }
        if self.unique is not None:
            row |= {
                "unique_key": self.unique.key,
                "unique_for": self.unique.unique_for,
                "on_conflict": self.unique.on_conflict,
            }
        return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Made:
    """The job that does a call's work, and whether this enqueue made it."""

    job_id: UUID
    created: bool


def new_call(task: Task[Any, Any, R_co], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R_co]:
    """Validate a call. Raises InvalidInputError; nothing has been sent then, so no transaction was touched."""
    stored = task.arguments.to_json(args, kwargs)
    if options.metadata is not None:
        input_text(options.metadata, "metadata")
    unique = _unique(task, options, stored, args, kwargs)
    key = _key("concurrency_key", options.concurrency_key, args, kwargs)
    return Call(task, stored, options, options.id or uuid7(), unique, key)


def make(on: SyncLink, calls: Sequence[Call[Any]]) -> list[Made]:
    """Enqueue on a connection whose statements block. Raises UniqueKeyTakenError or IdConflictError, and then none of
    these jobs exist; the driver's own errors pass.
    """
    batches = _batches(calls)
    fence = _fence(calls, on.autocommits())
    made: list[Made] = []
    if fence is not None:
        on.run(fence.begin)
    try:
        for batch in batches:
            made += _read(batch, on.text(named(_ENQUEUE, batch[0].schema), _rows(batch)))
    except BaseException:
        if fence is not None:
            on.run(fence.undo)
        raise
    if fence is not None:
        on.run(fence.keep)
    return made


async def make_async(on: AsyncLink, calls: Sequence[Call[Any]]) -> list[Made]:
    """The same on one whose statements are awaited."""
    batches = _batches(calls)
    fence = _fence(calls, await on.autocommits())
    made: list[Made] = []
    async with nullcontext(on) if fence is None else on.one() as held:
        if fence is not None:
            await held.run(fence.begin)
        try:
            for batch in batches:
                made += _read(batch, await held.text(named(_ENQUEUE, batch[0].schema), _rows(batch)))
        except BaseException:
            if fence is not None:
                await held.run(fence.undo)
            raise
        if fence is not None:
            await held.run(fence.keep)
    return made


@dataclass(frozen=True, slots=True)
class _Fence:
    """Statements around those of one enqueue, which make them one: all of its jobs, or none."""

    begin: str
    undo: str
    keep: str


_TRANSACTION = _Fence("begin", "rollback", "commit")
_SAVEPOINT = _Fence("savepoint duly_enqueue", "rollback to savepoint duly_enqueue", "release savepoint duly_enqueue")


def _fence(calls: Sequence[Call[Any]], autocommits: bool) -> _Fence | None:
    """None where a single statement does it, or the caller's transaction ends with what fails."""
    refusable = len(calls) > 1 and any(call.is_refusable for call in calls)
    if autocommits:
        return _TRANSACTION if refusable or len(calls) > _BATCH else None
    return _SAVEPOINT if refusable or any(call.options.savepoint for call in calls) else None


def _batches(calls: Sequence[Call[Any]]) -> list[Sequence[Call[Any]]]:
    if len({call.schema for call in calls}) > 1:
        raise InvalidInputError("the calls are of apps with different schemas: enqueue those of each app apart")
    return [calls[at : at + _BATCH] for at in range(0, len(calls), _BATCH)]


def _rows(batch: Sequence[Call[Any]]) -> str:
    return json.dumps([call.to_row() for call in batch], ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _read(batch: Sequence[Call[Any]], answer: str | None) -> list[Made]:
    found: list[Made | None] = [None] * len(batch)
    for row in json.loads(answer or "[]"):
        place = row["place"] - 1
        match row["result"]:
            case "created" | "repeated" as result:
                found[place] = Made(UUID(row["job_id"]), result == "created")
            case "kept":
                found[place] = Made(UUID(row["other"]), False)
            case "taken":
                unique = batch[place].unique
                assert unique is not None  # only such a call can find its key taken
                raise UniqueKeyTakenError(unique.key, UUID(row["other"]))
            case _:
                raise IdConflictError(UUID(row["job_id"]))
    return [made for made in found if made is not None]


def _unique(
    task: Task[Any, Any, Any], options: Options, stored: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Unique | None:
    if options.unique is False:
        return None
    if options.unique is True:
        key: str | None = fingerprint(task.name, stored)
    else:
        key = _key("unique", options.unique, args, kwargs)
    return None if key is None else Unique(key, options.unique_until, options.on_conflict)


def fingerprint(name: str, stored: dict[str, Any]) -> str:
    """A unique key of a task and its arguments: different data, different keys; only the order of names in an object
    does not matter.
    """
    text = json.dumps([name, stored], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"task:{hashlib.sha256(text.encode()).hexdigest()}"


def _key(name: str, key: Key | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """None where there is none, also where the function returns None."""
    made = key if key is None or isinstance(key, str) else key(*args, **kwargs)
    return None if made is None else checked_key(name, made)
