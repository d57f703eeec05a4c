"""Signing secrets: what a project's deliveries are signed with (Standard Webhooks, HMAC-SHA256).

During a rotation two are alive and a delivery carries both signatures: a receiver changes over in its own time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from duly.model import uuid7
from duly.model.errors import NotFoundError
from duly.queue import Database, Executor

SECRET_BYTES = 32
OVERLAP = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """One secret of a project; `expires_at` None: until the next rotation."""

    id: UUID
    secret: bytes
    created_at: datetime
    expires_at: datetime | None

    def __repr__(self) -> str:
        return f"SigningSecret(id={self.id}, expires_at={self.expires_at})"


async def create_secret(db: Executor, project_id: int) -> SigningSecret:
    """Add a secret of 32 random bytes beside those that the project has."""
    row = await db.fetchrow(
        """insert into duly.signing_secret (id, project_id, secret) values ($1, $2, $3)
           returning id, secret, created_at, expires_at""",
        uuid7(),
        project_id,
        secrets.token_bytes(SECRET_BYTES),
    )
    assert row is not None
    return SigningSecret(row["id"], row["secret"], row["created_at"], row["expires_at"])


async def list_secrets(db: Executor, project_id: int) -> list[SigningSecret]:
    """The secrets that sign today, the newest first."""
    rows = await db.fetch(
        """select id, secret, created_at, expires_at
             from duly.signing_secret
            where project_id = $1 and (expires_at is null or expires_at > now())
            order by created_at desc, id desc""",
        project_id,
    )
    return [SigningSecret(row["id"], row["secret"], row["created_at"], row["expires_at"]) for row in rows]


async def rotate_secret(db: Database, project_id: int, *, overlap: timedelta = OVERLAP) -> SigningSecret:
    """Make a new secret; the old ones go on signing beside it for `overlap` (zero: they stop at once)."""
    async with db.transaction() as tx:
        # Two rotations at once would each miss the other's new secret: the project's row puts them in line.
        if await tx.fetchval("select id from duly.project where id = $1 for no key update", project_id) is None:
            raise NotFoundError("project", project_id)
        await tx.execute(
            """update duly.signing_secret
                  set expires_at = least(expires_at, now() + $2::interval)
                where project_id = $1 and (expires_at is null or expires_at > now())""",
            project_id,
            overlap,
        )
        return await create_secret(tx, project_id)


class SigningSecrets:
    """Reads a project's live secrets, remembered for ten seconds. For the worker: one read serves many deliveries.

    A new secret may thus sign ten seconds late and an expired one ten seconds longer, which the overlap covers.
    """

    TTL_S = 10.0
    MOST_PROJECTS = 10_000

    def __init__(self, db: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._known: OrderedDict[int, tuple[float, tuple[bytes, ...]]] = OrderedDict()
        self._reading: dict[int, asyncio.Lock] = {}

    async def for_project(self, project_id: int) -> tuple[bytes, ...]:
        """The secrets to sign with, the newest first; empty if the project has none."""
        if (known := self._fresh(project_id)) is not None:
            return known
        lock = self._reading.setdefault(project_id, asyncio.Lock())
        try:
            async with lock:
                if (known := self._fresh(project_id)) is not None:
                    return known
                asked_at = self._clock()
                found = tuple(secret.secret for secret in await list_secrets(self._db, project_id))
                self._remember(project_id, asked_at, found)
                return found
        finally:
            if not lock.locked():
                self._reading.pop(project_id, None)

    def _fresh(self, project_id: int) -> tuple[bytes, ...] | None:
        known = self._known.get(project_id)
        return known[1] if known is not None and self._clock() - known[0] < self.TTL_S else None

    def _remember(self, project_id: int, asked_at: float, found: tuple[bytes, ...]) -> None:
        self._known[project_id] = (asked_at, found)
        self._known.move_to_end(project_id)
        if len(self._known) > self.MOST_PROJECTS:
            self._known.popitem(last=False)
