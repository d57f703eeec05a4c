"""What the processes of a soak did, as a file to which each appends whole lines: a SIGKILL loses none that was
written, and none is written before what it tells has happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import UUID

What = Literal[
    "acknowledged",  # client: the enqueue was answered, or its transaction committed
    "cancel",  # client: about to ask for a cancellation
    "start",  # worker: the handler begins
    "end",  # worker: the handler ends; the note says how
    "dying",  # worker: kills itself now
    "registered",  # worker: the note is its id in the database
    "fenced",  # worker: stops what it runs
    "refused",  # worker: the outcome of this job was refused
    "gone",  # supervisor: the process is dead; the note says how it ended
    "stopped",  # supervisor: SIGSTOP was sent
    "continued",  # supervisor: SIGCONT will be sent
]

_NOBODY = UUID(int=0)


class Entry(NamedTuple):
    """`process` is the number that the supervisor gave it (pids come again); `at_s` the machine's monotonic clock."""

    what: What
    job_id: UUID
    attempt: int
    process: int
    at_s: float
    note: str


class Journal:
    """Open for writing, for one process or on behalf of others."""

    def __init__(self, path: Path, process: int = 0) -> None:
        self._process = process
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(
        self, what: What, job_id: UUID = _NOBODY, attempt: int = 0, note: object = "-", process: int | None = None
    ) -> None:
        """Append one line; `process` is our own unless said otherwise."""
        who = self._process if process is None else process
        os.write(self._descriptor, f"{what} {job_id} {attempt} {who} {time.monotonic()} {note}\n".encode())

    def close(self) -> None:
        os.close(self._descriptor)


def read(path: Path) -> Iterator[Entry]:
    """In the order in which they were written."""
    with path.open() as lines:
        for line in lines:
            what, job_id, attempt, process, at_s, note = line.rstrip("\n").split(" ", 5)
            yield Entry(what, UUID(job_id), int(attempt), int(process), float(at_s), note)  # type: ignore[arg-type]
