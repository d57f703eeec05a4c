"""Waiting for one of several events, with a limit."""

from __future__ import annotations

import asyncio


async def first_of(*events: asyncio.Event, limit_s: float | None = None) -> None:
    """Return when one of the events is set, or after `limit_s` seconds (None: no limit)."""
    if any(event.is_set() for event in events):
        return
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
