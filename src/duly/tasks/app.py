"""An app: the tasks of a program by name, and its schedules. There is one by default; `@task` registers there."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Protocol, TypeVar, Unpack, cast, overload

from duly.model.errors import InvalidInputError
from duly.model.storable import excerpt
from duly.schema.naming import DEFAULT_SCHEMA, checked_name
from duly.tasks.context import Context
from duly.tasks.enqueueing import Call
from duly.tasks.options import Options, RunIn, TaskFields
from duly.tasks.scheduling import DeclaredSchedule, When, declared_schedule
from duly.tasks.task import P, Prepared, Task

T = TypeVar("T")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,149}", re.ASCII)


class Decorator(Protocol):
    """What `@task(…)` is, once its options are given."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...


class App:
    """Tasks by name, and the schema their jobs are in."""

    def __init__(self, *, schema: str = DEFAULT_SCHEMA) -> None:
        self.schema = checked_name(schema)
        self._tasks: dict[str, Task[Any, Any, Any]] = {}
        self._schedules: dict[str, DeclaredSchedule] = {}

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        run_in: RunIn = "auto",
        **options: Unpack[TaskFields],
    ) -> Decorator: ...
    def task(
        self,
        *function: Any,
        name: str | None = None,
        aliases: Sequence[str] = (),
        run_in: RunIn = "auto",
        **options: Unpack[TaskFields],
    ) -> Any:
        """Register a function: `@app.task`, or `@app.task(queue="mail")`.

        `name` is what jobs are stored under (the module and the function's name by default); `aliases` are names it
        had, whose jobs it still runs. `run_in`: async functions share a loop and sync ones get a thread each;
        "process" gives each run a process that is killed when its time is over. Raises InvalidInputError.
        """

        def register(function: Callable[..., Any]) -> Task[Any, Any, Any]:
            return self._register(function, name, aliases, run_in, Options().but(cast(Any, options)))

        return register(*function) if function else register

    def schedule(
        self, name: str, what: Task[..., Any, Any] | Prepared[..., Any] | Call[Any], /, **when: Unpack[When]
    ) -> DeclaredSchedule:
        """Declare that a task is to run by the calendar: `app.schedule("nightly", report.call("all"), cron="0 3 * * *",
        timezone="Europe/London")`. A task that needs no arguments may be given itself.

        Nothing is stored by this: `duly schedules apply --app …` shows what the declarations change, and stores them.
        Raises InvalidInputError, for arguments that do not fit, too.
        """
        made = declared_schedule(name, what, when)
        if self._tasks.get(made.call.task.name) is not made.call.task:
            raise InvalidInputError(
                f"schedule {excerpt(name)}: task {made.call.task.name} is none of this app's: declare it "
                "in the task's app"
            )
        other = self._schedules.get(name)
        if other is not None and not other.is_same(made):
            raise InvalidInputError(f"two schedules are named {excerpt(name)}: give one of them another name")
        self._schedules[name] = made
        return made

    @property
    def schedules(self) -> tuple[DeclaredSchedule, ...]:
        """Those that are declared, in this order."""
        return tuple(self._schedules.values())

    def _register(
        self, function: Callable[..., Any], name: str | None, aliases: Sequence[str], run_in: RunIn, options: Options
    ) -> Task[Any, Any, Any]:
        _check_function(function)
        if run_in not in ("auto", "process"):
            raise InvalidInputError(f"run_in is {excerpt(run_in)}: 'auto' or 'process' is needed", "/run_in")
        if isinstance(aliases, str):
            raise InvalidInputError(f"aliases is {excerpt(aliases)}: a list of names is needed", "/aliases")
        made: Task[Any, Any, Any] = Task(
            function,
            name=_checked_name(name or _default_name(function)),
            schema=self.schema,
            aliases=[_checked_name(alias) for alias in aliases],
            options=options,
            run_in=run_in,
        )
        for known in (made.name, *made.aliases):
            other = self._tasks.get(known)
            if other is not None and _place(other.function) != _place(function):
                raise InvalidInputError(
                    f"two tasks are named {known!r}: {_place(other.function)} and {_place(function)}; "
                    "give one of them another name="
                )
        for known in (made.name, *made.aliases):
            self._tasks[known] = made
        return made

    def __iter__(self) -> Iterator[Task[Any, Any, Any]]:
        """Each task once."""
        return iter(dict.fromkeys(self._tasks.values()))

    def find(self, name: str) -> Task[Any, Any, Any] | None:
        """By its name or an alias."""
        return self._tasks.get(name)


default_app = App()
task = default_app.task
schedule = default_app.schedule


def _check_function(function: Any) -> None:
    if not callable(function) or isinstance(function, type):
        raise InvalidInputError(f"{excerpt(function)} is no function: a task is a function, sync or async")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInputError(f"{_place(function)} yields, so it is no job: return a list, or enqueue a job per item")


def _place(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _default_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name:
        raise InvalidInputError(
            f"{_place(function)} has no name that another process could find it by: give it one with name="
        )
    return f"{_module(function)}.{name}"


def _module(function: Callable[..., Any]) -> str:
    """Where the function is defined; for a script that is run, what importing it would call it."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "__main__").stem


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{excerpt(name)} is no task name: letters, digits and _ . : -, beginning with a letter, at most 150",
            "/name",
        )
    return name
