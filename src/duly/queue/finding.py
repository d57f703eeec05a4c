"""A project's jobs by filter, newest first, in bounded pages: walked along an index where one serves the filter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.model.states import State
from duly.queue.database import Executor
from duly.queue.enqueue import Owner
from duly.queue.inspect import JobView, job_view

LOOK = 5_000
"""At how many jobs one call looks at most, whatever it finds."""

_FIND = "select ids, place, looked from duly.find_jobs($1, $2, $3, $4, $5, $6)"
_LOOK = "select * from duly.look($1, $2, $3)"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: all of what is given must hold; None and the empty tuple ask for nothing.

    Ranges of time include `from` and exclude `to`. `run_at` is when the job was to run first. `status_from`,
    `status_to`: the status code of the last attempt, both ends included. `error`: contained in the last attempt's
    error, in any case.
    """

    states: tuple[State, ...] = ()
    queue: str | None = None
    tag: str | None = None
    host: str | None = None
    url_prefix: str | None = None
    method: str | None = None
    unique_key: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    run_at_from: datetime | None = None
    run_at_to: datetime | None = None
    finished_from: datetime | None = None
    finished_to: datetime | None = None
    status_from: int | None = None
    status_to: int | None = None
    error: str | None = None
    min_attempts: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == JobFilter()

    def to_json(self) -> dict[str, Any]:
        """What is asked for, by name; the form that an operation stores."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else list(value) if name == "states" else value
            for name, value in given.items()
            if value not in (None, ())
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs found. `place`: where to go on, None at the end; a page that is not full may have one, when the call has
    looked at as many jobs as it may. `looked`: at how many it did.
    """

    ids: Sequence[UUID]
    place: UUID | None
    looked: int


async def find_ids(
    db: Executor, owner: Owner, wanted: JobFilter, *, before: UUID | None = None, limit: int = 50, look: int = LOOK
) -> Page:
    """Ids of the owner's jobs that match, the newest first; `before`: the place of the page before."""
    row = await db.fetchrow(
        _FIND, owner.account_id, owner.project_id, json.dumps(wanted.to_json()), before, limit, max(look, limit)
    )
    assert row is not None  # a function with out parameters returns one row
    return Page(row["ids"], row["place"], row["looked"])


async def look_at(db: Executor, owner: Owner, ids: Sequence[UUID]) -> list[JobView]:
    """These jobs of the owner as they stand now, in the order given, without bodies; those that are gone are left
    out.
    """
    return [job_view(row) for row in await db.fetch(_LOOK, owner.account_id, owner.project_id, list(ids))]
