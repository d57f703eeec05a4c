"""Segments of ready and lease: the numbers that claims look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from duly.queue.database import Executor

Line = Literal["ready", "lease"]


@dataclass(frozen=True, slots=True)
class LiveSegments:
    """Where rows of a line may stand: the closed segments, and everything from `upwards_from` on.

    An old list is a little longer than it need be, never wrong: numbers only go up, and retired ones never get a row
    again.
    """

    closed: tuple[int, ...]
    upwards_from: int


async def live_segments(db: Executor, line: Line) -> LiveSegments:
    """Read the live segments of a line."""
    row = await db.fetchrow("select closed, upwards_from from duly.live_segments($1)", line)
    assert row is not None  # a function with out parameters returns one row
    return LiveSegments(tuple(row["closed"]), row["upwards_from"])


async def advance(db: Executor) -> int:
    """Open the next segment; returns its number."""
    number: int = await db.fetchval("select duly.advance()")
    return number


async def segment_holders(db: Executor, line: Line) -> frozenset[str]:
    """Transactions that could still bring rows into segments closed before this call."""
    return frozenset(await db.fetchval("select duly.segment_holders($1)", line))


async def segment_rows(db: Executor, line: Line, segment: int, at_most: int) -> int:
    """How many rows a segment has, counted no further than `at_most`."""
    rows: int = await db.fetchval("select duly.segment_rows($1, $2, $3)", line, segment, at_most)
    return rows


async def move(db: Executor, line: Line, segment: int, limit: int) -> int:
    """Carry up to `limit` rows of a closed segment over to the current one; returns how many."""
    moved: int = await db.fetchval("select duly.move_segment($1, $2, $3)", line, segment, limit)
    return moved


async def retire(db: Executor, line: Line, segment: int, holders: Sequence[str]) -> bool:
    """Retire a closed segment if it is empty and none of `holders` (noted after it closed) is still there."""
    retired: bool = await db.fetchval("select duly.retire_segment($1, $2, $3)", line, segment, list(holders))
    return retired


async def raise_floor(db: Executor, line: Line) -> None:
    """Raise the line's floor over the retired numbers just above it."""
    await db.execute("select duly.raise_floor($1)", line)
