"""Process groups that are to end with this process, however it ends: a process beside it kills them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).with_name("guard.py")
_END_LIMIT_S = 2.0


class Guard:
    """Knows the groups, and keeps the process that kills them; it is there from the first group on."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._fd: int | None = None
        _guards.add(self)

    def add(self, group: int) -> None:
        """From now on it ends with us."""
        self._groups.add(group)
        if self._process is None or self._process.poll() is not None:
            self._begin()
        else:
            self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """It has been killed: its number may be another's soon."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    async def close(self) -> None:
        """Kill those that are left, and see the process end."""
        self.let_go()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, _END_LIMIT_S)

    def let_go(self) -> None:
        """Close our end: the process has its word from nobody else any more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin(self) -> None:
        self.let_go()
        theirs, self._fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM], stdin=theirs, start_new_session=True
            )
        finally:
            os.close(theirs)
        self._tell("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _tell(self, words: str) -> None:
        if self._fd is not None:
            with suppress(BrokenPipeError):  # it was killed: the next group gets a new one
                os.write(self._fd, words.encode())


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _forked() -> None:
    """A copy of this process, forked by job code, must not look to the guard as if we were there still."""
    for guard in list(_guards):
        guard.let_go()


os.register_at_fork(after_in_child=_forked)
