"""Processes that a test starts, signals and ends, each by its own id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.skewed_clock import SkewedClock

from duly.queue import Owner
from support.crash_journal import Journal
from support.sessions import until_true

_TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Process:
    """One child process and the file that has its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; gone when it returns."""
        self.popen.kill()
        self.popen.wait()

    def said(self, words: str) -> bool:
        """Whether its log has the words."""
        return words in self.log.read_text()

    async def ended(self, patience_s: float = 30.0) -> int:
        """Wait for its end; the exit code, or minus the signal."""
        await until_true(lambda: not self.alive, patience_s)
        return self.popen.returncode


@dataclass
class Fleet:
    """Starts processes against one database; they share one journal."""

    dsn: str
    folder: Path
    processes: list[Process] = field(default_factory=list)

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "journal")

    def gate(self, name: str = "gate") -> Path:
        """A file that jobs wait for; `touch()` opens it."""
        return self.folder / name

    def launch(self, lease_s: float = 1.0, clock: SkewedClock | None = None, **options: str | float) -> Process:
        """Start a worker, by a clock of its own if one is given; it is not ready yet."""
        given = {"lease": lease_s, **options}
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return self._spawn("support.crash_driver", arguments, clock)

    async def ready(self, process: Process) -> None:
        await until_true(lambda: self.journal.entries("ready", process.pid) or not process.alive)
        assert process.alive, process.log.read_text()

    async def worker(self, lease_s: float = 1.0, clock: SkewedClock | None = None, **options: str | float) -> Process:
        """Start a worker; it is registered when this returns."""
        process = self.launch(lease_s, clock, **options)
        await self.ready(process)
        return process

    def enqueuer(self, owner: Owner) -> Process:
        return self._spawn("support.crash_enqueuer", [f"--account={owner.account_id}", f"--project={owner.project_id}"])

    def _spawn(self, module: str, arguments: list[str], clock: SkewedClock | None = None) -> Process:
        log = self.folder / f"{module.rpartition('.')[2]}-{len(self.processes)}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, f"--dsn={self.dsn}", f"--journal={self.journal.path}", *arguments],
                cwd=_TESTS,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(_TESTS), **(clock.environment if clock else {})},
            )
        process = Process(popen, log)
        self.processes.append(process)
        return process


@contextmanager
def fleet_against(dsn: str, folder: Path) -> Iterator[Fleet]:
    """A fleet; whatever of it still lives at the end is killed, and its logs are shown with a failing test."""
    fleet = Fleet(dsn, folder)
    try:
        yield fleet
    finally:
        for process in fleet.processes:
            process.kill()
            sys.stdout.write(f"--- {process.log.name}, pid {process.pid}, exit code {process.popen.returncode}\n")
            sys.stdout.write(process.log.read_text()[-20_000:])
