"""Async tasks share a loop in a thread of its own, so that code which blocks it blocks nothing of the worker's.

A loop that stays blocked is reported with the stack that blocks it. It is replaced when it makes others late: the
attempt that blocks stays with the old loop until it ends, the others are given back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from duly.model.outcomes import Outcome
from duly.tasks.mailbox import Mailbox

log = logging.getLogger("duly.task")

BLOCKED_AFTER_S = 1.0

Work = Callable[[], Coroutine[Any, Any, Outcome]]


class Attempt:
    """One attempt's code on the loop. `name`: for the log."""

    def __init__(self, name: str, work: Work, done: Callable[[Outcome], None]) -> None:
        self.name = name
        self._work = work
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
        """On the loop."""
        if self._is_cancelled:
            return None
        self._task = loop.create_task(self._run(), name=self.name)
        return self._task

    def cancel(self) -> None:
        """On the loop."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        own = os.getpid()
        outcome = await self._work()
        if os.getpid() != own:  # job code has forked, and this is its copy of us: it answers for nobody
            os._exit(0)
        self._done(outcome)


class JobLoop:
    """A thread with a loop that runs attempts."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._mailbox = Mailbox(self._loop)
        self._attempts: dict[asyncio.Task[None], Attempt] = {}
        self._ticked = time.monotonic()
        self._is_told = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def start(self, attempt: Attempt) -> None:
        """From any thread: run it as soon as the loop gets to it."""
        self._mailbox.post(lambda: self._begin(attempt))

    def cancel(self, attempt: Attempt) -> None:
        """From any thread."""
        self._mailbox.post(attempt.cancel)

    def tick(self) -> None:
        """From any thread, again and again: ask for a sign of life."""
        self._mailbox.post(self._tick)

    @property
    def blocked_for_s(self) -> float:
        """How long the last sign of life is ago."""
        return time.monotonic() - self._ticked

    def tell_if_blocked(self) -> None:
        """Say once what blocks the loop, if something does."""
        if self.blocked_for_s > BLOCKED_AFTER_S and not self._is_told:
            self._is_told = True
            blocking = self.blocking()
            log.warning(
                "job code blocks its event loop, make it a sync task or await:\n%s",
                self.stack(),
                extra={"running": None if blocking is None else blocking.name},
            )

    def blocking(self) -> Attempt | None:
        """Whose code runs right now; None between two, or for a task that job code made."""
        return self._attempts.get(asyncio.current_task(self._loop))  # type: ignore[arg-type]

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(unknown)"

    def close(self) -> None:
        """From any thread: cancel what runs, and end once nothing does any more. The thread is not waited for: code
        that blocks would hold us up.
        """
        self._mailbox.post(self._close)

    def leave(self) -> None:
        """From any thread: take no more. The attempt that blocks the loop goes on, all others are cancelled."""
        blocking = self.blocking()

        def cancel_others() -> None:
            for attempt in list(self._attempts.values()):
                if attempt is not blocking:
                    attempt.cancel()
            self._is_closing = True
            self._end_if_idle()

        self._mailbox.post(cancel_others)

    def join(self, limit_s: float) -> bool:
        """Whether the thread has ended within that time."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _begin(self, attempt: Attempt) -> None:
        task = attempt.begin(self._loop)
        if task is not None:
            self._attempts[task] = attempt
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._attempts.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at, or the collector would complain
        self._end_if_idle()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._is_told = False

    def _close(self) -> None:
        self._is_closing = True
        for attempt in list(self._attempts.values()):
            attempt.cancel()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_closing and not self._attempts:
            self._loop.stop()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException as error:  # SystemExit in a task that job code made: it must not end the others
                log.error("job code raised %r through its event loop", type(error).__name__)
                continue
            if self._is_closing and not self._attempts:
                break  # else job code has stopped the loop
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        try:
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:
            log.error("job code raised %r while its event loop ended", type(error).__name__)
        self._loop.close()


def in_fresh_context(call: Callable[[], Outcome]) -> Outcome:
    """Run it so that what it sets in context variables is seen by no other job."""
    return contextvars.Context().run(call)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
