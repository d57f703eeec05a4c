"""postmaster.pid: what it says, and what to do with one that a dead server left.

Line 1 is the server's pid, line 8 its state. A pid that is a zombie, or that some other program got since (usual after
a container restart), would block a start. The file is then never deleted: its shared-memory line is what keeps a new
server out while an old one's backend still writes. Only line 1 is replaced, by a pid that cannot exist.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duly.model.errors import EmbeddedError

IMPOSSIBLE_PID = 2**31 - 1  # above any pid_max, and still an int for PostgreSQL's atoi
_ORPHAN_STOP_S = 60.0
_ORPHAN_QUIT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process as the system shows it: state letter and arguments."""

    state: str
    argv: tuple[str, ...]

    @property
    def is_dead(self) -> bool:
        return self.state in ("Z", "X")

    def serves(self, data: Path) -> bool:
        return bool(self.argv) and Path(self.argv[0]).name in ("postgres", "postmaster") and str(data) in self.argv[1:]


def is_ready(data: Path, pid: int) -> bool:
    """Whether the server with this pid accepts connections."""
    lines = _read(data) or []
    return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def clear_the_way(data: Path, note: Callable[[str], None]) -> None:
    """Stop a server of `data` that lost its owner, and disarm a stale file. Only for the holder of the lock."""
    lines = _read(data)
    if lines is None:
        return
    pid = _pid(lines)
    seen = _look_at(pid) if pid > 0 else None
    if seen is not None and not seen.is_dead and seen.serves(data):
        note(f"stopping PostgreSQL {pid}, which lost its owner")
        _stop(pid, data)
        lines = _read(data)
        if lines is None:
            return
        seen = _look_at(pid)
    if seen is not None or pid == 0:  # of a pid that is not there PostgreSQL itself knows that it is stale
        _disarm(data, lines)


def _read(data: Path) -> list[str] | None:
    try:
        return (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _pid(lines: list[str]) -> int:
    """Line 1, positive also for a single-user server; 0 for an empty or torn file."""
    try:
        pid = abs(int(lines[0]))
    except (IndexError, ValueError):
        return 0
    return pid if pid < IMPOSSIBLE_PID else -1


def _look_at(pid: int) -> _Seen | None:
    proc = Path("/proc") / str(pid)
    if not Path("/proc/self/stat").exists():
        return _look_with_ps(pid)
    try:
        state = (proc / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        argv = (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except (OSError, IndexError):
        return None
    return _Seen(state, tuple(os.fsdecode(part) for part in argv if part))


def _look_with_ps(pid: int) -> _Seen | None:
    shown = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    state, _, command = shown.stdout.strip().partition(" ")
    if not state:
        return None
    program, _, rest = command.strip().partition(" -D ")
    return _Seen(state[0], (program, rest.partition(" -c ")[0]))


def _stop(pid: int, data: Path) -> None:
    for sent, patience_s in ((signal.SIGINT, _ORPHAN_STOP_S), (signal.SIGQUIT, _ORPHAN_QUIT_S)):
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            return
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            seen = _look_at(pid)
            if seen is None or seen.is_dead or not seen.serves(data):
                return
            time.sleep(0.02)
    raise EmbeddedError(f"PostgreSQL {pid} still serves {data} and does not stop: end it by hand, then start again")


def _disarm(data: Path, lines: list[str]) -> None:
    text = "\n".join([str(IMPOSSIBLE_PID), *lines[1:]]) + "\n"
    # Written over, not truncated first: no moment in which a kill leaves an empty file. The server's account owns the
    # folder, and we may be root: a link put there must not be followed.
    descriptor = os.open(data / "postmaster.pid", os.O_WRONLY | os.O_NOFOLLOW)
    try:
        content = text.encode()
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
