"""A process whose wall clock is wrong, and can be stepped while it runs; its monotonic clocks are right."""

from __future__ import annotations

import os
import struct
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_SOURCE = Path(__file__).with_name("skewed_clock.c")
_MICROSECOND_NS = 1000


class NoCompilerError(Exception):
    """The preload library could not be compiled; says what gcc said."""


def compile_preload(folder: Path) -> Path:
    """Compile `skewed_clock.c` into the folder. NoCompilerError when gcc is missing or refuses."""
    library = folder / "skewed_clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise NoCompilerError(f"skewed clocks need gcc, which cannot be run: {error}") from error
    if done.returncode != 0:
        raise NoCompilerError(f"skewed clocks need {_SOURCE.name}, which gcc did not compile:\n{done.stderr}")
    return library


@dataclass(frozen=True, slots=True)
class SkewedClock:
    """The wall clock of the processes that are started with `environment`."""

    preload: Path
    file: Path

    @classmethod
    def make(cls, preload: Path, file: Path, shift: timedelta = timedelta(0)) -> SkewedClock:
        """A clock that is `shift` ahead (negative: behind); `file` holds how much and is made."""
        clock = cls(preload, file)
        clock.step_to(shift)
        return clock

    def step_to(self, shift: timedelta) -> None:
        """From now on the clock is this much ahead of the machine's."""
        shift_ns = shift // timedelta(microseconds=1) * _MICROSECOND_NS
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("=q", shift_ns), 0)
        finally:
            os.close(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """What to add to a process's environment."""
        others = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self.preload} {others}".strip(), "SKEWED_CLOCK": str(self.file)}
