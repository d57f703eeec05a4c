"""Numbers that a measured process keeps in shared memory: adding one costs some 50 ns and no system call.

One process writes, others read. Slots are 64-bit integers; slot 0 counts, the meaning of the others is their program's.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from types import TracebackType
from typing import Self

_SLOT_BYTES = 8


class Tally:
    """A file of `slots` integers, mapped. The file is made (all zeros) by the reader and opened by the writer."""

    def __init__(self, file: Path, slots: int) -> None:
        self.file = file
        self.slots = slots
        with file.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), slots * _SLOT_BYTES)
        self.numbers = memoryview(self._map).cast("q")

    @classmethod
    def make(cls, file: Path, slots: int = 1) -> Self:
        """Make the file first."""
        file.write_bytes(bytes(slots * _SLOT_BYTES))
        return cls(file, slots)

    @property
    def count(self) -> int:
        """Slot 0."""
        return self.numbers[0]

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self.numbers.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
