"""A transaction that is run again, whole, when a rival's deadlock or conflict rolled it back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duly.queue import Database, Session
from duly.queue.failures import ROLLED_BACK, busy

_AGAIN_AFTER_S = (0.01, 0.03, 0.1)

Answer = TypeVar("Answer")


async def transacted(db: Database, work: Callable[[Session], Awaitable[Answer]]) -> Answer:
    """What `work` answers, committed. It may be run several times; an exception of its own rolls back and passes.

    Raises DatabaseBusyError when rivals win each time.
    """
    for again_after_s in _AGAIN_AFTER_S:
        try:
            async with db.transaction() as session:
                return await work(session)
        except ROLLED_BACK:
            await asyncio.sleep(again_after_s * random.uniform(0.5, 1.5))
    try:
        async with db.transaction() as session:
            return await work(session)
    except ROLLED_BACK as error:
        raise busy(error) from error
