"""Duly: HTTP requests and Python functions, run later, reliably, on PostgreSQL.

The house, from the pure core outwards; imports point up this list, never down (held by import-linter):

    model     facts and rules            queue     the only code that calls the queue's SQL
    schema    tables and functions       worker    claim, execute, heartbeat, settle, drain
    upkeep    promote, rescue, segments  http      one stored request in, one outcome out
    tasks     Python functions as jobs   receiving the other end of a delivery
    service   accounts, keys, secrets    api       REST
    dashboard pages for people           observe   metrics, traces, doctor
    embedded  a private PostgreSQL
    hosting   a worker inside a program  cli       the `duly` command
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.hosting import Worker as Worker
    from duly.model.errors import DulyError as DulyError
    from duly.model.errors import InvalidInputError as InvalidInputError
    from duly.model.errors import JobFailedError as JobFailedError
    from duly.model.errors import UniqueKeyTakenError as UniqueKeyTakenError
    from duly.model.ids import uuid7 as uuid7
    from duly.model.retry import Backoff as Backoff
    from duly.receiving.once import processed_once as processed_once
    from duly.receiving.requests import delivery as delivery
    from duly.receiving.requests import receive as receive
    from duly.receiving.verification import Delivery as Delivery
    from duly.receiving.verification import VerificationError as VerificationError
    from duly.receiving.verification import verify as verify
    from duly.tasks.app import App as App
    from duly.tasks.app import schedule as schedule
    from duly.tasks.app import task as task
    from duly.tasks.context import Context as Context
    from duly.tasks.handle import AsyncHandle as AsyncHandle
    from duly.tasks.handle import Handle as Handle
    from duly.tasks.outcomes import Bury as Bury
    from duly.tasks.outcomes import Cancel as Cancel
    from duly.tasks.outcomes import Retry as Retry
    from duly.tasks.outcomes import Snooze as Snooze
    from duly.tasks.task import Task as Task
    from duly.tasks.task import enqueue_many as enqueue_many

try:
    __version__ = version("duly")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

_WHERE = {
    "App": "duly.tasks.app",
    "AsyncHandle": "duly.tasks.handle",
    "Backoff": "duly.model.retry",
    "Bury": "duly.tasks.outcomes",
    "Cancel": "duly.tasks.outcomes",
    "Context": "duly.tasks.context",
    "Delivery": "duly.receiving.verification",
    "DulyError": "duly.model.errors",
    "Handle": "duly.tasks.handle",
    "InvalidInputError": "duly.model.errors",
    "JobFailedError": "duly.model.errors",
    "Retry": "duly.tasks.outcomes",
    "Snooze": "duly.tasks.outcomes",
    "Task": "duly.tasks.task",
    "UniqueKeyTakenError": "duly.model.errors",
    "VerificationError": "duly.receiving.verification",
    "Worker": "duly.hosting",
    "delivery": "duly.receiving.requests",
    "enqueue_many": "duly.tasks.task",
    "processed_once": "duly.receiving.once",
    "receive": "duly.receiving.requests",
    "schedule": "duly.tasks.app",
    "task": "duly.tasks.app",
    "uuid7": "duly.model.ids",
    "verify": "duly.receiving.verification",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: importing duly costs nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
