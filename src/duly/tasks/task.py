"""A function that can be enqueued, and still be called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from duly.model.errors import InvalidInputError
from duly.tasks.arguments import Arguments
from duly.tasks.connections import AsyncLink, SyncLink, link
from duly.tasks.enqueueing import Call, Made, make, make_async, new_call
from duly.tasks.handle import AsyncHandle, Handle
from duly.tasks.options import CallFields, Options, RunIn

if TYPE_CHECKING:
    from typing_extensions import TypeIs

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

KIND_PREFIX = "task:"


class SyncConnection(Protocol):
    """psycopg, psycopg2, SQLAlchemy's Connection and Session, Django's connection: a commit blocks."""

    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """psycopg's AsyncConnection, SQLAlchemy's AsyncConnection and AsyncSession: a commit is awaited."""

    def commit(self) -> Awaitable[Any]: ...


class AsyncExecutor(Protocol):
    """asyncpg's connections and pools, and Duly's own."""

    def fetchval(self, __query: str, *args: Any) -> Awaitable[Any]: ...


class Task(Generic[P, T_co, R_co]):
    """A function registered under a name. `T_co` is what a call returns, `R_co` the job's result: for an async
    function what its coroutine returns.

    Calling it runs the function here and now. Enqueueing takes the caller's connection first, then the function's
    arguments.
    """

    def __init__(
        self,
        function: Callable[P, T_co],
        *,
        name: str,
        schema: str,
        aliases: Sequence[str],
        options: Options,
        run_in: RunIn,
    ) -> None:
        self.function = function
        self.name = name
        self.schema = schema
        self.aliases = tuple(aliases)
        self.options = options
        self.run_in = run_in
        self.is_async = inspect.iscoroutinefunction(function)
        update_wrapper(self, function)

    @cached_property
    def arguments(self) -> Arguments:
        return Arguments(self.name, self.function)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of job that it runs: its name's, and those of its aliases."""
        return tuple(KIND_PREFIX + name for name in (self.name, *self.aliases))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the function itself; a Context that is not given is one of no job."""
        if self.arguments.context_name is None:
            return self.function(*args, **kwargs)
        given, by_name = self.arguments.with_context(args, kwargs)
        return self.function(*given, **by_name)

    def using(self, **options: Unpack[CallFields]) -> Prepared[P, R_co]:
        """The same task with other options: `mail.using(delay=60).enqueue(connection, 7)`. Raises InvalidInputError."""
        return Prepared(self, self.options.but(options))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call to be enqueued with others, by `enqueue_many`. Raises InvalidInputError."""
        return new_call(self, self.options, args, kwargs)

    @overload
    def enqueue(self, on: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...
    @overload
    def enqueue(self, on: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncHandle[R_co]]: ...
    @overload
    def enqueue(self, on: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncHandle[R_co]]: ...
    def enqueue(self, on: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Make a job on the caller's connection. It exists once the caller's transaction has committed, and never if
        that rolls back.

        On a connection whose statements are awaited, this is awaited too. Raises InvalidInputError before anything
        is sent; UniqueKeyTakenError or IdConflictError, which leave the transaction as it was; and what the driver
        raises.
        """
        return _enqueued(on, new_call(self, self.options, args, kwargs))

    def handle(self, on: Any, job_id: UUID) -> Any:
        """The handle of a job that was enqueued before: a Handle, or an AsyncHandle, as `on` has it."""
        return _handle(on, link(on), self, Made(job_id, False))

    def __repr__(self) -> str:
        return f"<duly task {self.name}>"


@dataclass(frozen=True, slots=True)
class Prepared(Generic[P, R_co]):
    """A task with the options of one call."""

    task: Task[P, Any, R_co]
    options: Options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """As `Task.call`."""
        return new_call(self.task, self.options, args, kwargs)

    @overload
    def enqueue(self, on: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...
    @overload
    def enqueue(self, on: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncHandle[R_co]]: ...
    @overload
    def enqueue(self, on: AsyncExecutor, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncHandle[R_co]]: ...
    def enqueue(self, on: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `Task.enqueue`."""
        return _enqueued(on, new_call(self.task, self.options, args, kwargs))


@overload
def enqueue_many(on: SyncConnection, calls: Iterable[Call[R_co]]) -> list[Handle[R_co]]: ...
@overload
def enqueue_many(on: AsyncConnection, calls: Iterable[Call[R_co]]) -> Awaitable[list[AsyncHandle[R_co]]]: ...
@overload
def enqueue_many(on: AsyncExecutor, calls: Iterable[Call[R_co]]) -> Awaitable[list[AsyncHandle[R_co]]]: ...
def enqueue_many(on: Any, calls: Iterable[Call[Any]]) -> Any:
    """Make many jobs, 1,000 a statement; the handles stand in the order of the calls. One task's or several's."""
    calls = list(calls)
    if any(not isinstance(call, Call) for call in calls):
        raise InvalidInputError("enqueue_many takes calls: make each with task.call(…), or task.using(…).call(…)")
    if _takers:
        return _takers[-1](on, calls)
    chosen = link(on)
    if _is_async(chosen):
        return _all_async(on, chosen, calls)
    return [_handle(on, chosen, call.task, made) for call, made in zip(calls, make(chosen, calls), strict=True)]


Taker = Callable[[Any, Sequence[Call[Any]]], Any]
_takers: list[Taker] = []


@contextmanager
def intercepted(taker: Taker) -> Iterator[None]:
    """Meanwhile `taker(on, calls)` makes the handles, or an awaitable of them, instead of a database: for tests."""
    _takers.append(taker)
    try:
        yield
    finally:
        _takers.remove(taker)


def _enqueued(on: Any, call: Call[Any]) -> Any:
    if _takers:
        taken = _takers[-1](on, [call])
        return _first(taken) if inspect.isawaitable(taken) else taken[0]
    chosen = link(on)
    if _is_async(chosen):
        return _one_async(on, chosen, call)
    [made] = make(chosen, [call])
    return _handle(on, chosen, call.task, made)


async def _first(handles: Awaitable[list[Any]]) -> Any:
    return (await handles)[0]


async def _one_async(on: Any, chosen: AsyncLink, call: Call[Any]) -> Any:
    [made] = await make_async(chosen, [call])
    return _handle(on, chosen, call.task, made)


async def _all_async(on: Any, chosen: AsyncLink, calls: Sequence[Call[Any]]) -> list[Any]:
    done = await make_async(chosen, calls)
    return [_handle(on, chosen, call.task, made) for call, made in zip(calls, done, strict=True)]


def _is_async(chosen: SyncLink | AsyncLink) -> TypeIs[AsyncLink]:
    return inspect.iscoroutinefunction(chosen.text)


def _handle(on: Any, chosen: SyncLink | AsyncLink, task: Task[Any, Any, Any], made: Made) -> Any:
    kind: Any = AsyncHandle if _is_async(chosen) else Handle
    return kind(made.job_id, made.created, task.schema, on, task.arguments.load_result)
