"""API keys: 256 random bits, shown once. Only their SHA-256 is kept: a fast hash will do for what nobody can guess."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database, Executor, Owner
from duly.service.accounts import ALL, checked_name, get_project
from duly.service.coalescing import Coalescer
from duly.service.faults import InUseError
from duly.service.plans import NO_LIMITS, AccountLimits, read_limits

Scope = Literal["read", "write", "read_payloads", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"read", "write"})

_PREFIX = "duly_"
_SECRET_BYTES = 32
_HINT_LENGTH = len(_PREFIX) + 6
MOST_KEYS = 1_000
OVERLAP = timedelta(hours=24)

# Revoked and expired keys match no row. The use of a key is noted once a minute, and never waits for another's note.
_AUTHENTICATE = """
with used as (
    update duly.api_key set last_used_at = now()
     where id in (select id from duly.api_key
                   where secret_hash = any ($1::bytea[])
                     and revoked_at is null and (expires_at is null or expires_at > now())
                     and (last_used_at is null or last_used_at < now() - interval '1 minute')
                     for no key update skip locked)
)
select k.secret_hash, k.id, k.scopes, p.account_id, k.project_id, a.public_id as account_public_id,
       p.public_id as project_public_id, a.operator, a.disabled_at is not null as disabled,
       coalesce(n.limits, '{}') || a.limits as limits
  from duly.api_key k
  join duly.project p on p.id = k.project_id
  join duly.account a on a.id = p.account_id
  left join duly.plan n on n.name = a.plan
 where k.secret_hash = any ($1::bytea[]) and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
   and p.deleted_at is null and a.deleted_at is null
"""

_SHOWN = """k.id, k.name, k.hint, k.scopes, k.created_at, k.expires_at, k.revoked_at, k.last_used_at,
       (select p.public_id from duly.project p where p.id = k.project_id) as project_id"""
_WITHIN = """k.project_id = p.id and p.deleted_at is null and a.id = p.account_id and a.deleted_at is null
         and ($1::integer is null or a.id = $1)"""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for, and what it may do. `limits` are its account's. A `disabled` account may do nothing."""

    owner: Owner
    key_id: UUID
    scopes: frozenset[str]
    account_id: UUID
    project_id: UUID
    operator: bool = False
    disabled: bool = False
    limits: AccountLimits = NO_LIMITS

    @property
    def reach(self) -> int | None:
        """The account that its admin scope is for; None: all of them."""
        return None if self.operator else self.owner.account_id


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What is known of a key: everything but the key. `hint` is its first characters."""

    id: UUID
    name: str
    hint: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    project_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. `key` is its text, here and never again."""

    info: KeyInfo
    key: str

    def __repr__(self) -> str:
        return f"CreatedKey({self.info!r})"


async def create_key(
    db: Executor,
    project_id: int,
    name: str,
    *,
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
) -> CreatedKey:
    """Make a key for a project. Raises InvalidInputError for an unknown scope or none, NotFoundError for no project."""
    if not scopes or not SCOPES.issuperset(scopes):
        raise InvalidInputError(f"scopes are one or more of {', '.join(sorted(SCOPES))}", "/scopes")
    key = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    try:
        row = await db.fetchrow(
            f"""insert into duly.api_key as k (id, project_id, name, hint, secret_hash, scopes, expires_at)
                values ($1, $2, $3, $4, $5, $6, $7)
                returning {_SHOWN}""",
            uuid7(),
            project_id,
            checked_name(name),
            key[:_HINT_LENGTH],
            _hashed(key),
            sorted(scopes),
            expires_at,
        )
    except asyncpg.ForeignKeyViolationError as error:
        raise NotFoundError("project", project_id) from error
    assert row is not None
    return CreatedKey(_info(row), key)


async def create_key_of(
    db: Database,
    project_id: UUID,
    name: str,
    *,
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
    within: int | None = None,
) -> CreatedKey:
    """The same for a project by its public id. Raises InUseError beyond the most living keys that it may have."""
    async with db.transaction() as tx:
        project = await get_project(tx, project_id, within=within)
        await _refuse_more(tx, project.owner.project_id)
        return await create_key(tx, project.owner.project_id, name, scopes=scopes, expires_at=expires_at)


async def list_keys(db: Executor, project_id: int) -> list[KeyInfo]:
    """A project's keys, revoked and expired ones too, the newest first."""
    rows = await db.fetch(
        f"""select {_SHOWN} from duly.api_key k where k.project_id = $1
            order by k.created_at desc, k.id desc""",
        project_id,
    )
    return [_info(row) for row in rows]


async def revoke_key(db: Executor, project_id: int, key_id: UUID) -> bool:
    """Refuse the key from now on. True if this call or an earlier one did; False if the project has no such key."""
    revoked = await db.fetchval(
        """update duly.api_key set revoked_at = coalesce(revoked_at, now())
            where id = $1 and project_id = $2
        returning id""",
        key_id,
        project_id,
    )
    return revoked is not None


