"""Fault points inside the victim: an engine call, or a handler, that meets its fault once at a given step."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duly import queue
from duly.model import ClaimedJob, Outcome, Success
from duly.queue import Database, Promoted
from duly.worker import Handler
from matrix.cells import Step
from support.crash_journal import Journal

AT_POINT = "at-point"


@dataclass
class Point:
    """Where it is, and what to do there: `die`, `stop` (SIGSTOP to itself), or `wait` until the gate exists.

    Calls wait until `due`. It strikes once.
    """

    step: Step
    action: str
    gate: Path
    journal: Journal
    due: Callable[[], bool] = lambda: True
    struck: bool = field(default=False, init=False)

    async def strike(self) -> None:
        """Meet the fault. Nothing is awaited before a death or a stop, nor after one."""
        self.struck = True
        self.journal.write(AT_POINT)
        match self.action:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: it goes no step further
            case "wait":
                while not self.gate.exists():
                    await asyncio.sleep(0.01)
            case other:
                raise AssertionError(f"unknown action {other!r}")


def arm(name: str, point: Point) -> None:
    """Put the point into the engine call `queue.<name>`. The first call that has an effect meets it; before the
    statement the effect is not known, so that the first call meets it.
    """
    original: Callable[..., Awaitable[Any]] = getattr(queue, name)

    async def armed(db: Database, *args: Any, **settings: Any) -> Any:
        while not point.due():
            await asyncio.sleep(0.01)
        if point.struck:
            return await original(db, *args, **settings)
        match point.step:
            case Step.BEFORE:
                await point.strike()
                return await original(db, *args, **settings)
            case Step.INSIDE:
                async with db.transaction() as session:
                    answer = await original(session, *args, **settings)
                    if _has_effect(name, answer):
                        await point.strike()
                return answer
            case Step.AFTER:
                answer = await original(db, *args, **settings)
                if _has_effect(name, answer):
                    await point.strike()
                return answer

    setattr(queue, name, armed)


def armed_handler(inner: Handler, point: Point, until: asyncio.Event) -> Handler:
    """The handler with the point before its first line, while it runs (once `until` is set), or after its answer."""

    async def handle(job: ClaimedJob) -> Outcome:
        if point.struck:
            return await inner(job)
        if point.step is Step.BEFORE:
            await point.strike()
            return await inner(job)
        if point.step is Step.INSIDE:
            point.journal.write("start", job.id, job.attempt)
            await until.wait()
            await point.strike()
            point.journal.write("end", job.id, job.attempt)
            return Success()
        outcome = await inner(job)
        await point.strike()
        return outcome

    return handle


def _has_effect(name: str, answer: Any) -> bool:
    match name, answer:
        case "promote", Promoted(count=count):
            return count > 0
        case (("claim" | "rescue" | "retire" | "move" | "add_days" | "drop_day" | "give_back"), _):
            return bool(answer)
        case _:
            return True
