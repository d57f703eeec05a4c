"""A process that runs tasks, one at a time: `python -m duly.tasks.child FD`. It ends with its worker, whatever its
code does.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import queue
import signal
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from duly.model.outcomes import Outcome, Report, Retry
from duly.model.storable import describe
from duly.tasks.attempts import run_async, run_sync
from duly.tasks.context import Context, Progress
from duly.tasks.task import KIND_PREFIX, Task
from duly.tasks.wire import Job, outcome_to_wire, pack, receive

_PR_SET_PDEATHSIG = 1


class Child:
    """Reads jobs from the socket, runs them in the main thread, and answers each with its outcome."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._writing = threading.Lock()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._context: Context | None = None
        self._stop_async: Any = None
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def run(self) -> None:
        """Until the worker closes the socket."""
        threading.Thread(target=self._read, name="duly-wire", daemon=True).start()
        while True:
            job = self._jobs.get()
            outcome = outcome_to_wire(self._outcome(job), KIND_PREFIX + job.task)
            if os.getpid() != self._pid:  # job code has forked, and this is its copy of us: it answers for nobody
                os._exit(0)
            self._send({**outcome, **_token(job.job_id, job.attempt)})

    def _outcome(self, job: Job) -> Outcome:
        context = Context(
            UUID(job.job_id),
            job.attempt,
            job.is_final,
            job.task,
            job.queue,
            timedelta(seconds=job.timeout_s),
            on_progress=self._on_progress,
        )
        self._context = context
        stored = tuple(job.stored) if isinstance(job.stored, list) else job.stored
        try:
            task = find_task(job.module, job.function, job.task)
            if task.is_async:
                return asyncio.run(self._run_async(task, job.payload_json, context, stored))
            return run_sync(task, job.payload_json, context, stored)
        except BaseException as error:  # importing the module is job code too
            return Retry(Report("error", error=describe(error)))
        finally:
            self._stop_async = None

    async def _run_async(self, task: Task[Any, Any, Any], payload_json: str, context: Context, stored: Any) -> Outcome:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(run_async(task, payload_json, context, stored))
        self._stop_async = lambda: loop.call_soon_threadsafe(running.cancel)
        return await running

    def _on_progress(self, context: Context, progress: Progress) -> None:
        told = {"share": progress.share, "message": progress.message}
        self._send({**told, **_token(str(context.job_id), context.attempt)})

    def _send(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._sock.sendall(pack(message))

    def _forked(self) -> None:
        """In a process that job code forks: it does not read our jobs, and ends with us."""
        self._sock.close()
        _die_with_the_worker()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while (message := receive(self._sock)) is not None:
                if message.get("stop"):
                    self._stop()
                else:
                    self._jobs.put(Job(**message))
        with suppress(OSError):  # the worker is gone: so are we, and what our code has started
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)

    def _stop(self) -> None:
        context, stop_async = self._context, self._stop_async
        if context is not None:
            context.cancelled.set()
        if stop_async is not None:
            with suppress(RuntimeError):  # its loop has ended just now
                stop_async()


def _token(job_id: str, attempt: int) -> dict[str, Any]:
    return {"job_id": job_id, "attempt": attempt}


def find_task(module: str, function: str, name: str) -> Task[Any, Any, Any]:
    """The task as its module names it. Raises ImportError if there is none of that name."""
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Task) or name not in (found.name, *found.aliases):
        raise ImportError(f"{module}.{function} is not the task {name}")
    return found


def _die_with_the_worker() -> None:
    """Linux only: elsewhere the end of the socket does it, unless code that never returns to Python keeps us from
    seeing it.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_the_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when we stop
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    Child(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
