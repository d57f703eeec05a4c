"""What worker processes did, as a file to which each appends whole lines: a SIGKILL loses none that was written."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Entry:
    """`what` happened to an attempt of a job in process `pid`; `at_s` is the machine's monotonic clock."""

    what: str
    job_id: UUID
    attempt: int
    pid: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Journal:
    """Written by processes, read by tests."""

    path: Path

    def write(self, what: str, job_id: UUID | None = None, attempt: int = 0) -> None:
        line = f"{what} {job_id or UUID(int=0)} {attempt} {os.getpid()} {time.monotonic()}\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self, what: str, pid: int | None = None) -> list[Entry]:
        """In the order in which they were written; of one process or of all."""
        if not self.path.exists():
            return []
        entries = []
        whole, _, _ = self.path.read_text().rpartition("\n")  # a line that is just being written may be seen in part
        for line in whole.splitlines():
            kind, job_id, attempt, writer, at_s = line.split(" ")
            if kind == what and pid in (None, int(writer)):
                entries.append(Entry(kind, UUID(job_id), int(attempt), int(writer), float(at_s)))
        return entries

    def starts(self, pid: int | None = None) -> Counter[tuple[UUID, int]]:
        """How often each attempt was started."""
        return Counter((entry.job_id, entry.attempt) for entry in self.entries("start", pid))

    def jobs(self, what: str, pid: int | None = None) -> set[UUID]:
        return {entry.job_id for entry in self.entries(what, pid)}
