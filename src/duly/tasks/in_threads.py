"""Sync tasks run in threads, one each. A thread cannot be stopped: one whose attempt is over stays until its code
ends, and takes no other.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable


class Threads:
    """Threads for blocking code: as many as there is work at once, kept for the next. Daemons: code that does not end
    must not keep the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._made = 0

    def start(self, work: Callable[[], None]) -> _Thread:
        """Run it in a thread that runs nothing else meanwhile. `work` must not raise."""
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
                thread.give(work)
                return thread
            self._made += 1
            number = self._made
        return _Thread(f"{self._name}-{number}", work, self._keep)

    def close(self) -> None:
        """Let the idle ones go."""
        with self._lock:
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.give(None)

    def _keep(self, thread: _Thread) -> None:
        with self._lock:
            self._idle.append(thread)


class _Thread:
    def __init__(self, name: str, work: Callable[[], None], free: Callable[[_Thread], None]) -> None:
        self._free = free
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._given.put(work)
        self.is_left = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], None] | None) -> None:
        self._given.put(work)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stack(self) -> str:
        """Where its code is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(unknown)"

    def _main(self) -> None:
        own = os.getpid()
        while (work := self._given.get()) is not None:
            work()
            del work
            if os.getpid() != own:  # job code has forked, and this is its copy of us: it has no more to do
                os._exit(0)
            if self.is_left:
                return
            self._free(self)
