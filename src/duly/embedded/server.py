"""The server process: started as our direct child, known to be ready, ended with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from duly.embedded.account import Account, choose_account
from duly.embedded.binaries import Binaries, find_binaries
from duly.embedded.cluster import SUPERUSER, ensure_cluster, reachable
from duly.embedded.home import Home, clear_socket_folder, make_home, make_socket_folder, open_log, take_lock
from duly.embedded.pidfile import clear_the_way, is_ready
from duly.embedded.settings import arguments, merge
from duly.model.errors import EmbeddedError

START_TIMEOUT = timedelta(minutes=10)  # recovery after a crash of a busy queue can take minutes
STOP_TIMEOUT = timedelta(seconds=60)
_OLD_BACKENDS = "pre-existing shared memory block"
_POLL_S = 0.005
_NEWS_EVERY_S = 5.0
_LOG_TAIL_BYTES = 2000


class EmbeddedPostgres:
    """A private PostgreSQL in the folder `home`: `start()` makes it if it is not there; `stop()`, or our end, stops it.

    `binaries`: an installation's folder (None: look for one). `settings` go over the defaults; with `listen_addresses`
    it also listens on TCP, where only roles with a password get in. `user`: the account to use when we are root.
    `on_progress` gets a short line for everything that may take a while. The superuser is `duly`.
    """

    def __init__(
        self,
        home: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
        user: str | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.home = home.resolve()
        self._home = Home(self.home)
        self._folder = binaries
        self._settings = merge(settings or {})
        self._user = user
        self._note = on_progress or _say_nothing
        self._owner_pid = 0
        self._lock: int | None = None
        self._binaries: Binaries | None = None
        self._socket_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it does not run."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def version(self) -> str:
        """PostgreSQL's version, e.g. "18.6". EmbeddedError before the first start."""
        if self._binaries is None:
            raise EmbeddedError("the embedded PostgreSQL was not started yet: its version is not known")
        return self._binaries.version

    def dsn(self, database: str = "postgres") -> str:
        """A postgresql:// URL over the Unix socket. EmbeddedError when the server was not started."""
        if self._socket_folder is None:
            raise EmbeddedError("the embedded PostgreSQL was not started: it has no address")
        where = urlencode({"host": str(self._socket_folder), "port": self._settings["port"]}, quote_via=quote, safe="")
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?{where}"

    def start(self, timeout: timedelta = START_TIMEOUT) -> None:
        """Return when the server accepts connections. After EmbeddedError, or any exception, nothing is left running.

        In the main thread only: the kernel ends the server when the thread that started it ends.
        """
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedError(
                "start the embedded PostgreSQL in the main thread: it would be stopped with this thread"
            )
        if self.alive:
            raise EmbeddedError(f"the embedded PostgreSQL in {self.home} runs already: stop it first")
        self._release()
        self._owner_pid = os.getpid()
        try:
            self._start(time.monotonic() + timeout.total_seconds())
        except (OSError, subprocess.SubprocessError) as error:
            self._abandon()
            raise EmbeddedError(f"the embedded PostgreSQL in {self.home} could not be started: {error}") from error
        except BaseException:
            self._abandon()
            raise

    def stop(self, timeout: timedelta = STOP_TIMEOUT) -> None:
        """End the server cleanly (clients are cut off); after `timeout` at once, and the next start recovers."""
        if self._owner_pid != os.getpid():  # a forked child that inherited us, or never started
            return
        try:
            if self._process is not None:
                _end(self._process, timeout.total_seconds())
        finally:
            self._release()

    def kill(self) -> None:
        """SIGKILL the server, as a crash would; for tests. `start()` recovers."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, deadline: float) -> None:
        account = choose_account(self._user, self._home.data)
        make_home(self._home, account)
        self._lock = take_lock(self._home)
        clear_the_way(self._home.data, self._note)
        found = find_binaries(self._folder, self._home.data)
        self._binaries = reachable(found, account, self._home, self._note)
        ensure_cluster(self._home, self._binaries, account, max(deadline - time.monotonic(), 1.0), self._note)
        self._socket_folder = make_socket_folder(self._home, account, self._settings["port"])
        argv = [
            str(self._binaries.program("postgres")),
            *arguments(self._settings, self._home.data, self._socket_folder),
        ]
        self._launch(argv, account, deadline)
        self._note(f"PostgreSQL {self._binaries.version} is ready")

    def _launch(self, argv: list[str], account: Account, deadline: float) -> None:
        """Start until it is ready; tried again while the backends of a killed server still hold its memory."""
        log = open_log(self._home)
        pause_s = 0.02
        try:
            while True:
                before = os.fstat(log).st_size
                self._process = account.spawn(argv, log)
                if self._became_ready(self._process, deadline):
                    return
                words = _tail(self._home.log, before)
                if _OLD_BACKENDS not in words or time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"PostgreSQL ended while it started (exit code {self._process.returncode});"
                        f" the last lines of {self._home.log}:\n{words}"
                    )
                self._note("waiting for the last connections of the server that was killed")
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
        finally:
            os.close(log)

    def _became_ready(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """True when ready, False when it exited; EmbeddedError when the time is over."""
        news_at = time.monotonic() + _NEWS_EVERY_S
        while process.poll() is None:
            if is_ready(self._home.data, process.pid):
                return True
            now = time.monotonic()
            if now > deadline:
                raise EmbeddedError(
                    f"PostgreSQL was not ready in time: if it was recovering, give it longer; see {self._home.log}"
                )
            if now > news_at:
                self._note(f"PostgreSQL is still starting; see {self._home.log}")
                news_at = now + _NEWS_EVERY_S
            time.sleep(_POLL_S)
        return False

    def _abandon(self) -> None:
        """After a failed start: leave no process and no lock, whatever else goes wrong."""
        try:
            if self._process is not None:
                _end(self._process, patience_s=STOP_TIMEOUT.total_seconds())
        finally:
            self._release()

    def _release(self) -> None:
        """Forget a server that ended: its socket folder outside the home, and the lock last."""
        self._process = None
        self._socket_folder = None
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            clear_socket_folder(self._home)
        os.close(self._lock)
        self._lock = None


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """SIGINT (fast shutdown; SIGTERM would wait for clients), then SIGQUIT, then SIGKILL; reaped when it returns."""
    for sent, wait_s in ((signal.SIGINT, patience_s), (signal.SIGQUIT, 10.0)):
        if process.poll() is not None:
            return
        process.send_signal(sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return
    process.kill()
    process.wait()


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as stream:
        stream.seek(max(start, log.stat().st_size - _LOG_TAIL_BYTES))
        return stream.read().decode(errors="replace").strip()


def _say_nothing(line: str) -> None:
    """No one asked for progress."""
