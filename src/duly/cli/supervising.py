"""Several worker processes under one command, and a restart when code changes.

Each runs this very command; the environment tells it that it is one of them. One that ends unasked is started again,
later each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from duly.cli.console import complain, note
from duly.cli.stopping import Stop
from duly.worker.backing_off import Pause
from duly.worker.waiting import first_of

log = logging.getLogger("duly.cli")

SUPERVISOR = "DULY_SUPERVISOR_PID"
NUMBER = "DULY_SUPERVISED_NUMBER"

_LOOK_EVERY_S = 0.5
_QUICK_S = 5.0
_QUICK_ENDS = 5
_ABORT_AFTER_S = 5.0
_NOT_WATCHED = frozenset({"__pycache__", "node_modules", "site-packages"})


def is_supervised() -> bool:
    """Whether this process is one of those."""
    return SUPERVISOR in os.environ


def own_number() -> int:
    """Which of them this process is, counted from 1."""
    return int(os.environ.get(NUMBER, "1")) if is_supervised() else 1


async def until_orphaned() -> None:
    """Return when the supervisor is gone; never, if there is none."""
    supervisor = os.environ.get(SUPERVISOR)
    while supervisor is None or str(os.getppid()) == supervisor:  # noqa: ASYNC110  nothing tells a process of it
        await asyncio.sleep(1.0)


async def supervise(count: int, reload: bool) -> bool:
    """Keep `count` processes running until a stop signal; True if all drained cleanly. With `reload` they are
    started anew when a Python file below the working directory changes.
    """
    stop = Stop(lambda: note("draining; once more to abort"))
    children = [_Child(number) for number in range(1, count + 1)]
    reloading = _Reloading() if reload else None
    keeping = [asyncio.create_task(child.keep(stop.draining, reloading)) for child in children]
    watching = asyncio.create_task(reloading.watch()) if reloading else None
    aborting = asyncio.create_task(_pass_on(stop, children))
    try:
        return all(await asyncio.gather(*keeping))
    finally:
        for task in (watching, aborting):
            if task is not None:
                task.cancel()
        for child in children:
            child.terminate()


async def _pass_on(stop: Stop, children: list[_Child]) -> None:
    await stop.draining.wait()
    for child in children:
        child.terminate()
    await stop.aborting.wait()
    for child in children:
        child.terminate()


@dataclass
class _Reloading:
    """Notices changes of Python files. Each change sets its own event: who has begun before it waits for that one."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        before = _stamps()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = await asyncio.to_thread(_stamps)
            if now != before:
                different = sorted({path for path, _ in now ^ before})
                note(f"{', '.join(different[:3])} changed, starting anew")
                before = now
                told, self.changed = self.changed, asyncio.Event()
                told.set()


def _stamps() -> frozenset[tuple[str, int]]:
    return frozenset(_python_files())


def _python_files() -> Iterator[tuple[str, int]]:
    for folder, folders, files in os.walk(Path.cwd()):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_WATCHED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with suppress(OSError):
                    yield os.path.relpath(path), os.stat(path).st_mtime_ns


class _Child:
    def __init__(self, number: int) -> None:
        self._number = number
        self._process: asyncio.subprocess.Process | None = None

    def terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def keep(self, draining: asyncio.Event, reloading: _Reloading | None) -> bool:
        """Run it, and again when it ends unasked, until `draining`. True if the last one ended with 0."""
        pause = Pause(timedelta(milliseconds=500), timedelta(seconds=30))
        quick_ends = 0
        while not draining.is_set():
            began = time.monotonic()
            changed = None if reloading is None else reloading.changed
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "duly",
                *sys.argv[1:],
                env={**os.environ, SUPERVISOR: str(os.getpid()), NUMBER: str(self._number)},
            )
            code = await self._ended(changed)
            if draining.is_set():
                return code == 0
            if changed is not None and changed.is_set():
                continue
            quick_ends = quick_ends + 1 if time.monotonic() - began < _QUICK_S else 0
            log.error("a worker process has ended", extra={"number": self._number, "exit_code": code})
            if changed is not None:
                note("waiting for a change")
                await first_of(changed, draining)
                continue
            if quick_ends >= _QUICK_ENDS:
                complain(
                    f"worker process {self._number} has ended {quick_ends} times within seconds of its start: giving up"
                )
                draining.set()
                return False
            if not quick_ends:
                pause.reset()
            await first_of(draining, limit_s=pause.next_s())
        return True

    async def _ended(self, changed: asyncio.Event | None) -> int:
        assert self._process is not None
        ending = asyncio.ensure_future(self._process.wait())
        if changed is None:
            return await ending
        changing = asyncio.ensure_future(changed.wait())
        await asyncio.wait({ending, changing}, return_when=asyncio.FIRST_COMPLETED)
        changing.cancel()
        for _ in range(2):
            if not ending.done():
                self.terminate()
                await asyncio.wait({ending}, timeout=_ABORT_AFTER_S)
        if not ending.done():
            self._process.kill()
        return await ending
