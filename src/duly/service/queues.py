"""Queues: rates as people write them; what a queue gives its new jobs, remembered so that a create costs no look-up."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from duly.model import JobDefaults, NewJob
from duly.queue import Database, JobView, Owner, Rate, get_queue
from duly.service.durations import parse_duration, show_duration
from duly.service.faults import FieldError

REMEMBERED_FOR = timedelta(seconds=1)
RATE_MOST = 1_000_000
RATE_LONGEST = timedelta(days=1)
_MOST = 10_000
_NOTHING = JobDefaults()
_RATE = re.compile(r"(\d{1,9})/(\S+)", re.ASCII)
_FORM = 'must be {"limit": 100, "per": "1s"}, or the same as a string, "100/1s"'


def parse_rate(value: Any) -> Rate:
    """A rate as an object, or as a string such as "100/1m" or "100/m". Raises FieldError."""
    if isinstance(value, str):
        found = _RATE.fullmatch(value)
        if found is None:
            raise FieldError(_FORM)
        value = {"limit": int(found[1]), "per": found[2] if found[2][0].isdigit() else f"1{found[2]}"}
    if not isinstance(value, dict) or set(value) != {"limit", "per"}:
        raise FieldError(_FORM)
    limit = value["limit"]
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= RATE_MOST:
        raise FieldError(f"must have a whole number from 1 to {RATE_MOST} as its limit")
    try:
        per = parse_duration(value["per"])
    except FieldError as error:
        raise FieldError(f"has a wrong per: it {error}") from None
    if not timedelta(seconds=1) <= per <= RATE_LONGEST:
        raise FieldError(f"must have a per from 1s to {show_duration(RATE_LONGEST)}")
    return Rate(limit, per)


class QueueDefaults:
    """The defaults of queues. What another process changes is known here after a second at most."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[tuple[int, str], tuple[float, asyncio.Future[JobDefaults]]] = {}

    async def applied(self, owner: Owner, job: NewJob) -> NewJob:
        """The job with what it left to its queue filled in; the job itself if the queue gives nothing."""
        if not job.inherits:
            return job
        defaults = await self._of(owner.project_id, job.queue)
        return job if defaults == _NOTHING else defaults.applied(job)

    def forget(self, owner: Owner, queue: str) -> None:
        """Look again next time: this process has just changed it."""
        self._known.pop((owner.project_id, queue), None)

    async def _of(self, project_id: int, queue: str) -> JobDefaults:
        now = time.monotonic()
        asked_at, asked = self._known.get((project_id, queue), (0.0, None))
        if asked is None or now - asked_at > REMEMBERED_FOR.total_seconds() or _failed(asked):
            if len(self._known) >= _MOST:
                self._known.clear()
            asked = asyncio.ensure_future(self._read(project_id, queue))
            self._known[project_id, queue] = now, asked
        return await asyncio.shield(asked)  # others may wait for it, too

    async def _read(self, project_id: int, queue: str) -> JobDefaults:
        return (await get_queue(self._db, project_id, queue)).defaults


def as_stored(job: NewJob, stored: JobView) -> NewJob:
    """The job with what it leaves to its queue taken from a job that is stored: the queue may have changed since."""
    parts = {name: getattr(stored.retry, name) for name in job.inherits - {"timeout"}}
    timeout = stored.timeout if "timeout" in job.inherits else job.timeout
    return replace(job, timeout=timeout, retry=replace(job.retry, **parts), inherits=frozenset())


def _failed(asked: asyncio.Future[JobDefaults]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)
