"""Child processes of a benchmark: started with one JSON argument, told to end, and how much CPU their trees used."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
_END_PATIENCE_S = 15.0


class ChildFailedError(Exception):
    """A measured process ended by itself. Carries the end of what it wrote."""


class Child:
    """One running process of ours."""

    def __init__(self, module: str, argument: dict[str, Any], log: Path, python: str = sys.executable) -> None:
        self._log = log
        self._module = module
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [python, "-m", module, json.dumps(argument)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise ChildFailedError if it has ended."""
        if self._process.poll() is not None:
            raise ChildFailedError(f"{self._module} ended (exit code {self._process.returncode}): {self.words()}")

    def words(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-3000:]

    async def until(self, reached: Callable[[], bool], limit_s: float, every_s: float = 0.002) -> None:
        """Wait for something that the process brings about; raise ChildFailedError if it ends first, TimeoutError
        after the limit.
        """
        end = time.monotonic() + limit_s
        while not reached():
            self.check()
            if time.monotonic() > end:
                raise TimeoutError(f"{self._module} did not get there in {limit_s:g} s: {self.words()}")
            await asyncio.sleep(every_s)

    async def ended(self, limit_s: float) -> None:
        """Wait for it to end well by itself."""
        await asyncio.to_thread(self._process.wait, limit_s)
        if self._process.returncode != 0:
            raise ChildFailedError(f"{self._module} failed (exit code {self._process.returncode}): {self.words()}")

    async def end(self) -> None:
        """SIGTERM, then SIGKILL for one that does not listen."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, _END_PATIENCE_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def child(module: str, argument: dict[str, Any], log: Path, python: str = sys.executable) -> AsyncIterator[Child]:
    """A process that runs while the block does."""
    process = Child(module, argument, log, python)
    try:
        yield process
    finally:
        await process.end()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of its children that have ended, and of those that live."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        total += sum(_times(root))
        for one in root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += sum(_times(one))
    return total


def _times(process: Any) -> Iterable[float]:
    times = process.cpu_times()
    return (times.user, times.system, times.children_user, times.children_system)
