"""Calls from other threads into a loop, many for one wake-up of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Mailbox:
    """Runs on its loop, in order, what any thread posts. A wake-up of the loop costs a system call; posts that come
    before it is served share it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[Callable[[], object]] = deque()
        self._is_called = False

    def post(self, call: Callable[[], object]) -> None:
        """From any thread; nothing happens if the loop is closed."""
        self._posted.append(call)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # first: whoever posts from here on calls again
        while self._posted:
            self._posted.popleft()()