async def find_keys(
    db: Executor,
    *,
    within: int | None = None,
    project_id: UUID | None = None,
    scope: str | None = None,
    after: UUID | None = None,
    limit: int = ALL,
) -> list[KeyInfo]:
    """Keys of all projects or of one, oldest first, those behind `after`; only those with a scope, if it is given."""
    rows = await db.fetch(
        f"""select {_SHOWN} from duly.api_key k, duly.project p, duly.account a
             where {_WITHIN} and ($2::uuid is null or p.public_id = $2) and ($3::text is null or $3 = any (k.scopes))
               and ($4::uuid is null or k.id > $4)
             order by k.id limit $5""",
        within,
        project_id,
        scope,
        after,
        limit,
    )
    return [_info(row) for row in rows]


async def get_key(db: Executor, key_id: UUID, *, within: int | None = None) -> KeyInfo:
    """Raises NotFoundError."""
    row = await db.fetchrow(
        f"select {_SHOWN} from duly.api_key k, duly.project p, duly.account a where {_WITHIN} and k.id = $2",
        within,
        key_id,
    )
    if row is None:
        raise NotFoundError("key", key_id)
    return _info(row)


async def end_key(db: Executor, key_id: UUID, *, within: int | None = None) -> KeyInfo:
    """Refuse a key from now on; one that was revoked already stays as it is. Raises NotFoundError."""
    row = await db.fetchrow(
        f"""update duly.api_key k set revoked_at = coalesce(k.revoked_at, now())
              from duly.project p, duly.account a
             where {_WITHIN} and k.id = $2
         returning {_SHOWN}""",
        within,
        key_id,
    )
    if row is None:
        raise NotFoundError("key", key_id)
    return _info(row)


async def rotate_key(
    db: Database, key_id: UUID, *, overlap: timedelta = OVERLAP, within: int | None = None
) -> CreatedKey:
    """A new key in the place of an old one, which is refused after `overlap` (zero: at once). It has the old one's
    name, project and scopes, and lives as long as that was to live.

    Raises NotFoundError, or InUseError if the key has ended.
    """
    async with db.transaction() as tx:
        old = await get_key(tx, key_id, within=within)
        row = await tx.fetchrow(
            """update duly.api_key k set expires_at = least(k.expires_at, now() + $2::interval)
                where k.id = $1 and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
            returning k.project_id, now() as now""",
            key_id,
            overlap,
        )
        if row is None:
            raise InUseError("the key is revoked or has expired: make a new one")
        await _refuse_more(tx, row["project_id"])
        lives = None if old.expires_at is None else old.expires_at - old.created_at
        scopes = [scope for scope in SCOPES if scope in old.scopes]
        ends = None if lives is None else row["now"] + lives
        return await create_key(tx, row["project_id"], old.name, scopes=scopes, expires_at=ends)


async def authenticate(db: Executor, presented: str) -> Principal | None:
    """Whose key this is; None for anything that is no living key, at the same cost."""
    [principal] = await _authenticate(db, [_hashed(presented)])
    return principal


class Gatekeeper:
    """`authenticate` for a busy process: requests that come in while a look-up runs share the next one.

    Nothing is remembered between look-ups, so a revoked key is refused by the first request after the revocation.
    """

    def __init__(self, db: Executor) -> None:
        self._db = db
        self._coalescer: Coalescer[_Knock, Principal | None] = Coalescer(self._look_up, weigh=_no_weight, key=id)

    async def authenticate(self, presented: str) -> Principal | None:
        """Whose key this is; None for anything that is no living key."""
        return await self._coalescer.submit(_Knock(_hashed(presented)))

    async def close(self) -> None:
        """Wait until everybody has an answer."""
        await self._coalescer.close()

    async def _look_up(self, knocks: Sequence[_Knock]) -> Sequence[Principal | None]:
        return await _authenticate(self._db, [knock.secret_hash for knock in knocks])


@dataclass(frozen=True, slots=True, eq=False)
class _Knock:
    secret_hash: bytes


def _no_weight(_: _Knock) -> int:
    return 0


async def _authenticate(db: Executor, hashes: Sequence[bytes]) -> list[Principal | None]:
    rows = await db.fetch(_AUTHENTICATE, sorted(set(hashes)))
    known = {
        row["secret_hash"]: Principal(
            Owner(row["account_id"], row["project_id"]),
            row["id"],
            frozenset(row["scopes"]),
            row["account_public_id"],
            row["project_public_id"],
            row["operator"],
            row["disabled"],
            read_limits(row["limits"]),
        )
        for row in rows
    }
    return [_match(known, presented) for presented in hashes]


def _match(known: dict[bytes, Principal], presented: bytes) -> Principal | None:
    found: Principal | None = None
    for stored, principal in known.items():
        if hmac.compare_digest(stored, presented):
            found = principal
    return found


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _info(row: asyncpg.Record) -> KeyInfo:
    return KeyInfo(
        row["id"],
        row["name"],
        row["hint"],
        frozenset(row["scopes"]),
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
        row["last_used_at"],
        row["project_id"],
    )


async def _refuse_more(tx: Executor, project_id: int) -> None:
    """Raise InUseError if the project has the most living keys. Locks it: two callers do not both see room."""
    await tx.fetchval("select id from duly.project where id = $1 for no key update", project_id)
    living = await tx.fetchval(
        """select count(*) from duly.api_key
            where project_id = $1 and revoked_at is null and (expires_at is null or expires_at > now())""",
        project_id,
    )
    if living >= MOST_KEYS:
        raise InUseError(f"the project has {MOST_KEYS} living keys, the most there may be: revoke one first")
