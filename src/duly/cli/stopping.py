"""Stop signals: the first SIGTERM or SIGINT drains, the second aborts."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SAME_SIGNAL_S = 0.1
"""Signals closer together than this count as one: make and timeout pass on what the process group has had already."""


class Stop:
    """Two events, set by signals. Make it inside the loop that it serves."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.draining = asyncio.Event()
        self.aborting = asyncio.Event()
        self._on_first = on_first
        self._first_at = 0.0
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        now = self._loop.time()
        if self.draining.is_set():
            if now - self._first_at > SAME_SIGNAL_S:
                self.aborting.set()
            return
        self._first_at = now
        self.draining.set()
        self._on_first()


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, on uvloop where there is one.

    The collector looks less often: a worker makes thousands of small objects a second, hardly one of them in a cycle
    (measured: 23 against 18 µs of CPU per no-op job).
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())
