"""The home folder: its layout, its way in, its one owner, its log and its socket folder.

postgres.lock   held by the owner while it owns; never removed
data/           the cluster; data.new.* is one in the making
run             the socket's folder (0700), or a link to a short one in /tmp
postgres.log    the server's words; postgres.log.1 is the older part
binaries-*/     a copy of binaries that the server's account could not reach
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from duly.embedded.account import Account, choose_account
from duly.model.errors import EmbeddedError

LOCK_PATIENCE_S = 0.5
LOG_LIMIT_BYTES = 10 * 1024 * 1024
SOCKET_PATH_LIMIT_BYTES = 103  # sun_path holds 104 bytes on macOS, 108 on Linux, one of them the final zero
_SHORT_FOLDER = "/tmp/duly-"  # noqa: S108  made by mkdtemp, mode 0700


@dataclass(frozen=True, slots=True)
class Home:
    """The names inside one home folder."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def lock(self) -> Path:
        return self.root / "postgres.lock"


def make_home(home: Home, account: Account) -> None:
    """Make the folder and its missing parents, passable for the account; else EmbeddedError, with nothing made."""
    if "\n" in str(home.root):
        raise EmbeddedError(f"the folder {str(home.root)!r} has a line break in its name: choose another")
    blocked = account.first_blocked(home.root)
    if blocked == home.root and _is_ours(home):
        os.chmod(home.root, stat.S_IMODE(home.root.stat().st_mode) | stat.S_IXOTH)
        blocked = account.first_blocked(home.root)
    if blocked is not None:
        raise EmbeddedError(_blocked_message(home, account, blocked))
    mode = 0o711 if account.dropped else 0o700
    for folder in [step for step in (*reversed(home.root.parents), home.root) if not step.exists()]:
        folder.mkdir(mode=mode)
        os.chmod(folder, mode)  # whatever the umask


def passable(preferred: Path, fallback: Path) -> Path:
    """Where a cluster can live: `preferred`, or `fallback` if the server's account cannot enter a folder on the way
    there.

    That happens to root with a home under /root or another closed folder: the server runs as a plain account then.
    """
    account = choose_account(None, preferred / "data")
    return preferred if account.first_blocked(preferred) is None else fallback


def take_lock(home: Home) -> int:
    """Become the owner; the descriptor that holds the lock. EmbeddedError when another process is."""
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _lock_within(descriptor, LOCK_PATIENCE_S):
        owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise EmbeddedError(
            f"the embedded PostgreSQL in {home.root} already has an owner (process {owner}):"
            " stop that one, or choose another home folder"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def open_log(home: Home) -> int:
    """The log, opened to append; a large one is put aside first, in the place of the one before."""
    if home.log.exists() and home.log.stat().st_size > LOG_LIMIT_BYTES:
        home.log.replace(home.log.with_name("postgres.log.1"))
    return os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def make_socket_folder(home: Home, account: Account, port: str) -> Path:
    """A 0700 folder of the account: `run`, or one in /tmp when that path is too long (or has a comma)."""
    clear_socket_folder(home)
    folder = home.run
    if len(os.fsencode(folder / f".s.PGSQL.{port}")) > SOCKET_PATH_LIMIT_BYTES or "," in str(folder):
        if folder.is_dir():
            shutil.rmtree(folder)
        folder = Path(tempfile.mkdtemp(prefix=Path(_SHORT_FOLDER).name, dir=Path(_SHORT_FOLDER).parent))
        home.run.symlink_to(folder)  # so that the next owner can remove it if we cannot
    folder.mkdir(mode=0o700, exist_ok=True)
    account.own(folder)
    os.chmod(folder, 0o700)
    return folder


def clear_socket_folder(home: Home) -> None:
    """Remove a socket folder that was made outside the home, this time or by an owner that was killed."""
    if not home.run.is_symlink():
        return
    target = os.readlink(home.run)
    if target.startswith(_SHORT_FOLDER) and Path(target).parent == Path(_SHORT_FOLDER).parent:
        shutil.rmtree(target, ignore_errors=True)
    home.run.unlink()


def _lock_within(descriptor: int, patience_s: float) -> bool:
    """Whether the lock was got. A dying owner, or its child between fork and exec, lets go in a moment."""
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True


def _is_ours(home: Home) -> bool:
    """Only a folder that is empty or was used before may be opened; not, say, /root."""
    return home.lock.exists() or not any(home.root.iterdir())


def _blocked_message(home: Home, account: Account, blocked: Path) -> str:
    mode = stat.S_IMODE(blocked.stat().st_mode)
    return (
        f"PostgreSQL cannot run as root, and the account {account.name!r} cannot enter {blocked} (mode {mode:04o}),"
        f" which is on the way to {home.root}: choose a home outside it (for example /var/lib/duly),"
        f" or run 'chmod o+x {blocked}', or start Duly as a plain user, or give --database-url"
    )
