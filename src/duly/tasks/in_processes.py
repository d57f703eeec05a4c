"""CPU-bound or untrusted tasks run in processes of their own, which can be killed: with all that they started, at
their time limit and with their worker. Only what has left their process group escapes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from duly.model.outcomes import Outcome, Report, Retry
from duly.tasks.context import Progress
from duly.tasks.guarding import Guard
from duly.tasks.wire import Job, NonsenseError, outcome_from_wire, pack, read

log = logging.getLogger("duly.task")

JOBS_A_PROCESS = 1000  # then a fresh one: what job code leaks goes with it

OnProgress = Callable[[Progress], None]


class Processes:
    """Processes for tasks, made when they are needed and kept for the next."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._leaving: set[Process] = set()
        self._guard = Guard()

    async def take(self) -> Process:
        """An idle one, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            self.drop(process)
        process = await Process.start(self._guard)
        self._all.add(process)
        return process

    def give(self, process: Process) -> None:
        """Back, after an attempt that ended by itself; killed if it has run enough."""
        if process.is_alive and process.jobs < JOBS_A_PROCESS:
            self._idle.append(process)
        else:
            self.drop(process)

    def drop(self, process: Process) -> None:
        """Kill it."""
        process.kill()
        self._all.discard(process)
        self._leaving.add(process)
        process.ending.add_done_callback(lambda _: self._leaving.discard(process))

    async def close(self) -> None:
        """Kill all, and see them end."""
        for process in list(self._all):
            self.drop(process)
        self._idle.clear()
        await asyncio.gather(*(process.end() for process in list(self._leaving)))
        await self._guard.close()


class Process:
    """One process, and the socket to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        guard: Guard,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._guard = guard
        self._is_killed = False
        self.ending = asyncio.ensure_future(self._watch())
        self.jobs = 0

    @classmethod
    async def start(cls, guard: Guard) -> Process:
        """Start one. It is in a session and a process group of its own: signals to the worker's do not reach it."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "duly.tasks.child",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        guard.add(process.pid)
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer, guard)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def run(self, job: Job, on_progress: OnProgress) -> Outcome:
        """Run one attempt to its outcome. A process that ends or talks nonsense is a failed attempt."""
        self.jobs += 1
        try:
            self._writer.write(pack(asdict(job)))
            await self._writer.drain()
            while True:
                message = await read(self._reader)
                if (message.get("job_id"), message.get("attempt")) != (job.job_id, job.attempt):
                    raise NonsenseError("an answer to another job")
                if "outcome" in message:
                    return outcome_from_wire(message)
                on_progress(_progress(message))
        except NonsenseError as error:
            self.kill()
            return Retry(Report("error", error=f"its process answered with {error}"))
        except (asyncio.IncompleteReadError, OSError):
            self.kill()
            return Retry(Report("error", error=f"its process ended before it had an outcome ({await self.end()})"))

    def ask_to_stop(self) -> None:
        """Set the attempt's `cancelled`, and cancel it if it is async."""
        with suppress(OSError, RuntimeError):
            self._writer.write(pack({"stop": True}))

    def kill(self) -> None:
        """End it and all of its group, at once."""
        self._kill_group()
        self._writer.close()

    async def end(self) -> str:
        """How it ended, waited for a moment."""
        try:
            async with asyncio.timeout(2.0):
                code = await asyncio.shield(self.ending)
        except TimeoutError:
            return "it does not go away"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    async def _watch(self) -> int:
        """What it has started must not outlive it, whatever ended it."""
        code = await self._process.wait()
        self._kill_group()
        return code

    def _kill_group(self) -> None:
        if not self._is_killed:  # once: afterwards the number may be another group's
            self._is_killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._guard.forget(self._process.pid)


def _progress(message: dict[str, Any]) -> Progress:
    share, text = message.get("share"), message.get("message")
    return Progress(
        float(share) if isinstance(share, int | float) else None, text[:500] if isinstance(text, str) else None
    )
