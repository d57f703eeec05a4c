"""Which job a line of a file is, so that a file that is imported again makes nothing again.

A job's id says when it was made, and ids of more than a day ago are refused; so a line that was exported before cannot
keep its job's id. It gets one derived from itself: the random bits are a hash of the project and of the line's name
(the id that it carries, or its text), the time is the half day in which it is imported. Those made in an earlier half
day are found by looking at each half day in which anything was imported, as far back as jobs are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from duly.model.ids import uuid7_time, uuid7_with
from duly.queue import Database, Owner, Session, server_now
from duly.queue.transfer import known_jobs, moments_with_jobs, oldest_job_at

HALF_DAY: Final = timedelta(hours=12)
_YOUNG: Final = timedelta(hours=23)
_AHEAD: Final = timedelta(minutes=9)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Named:
    """A line of a project's. `own`: the id that it carries; `name`: what tells it from others."""

    owner: Owner
    own: UUID | None
    name: bytes

    def derived(self, half_day_ms: int) -> UUID:
        """Its id if it is imported in this half day."""
        text = b"\0".join((b"duly.import", str(self.owner.project_id).encode(), self.name))
        return uuid7_with(half_day_ms, hashlib.sha256(text).digest())


@dataclass(frozen=True, slots=True)
class SameJobs:
    """The half days in which something may have been imported."""

    half_days: tuple[int, ...] = ()

    @classmethod
    async def looked_up(cls, db: Database) -> SameJobs:
        """As they are now."""
        oldest = await oldest_job_at(db)
        if oldest is None:
            return cls()
        last, step = half_day_ms(await server_now(db)), HALF_DAY // _MILLISECOND
        return cls(tuple(await moments_with_jobs(db, range(half_day_ms(oldest), last + 1, step))))

    async def ids(self, session: Session, lines: Sequence[Named]) -> list[UUID | None]:
        """The id that each line's job is to have; None for one that is there already, or stands among the lines before.

        Nobody else imports into these projects meanwhile: the caller holds them locked.
        """
        now = await server_now(session)
        here = half_day_ms(now)
        half_days = {*self.half_days, here, here - HALF_DAY // _MILLISECOND}
        wanted = {line.derived(half_day) for line in lines for half_day in half_days}
        known = await known_jobs(session, wanted | {line.own for line in lines if line.own})
        found: list[UUID | None] = []
        given: set[tuple[Owner, bytes]] = set()
        for line in lines:
            is_there = line.own is not None and known.get(line.own) == line.owner
            if is_there or (line.owner, line.name) in given or any(line.derived(day) in known for day in half_days):
                found.append(None)
                continue
            given.add((line.owner, line.name))
            keeps = line.own is not None and line.own not in known and _is_young(line.own, now)
            found.append(line.own if keeps else line.derived(here))
        return found


def half_day_ms(at: datetime) -> int:
    """When the half day began, in milliseconds of Unix time."""
    step = HALF_DAY // _MILLISECOND
    return int(at.timestamp() * 1000) // step * step


def _is_young(job_id: UUID, now: datetime) -> bool:
    """Whether a job may be made with this id still."""
    made_at = uuid7_time(job_id)
    return made_at is not None and now - _YOUNG < made_at < now + _AHEAD
