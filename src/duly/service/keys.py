"""API keys: 256 random bits, shown once. Only their SHA-256 is kept: a fast hash will do for what nobody can guess."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Executor, Owner
from duly.service.accounts import checked_name
from duly.service.coalescing import Coalescer

Scope = Literal["read", "write", "read_payloads", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"read", "write"})

_PREFIX = "duly_"
_SECRET_BYTES = 32
_HINT_LENGTH = len(_PREFIX) + 6

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
select k.secret_hash, k.id, k.scopes, p.account_id, k.project_id
  from duly.api_key k
  join duly.project p on p.id = k.project_id
 where k.secret_hash = any ($1::bytea[]) and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
"""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for, and what it may do."""

    owner: Owner
    key_id: UUID
    scopes: frozenset[str]


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
            """insert into duly.api_key (id, project_id, name, hint, secret_hash, scopes, expires_at)
               values ($1, $2, $3, $4, $5, $6, $7)
               returning id, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at""",
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


async def list_keys(db: Executor, project_id: int) -> list[KeyInfo]:
    """A project's keys, revoked and expired ones too, the newest first."""
    rows = await db.fetch(
        """select id, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at
             from duly.api_key where project_id = $1
            order by created_at desc, id desc""",
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
        row["secret_hash"]: Principal(Owner(row["account_id"], row["project_id"]), row["id"], frozenset(row["scopes"]))
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
    )
