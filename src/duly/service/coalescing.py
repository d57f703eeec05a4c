"""Many callers, few statements: what waits while one statement is in flight goes together in the next.

Nothing waits on a timer: an idle coalescer sends once those who are ready to run have run, so that what arrived at the
same moment goes together; a busy one gathers only as long as the database takes anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duly.model.errors import DatabaseUnavailableError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Bounds:
    """At most `in_flight` statements at a time, `items` and `weight` in each, `waiting` weight queued up."""

    in_flight: int = 2
    items: int = 500
    weight: int = 8 * 1024 * 1024
    waiting: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    weight: int
    key: Hashable
    answer: asyncio.Future[Result | BaseException]


class Coalescer(Generic[Item, Result]):
    """`submit` hands an item to `run`, alone or with others that came in meanwhile, and returns that item's own result.

    `run` answers every item of its batch in order, with a result or an exception; what it raises goes to all of them.
    Two items of one `key` never share a batch. A caller that is cancelled while its item still waits takes it out; once
    sent, the item is finished without the caller.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        weigh: Callable[[Item], int],
        key: Callable[[Item], Hashable],
        bounds: Bounds | None = None,
    ) -> None:
        self._run = run
        self._weigh = weigh
        self._key = key
        self._bounds = bounds or Bounds()
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._waiting_weight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._about_to_send = False

    async def submit(self, item: Item) -> Result:
        """Send the item and await its own result. Raises DatabaseUnavailableError at once when too much is waiting."""
        weight = self._weigh(item)
        if self._waiting and self._waiting_weight + weight > self._bounds.waiting:
            raise DatabaseUnavailableError("too many requests are waiting for the database: try again in a moment")
        loop = asyncio.get_running_loop()
        entry: _Waiting[Item, Result] = _Waiting(item, weight, self._key(item), loop.create_future())
        self._waiting.append(entry)
        self._waiting_weight += weight
        if not self._about_to_send and len(self._tasks) < self._bounds.in_flight:
            self._about_to_send = True
            loop.call_soon(self._send)
        answer = await entry.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def waiting(self) -> int:
        """How many items wait for a statement to be free."""
        return len(self._waiting)

    async def close(self) -> None:
        """Wait until everything that was submitted has its answer."""
        self._send()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _send(self) -> None:
        self._about_to_send = False
        while len(self._tasks) < self._bounds.in_flight and (batch := self._take()):
            task = asyncio.create_task(self._answer(batch))
            self._tasks.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._send()

    def _take(self) -> list[_Waiting[Item, Result]]:
        """The next batch, in order of arrival; items whose key it already has stay for the one after."""
        batch: list[_Waiting[Item, Result]] = []
        kept: list[_Waiting[Item, Result]] = []
        keys: set[Hashable] = set()
        weight = 0
        while self._waiting and len(batch) < self._bounds.items:
            entry = self._waiting[0]
            if batch and weight + entry.weight > self._bounds.weight:
                break
            self._waiting.popleft()
            if entry.answer.done():  # its caller was cancelled
                self._waiting_weight -= entry.weight
            elif entry.key in keys:
                kept.append(entry)
            else:
                batch.append(entry)
                keys.add(entry.key)
                weight += entry.weight
        self._waiting.extendleft(reversed(kept))
        self._waiting_weight -= weight
        return batch

    async def _answer(self, batch: Sequence[_Waiting[Item, Result]]) -> None:
        answers: Sequence[Result | BaseException]
        try:
            answers = await self._run([entry.item for entry in batch])
        except asyncio.CancelledError:
            for entry in batch:
                entry.answer.cancel()
            raise
        except Exception as error:
            answers = [error] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(answer)
