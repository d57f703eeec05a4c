"""Signing secrets: what a project's deliveries are signed with (Standard Webhooks, HMAC-SHA256). Sealed at rest.

During a rotation two are alive and a delivery carries both signatures: a receiver changes over in its own time.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from duly.model import uuid7
from duly.model.errors import NotFoundError
from duly.queue import Database, Executor
from duly.service.faults import InUseError
from duly.service.keyring import NO_KEYRING, Keyring, place_of, sealed_with

SECRET_BYTES = 32
OVERLAP = timedelta(hours=24)
MOST_SECRETS = 10  # a delivery carries a signature of each


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """One secret of a project; `expires_at` None: until the next rotation."""

    id: UUID
    secret: bytes
    created_at: datetime
    expires_at: datetime | None

    @property
    def text(self) -> str:
        """As Standard Webhooks has it, for the receiver."""
        return "whsec_" + base64.b64encode(self.secret).decode("ascii")

    def __repr__(self) -> str:
        return f"SigningSecret(id={self.id}, expires_at={self.expires_at})"


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """What is known of a secret: everything but the secret."""

    id: UUID
    project_id: UUID
    created_at: datetime
    expires_at: datetime | None


async def create_secret(db: Executor, project_id: int, *, keyring: Keyring = NO_KEYRING) -> SigningSecret:
    """Add a secret of 32 random bytes beside those that the project has."""
    secret_id, secret = uuid7(), secrets.token_bytes(SECRET_BYTES)
    row = await db.fetchrow(
        """insert into duly.signing_secret (id, project_id, secret) values ($1, $2, $3)
           returning id, created_at, expires_at""",
        secret_id,
        project_id,
        _sealed(keyring, secret_id, project_id, secret),
    )
    assert row is not None
    return SigningSecret(row["id"], secret, row["created_at"], row["expires_at"])


async def list_secrets(db: Executor, project_id: int, *, keyring: Keyring = NO_KEYRING) -> list[SigningSecret]:
    """The secrets that sign today, the newest first. Raises KeyMissingError or TamperedError if one cannot be opened:
    to sign with some of them only would look like a rotation that nobody made.
    """
    rows = await db.fetch(
        """select id, secret, created_at, expires_at
             from duly.signing_secret
            where project_id = $1 and (expires_at is null or expires_at > now())
            order by created_at desc, id desc""",
        project_id,
    )
    return [
        SigningSecret(
            row["id"], _opened(keyring, row["id"], project_id, row["secret"]), row["created_at"], row["expires_at"]
        )
        for row in rows
    ]


async def rotate_secret(
    db: Database, project_id: int, *, overlap: timedelta = OVERLAP, keyring: Keyring = NO_KEYRING
) -> SigningSecret:
    """Make a new secret; the old ones go on signing beside it for `overlap` (zero: they stop at once).

    Raises NotFoundError, or InUseError if with an overlap there would be more than a project may have.
    """
    async with db.transaction() as tx:
        # Two rotations at once would each miss the other's new secret: the project's row puts them in line.
        if await tx.fetchval("select id from duly.project where id = $1 for no key update", project_id) is None:
            raise NotFoundError("project", project_id)
        if overlap:
            await _refuse_more(tx, project_id)
        await tx.execute(
            """update duly.signing_secret
                  set expires_at = least(expires_at, now() + $2::interval)
                where project_id = $1 and (expires_at is null or expires_at > now())""",
            project_id,
            overlap,
        )
        return await create_secret(tx, project_id, keyring=keyring)


async def find_secrets(
    db: Executor, *, within: int | None = None, project_id: UUID | None = None, after: UUID | None = None, limit: int
) -> list[SecretInfo]:
    """The living secrets of all projects or of one, oldest first, those behind `after`; nothing is opened."""
    rows = await db.fetch(
        """select s.id, p.public_id as project_id, s.created_at, s.expires_at
             from duly.signing_secret s
             join duly.project p on p.id = s.project_id
             join duly.account a on a.id = p.account_id
            where ($1::integer is null or a.id = $1) and ($2::uuid is null or p.public_id = $2)
              and ($3::uuid is null or s.id > $3) and p.deleted_at is null and a.deleted_at is null
              and (s.expires_at is null or s.expires_at > now())
            order by s.id limit $4""",
        within,
        project_id,
        after,
        limit,
    )
    return [SecretInfo(**dict(row)) for row in rows]


async def add_secret(db: Database, project_id: int, *, keyring: Keyring) -> SigningSecret:
    """`create_secret`, unless the project has the most that it may have: InUseError."""
    async with db.transaction() as tx:
        await _refuse_more(tx, project_id)
        return await create_secret(tx, project_id, keyring=keyring)


async def end_secret(db: Database, secret_id: UUID, *, within: int | None = None) -> None:
    """A secret signs no more, within the ten seconds that workers remember it.

    Raises NotFoundError if it is none, or does not live; InUseError for the last one without an end: the project's
    deliveries would go unsigned. Rotate that with no overlap.
    """
    async with db.transaction() as tx:
        project = await tx.fetchval(
            """select p.id from duly.signing_secret s
                 join duly.project p on p.id = s.project_id
                 join duly.account a on a.id = p.account_id
                where s.id = $2 and ($1::integer is null or a.id = $1)
                  and p.deleted_at is null and a.deleted_at is null for no key update of p""",
            within,
            secret_id,
        )
        ended = project and await tx.fetchval(
            """update duly.signing_secret set expires_at = now()
                where id = $1 and (expires_at is null or expires_at > now()) returning id""",
            secret_id,
        )
        if ended is None:
            raise NotFoundError("signing secret", secret_id)
        if not await tx.fetchval(
            "select exists (select from duly.signing_secret where project_id = $1 and expires_at is null)", project
        ):
            raise InUseError(
                "it is the project's last signing secret without an end: rotate, with no overlap, to be rid of it"
            )


async def reseal_secrets(db: Database, keyring: Keyring) -> int:
    """Seal every living signing secret with the ring's first key, those in the clear too; how many were changed.

    Raises KeyMissingError if one needs a key that is not there; nothing is changed then.
    """
    changed = 0
    async with db.transaction() as tx:
        rows = await tx.fetch(
            """select id, project_id, secret from duly.signing_secret
                where expires_at is null or expires_at > now() order by id for no key update"""
        )
        for row in rows:
            if sealed_with(row["secret"]) == keyring.first:
                continue
            secret = _opened(keyring, row["id"], row["project_id"], row["secret"])
            await tx.execute(
                "update duly.signing_secret set secret = $2 where id = $1",
                row["id"],
                _sealed(keyring, row["id"], row["project_id"], secret),
            )
            changed += 1
    return changed


async def secrets_by_key(db: Executor) -> Counter[str | None]:
    """How many living signing secrets are sealed with each key; None: those in the clear."""
    rows = await db.fetch("select secret from duly.signing_secret where expires_at is null or expires_at > now()")
    return Counter(sealed_with(row["secret"]) for row in rows)


class SigningSecrets:
    """Reads a project's live secrets, remembered for ten seconds. For the worker: one read serves many deliveries.

    A new secret may thus sign ten seconds late and an expired one ten seconds longer, which the overlap covers.
    """

    TTL_S = 10.0
    MOST_PROJECTS = 10_000

    def __init__(
        self, db: Executor, *, keyring: Keyring = NO_KEYRING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._db = db
        self._keyring = keyring
        self._clock = clock
        self._known: OrderedDict[int, tuple[float, tuple[bytes, ...]]] = OrderedDict()
        self._reading: dict[int, asyncio.Lock] = {}

    async def for_project(self, project_id: int) -> tuple[bytes, ...]:
        """The secrets to sign with, the newest first; empty if the project has none. Raises as `list_secrets` does."""
        if (known := self._fresh(project_id)) is not None:
            return known
        lock = self._reading.setdefault(project_id, asyncio.Lock())
        try:
            async with lock:
                if (known := self._fresh(project_id)) is not None:
                    return known
                asked_at = self._clock()
                listed = await list_secrets(self._db, project_id, keyring=self._keyring)
                found = tuple(secret.secret for secret in listed)
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


async def _refuse_more(tx: Executor, project_id: int) -> None:
    await tx.fetchval("select id from duly.project where id = $1 for no key update", project_id)
    if await _living(tx, project_id) >= MOST_SECRETS:
        raise InUseError(f"the project has {MOST_SECRETS} signing secrets, the most there may be: revoke one first")


async def _living(tx: Executor, project_id: int) -> int:
    living: int = await tx.fetchval(
        """select count(*) from duly.signing_secret
            where project_id = $1 and (expires_at is null or expires_at > now())""",
        project_id,
    )
    return living


def _sealed(keyring: Keyring, secret_id: UUID, project_id: int, secret: bytes) -> bytes:
    return keyring.seal(secret, _place(secret_id, project_id)) if keyring.seals else secret


def _opened(keyring: Keyring, secret_id: UUID, project_id: int, stored: bytes) -> bytes:
    """Secrets are shorter than any envelope, so one in the clear (made before there were keys) is told from a sealed
    one.
    """
    return stored if sealed_with(stored) is None else keyring.open(stored, _place(secret_id, project_id))


def _place(secret_id: UUID, project_id: int) -> bytes:
    return place_of("signing secret", secret_id, project_id)
