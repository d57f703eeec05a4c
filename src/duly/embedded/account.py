"""Who PostgreSQL runs as (it refuses root), and how a program is run as that account."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duly.model.errors import EmbeddedError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ENTER_EACH = 'for folder; do cd "$folder" 2>/dev/null || { printf %s "$folder"; exit 1; }; done'


@dataclass(frozen=True, slots=True)
class Account:
    """The account of the server. `dropped`: we are root and act through it; else it is our own."""

    name: str
    uid: int
    gid: int
    dropped: bool

    def own(self, path: Path) -> None:
        """Give `path` (itself, not what a link leads to) to the account."""
        if self.dropped:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def run(self, argv: Sequence[str | Path], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run to the end; killed if we die first. OSError when it cannot be executed."""
        with warnings.catch_warnings():
            _silence_fork_warning()
            return subprocess.run(
                argv,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                preexec_fn=_die_with_parent(signal.SIGKILL),
                user=self.uid if self.dropped else None,
                group=self.gid if self.dropped else None,
                extra_groups=[] if self.dropped else None,
            )

    def spawn(self, argv: Sequence[str | Path], output: int) -> subprocess.Popen[bytes]:
        """Start a direct child, writing to `output`, that gets SIGINT when the calling thread ends (Linux)."""
        with warnings.catch_warnings():
            _silence_fork_warning()
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal is for us to handle, not for the server
                preexec_fn=_die_with_parent(signal.SIGINT),
                user=self.uid if self.dropped else None,
                group=self.gid if self.dropped else None,
                extra_groups=[] if self.dropped else None,
            )

    def first_blocked(self, folder: Path) -> Path | None:
        """The first existing folder on the way to `folder` that the account cannot enter; None if it can enter all."""
        if not self.dropped:
            return None
        way = [str(step) for step in (*reversed(folder.parents), folder) if step.exists()]
        tried = self.run(["/bin/sh", "-c", _ENTER_EACH, "sh", *way], timeout_s=30)  # asks the kernel, so ACLs count too
        return Path(tried.stdout) if tried.returncode != 0 else None


def choose_account(user: str | None, data: Path) -> Account:
    """Ourselves; for root: `user`, else the owner of an existing cluster, else `postgres`, else `nobody`.

    No account is ever made. EmbeddedError when there is none to drop to, or `user` cannot be had.
    """
    uid = os.geteuid()
    if uid != 0:
        own = _account(uid, dropped=False)
        if user is not None and user != own.name:
            raise EmbeddedError(f"only root can run PostgreSQL as {user!r}: this is {own.name!r}; leave the user out")
        return own
    if user is not None:
        named = _lookup(user)
        if named is None or named.uid == 0:
            raise EmbeddedError(f"PostgreSQL cannot run as {user!r}: name an existing account that is not root")
        return named
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _account(owner, dropped=True)
    for name in ("postgres", "nobody"):
        if (found := _lookup(name)) is not None:
            return found
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and there is neither an account 'postgres' nor 'nobody':"
        " start Duly as a plain user, name an account, or give --database-url"
    )


def has_passwd_entry(account: Account) -> bool:
    """Whether the account stands in passwd; initdb needs that, the server does not."""
    try:
        pwd.getpwuid(account.uid)
    except KeyError:
        return False
    return True


def _lookup(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, dropped=True)


def _account(uid: int, *, dropped: bool) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(f"uid {uid}", uid, uid if dropped else os.getegid(), dropped)
    return Account(entry.pw_name, uid, entry.pw_gid, dropped)


def _environment() -> dict[str, str]:
    """What the server may see: never our secrets, nor a PGPORT or locale that would change it."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("LD_", "NSS_WRAPPER_"))}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"} | kept


def _die_with_parent(sent: signal.Signals) -> Callable[[], None] | None:
    """A step for the child, between the change of account (which clears the setting) and exec."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(
        None, use_errno=True
    ).prctl  # looked up before the fork: the child must not take the loader's lock
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(sent), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask


def _silence_fork_warning() -> None:
    """Python 3.12+ warns of a fork beside threads; the child's step above takes no lock."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
