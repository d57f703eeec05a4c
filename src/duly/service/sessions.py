"""Who looks at the dashboard: sessions, begun with an API key or with an operator's token, known by a cookie.

Only a hash of the cookie is stored, in the database, so that every API process knows it. A session that began with a
key has that key's project and scopes, as they are at each request: it ends in the moment in which the key is revoked or
expires. An operator sees every project. Nobody becomes one by a key: the token comes from whoever can reach the
database.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from duly.model.errors import InvalidInputError
from duly.queue import Executor, Owner
from duly.service.keys import SCOPES, Principal, Scope

IDLE: Final = timedelta(hours=12)
LONGEST: Final = timedelta(days=7)
TOKEN_LASTS: Final = timedelta(hours=24)
TOKEN_PREFIX: Final = "duly_operator_"  # noqa: S105  what a token begins with
OPERATOR_SCOPES: frozenset[Scope] = frozenset({"read", "write", "admin"})

_SECRET_BYTES = 32
_OLD_AT_ONCE = 100

_BEGIN = """
    insert into duly.dashboard_session (secret_hash, key_id, scopes, is_token, ends_at)
    values ($1, $2, $3, $4, now() + $5)
"""
_USE_UP = """
    delete from duly.dashboard_session s where s.secret_hash = $1 and s.is_token and s.ends_at > now()
    returning s.scopes
"""
# The look at the key is part of it: no session outlives its key. Its use is noted once a minute.
_LOOK = """
with seen as (
    update duly.dashboard_session set seen_at = now()
     where $3 and secret_hash = (select s.secret_hash from duly.dashboard_session s
                          where s.secret_hash = $1 and not s.is_token and s.seen_at < now() - interval '1 minute'
                            and s.seen_at > now() - $2::interval and s.ends_at > now()
                            for no key update skip locked)
)
select s.key_id, coalesce(k.scopes, s.scopes) as scopes, k.name, p.account_id, k.project_id,
       p.public_id as project_public_id, coalesce(a.disabled_at is not null, false) as disabled
  from duly.dashboard_session s
  left join duly.api_key k on k.id = s.key_id
  left join duly.project p on p.id = k.project_id
  left join duly.account a on a.id = p.account_id
 where s.secret_hash = $1 and not s.is_token and s.seen_at > now() - $2::interval and s.ends_at > now()
   and (s.key_id is null or (k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
                             and p.deleted_at is null and a.deleted_at is null))
"""
_END = "delete from duly.dashboard_session s where s.secret_hash = $1"
_FORGET = """
    delete from duly.dashboard_session s where s.secret_hash in (
        select o.secret_hash from duly.dashboard_session o
        where o.ends_at <= now() or (not o.is_token and o.seen_at <= now() - $1::interval) limit $2)
"""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, at what, and may do what. `owner`, `project_id` None: every project. `secret`: the cookie's value.
    `disabled`: the account is, and may do nothing.
    """

    owner: Owner | None
    scopes: frozenset[str]
    key_id: UUID | None
    name: str
    secret: str = field(repr=False)
    project_id: UUID | None = None
    disabled: bool = False

    @property
    def is_operator(self) -> bool:
        return self.owner is None

    @property
    def reach(self) -> int | None:
        """The account that the scope admin is for, by its number; None: all of them."""
        return None if self.owner is None else self.owner.account_id

    @property
    def by(self) -> str:
        """For the record of what was done."""
        return "operator (dashboard)" if self.key_id is None else f"key {self.key_id} (dashboard)"

    @property
    def csrf_token(self) -> str:
        """What every form of this session carries; only who knows the cookie can tell it."""
        return hmac.new(self.secret.encode(), b"duly csrf", hashlib.sha256).hexdigest()

    def sent(self, token: str) -> bool:
        """Whether a form with this token came from a page of this session."""
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self.csrf_token.encode())


async def make_operator_token(
    db: Executor, *, scopes: Collection[Scope] = OPERATOR_SCOPES, lasts: timedelta = TOKEN_LASTS
) -> str:
    """A token that signs an operator in, once. Raises InvalidInputError for an unknown scope or none."""
    if not scopes or not SCOPES.issuperset(scopes):
        raise InvalidInputError(f"scopes are one or more of {', '.join(sorted(SCOPES))}", "/scopes")
    token = TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    await db.execute(_BEGIN, _hashed(token), None, sorted(scopes), True, lasts)
    return token


async def begin_with_token(db: Executor, token: str) -> str | None:
    """Use up an operator's token; the new session's secret, None if the token is unknown, used or too old."""
    scopes = await db.fetchval(_USE_UP, _hashed(token))
    return None if scopes is None else await _begun(db, None, scopes)


async def begin_with_key(db: Executor, principal: Principal) -> str:
    """Begin a session of the key's project; its secret."""
    return await _begun(db, principal.key_id, None)


async def viewer_of(db: Executor, secret: str, *, active: bool = True) -> Viewer | None:
    """Whose session this is; None if it has ended. `active`: a person did something, so that it lasts on."""
    row = await db.fetchrow(_LOOK, _hashed(secret), IDLE, active)
    if row is None:
        return None
    owner = None if row["key_id"] is None else Owner(row["account_id"], row["project_id"])
    return Viewer(
        owner,
        frozenset(row["scopes"]),
        row["key_id"],
        row["name"] or "operator",
        secret,
        row["project_public_id"],
        row["disabled"],
    )


async def end_session(db: Executor, secret: str) -> None:
    """Sign out: nobody is known by this secret any more."""
    await db.execute(_END, _hashed(secret))


async def _begun(db: Executor, key_id: UUID | None, scopes: Collection[str] | None) -> str:
    await db.execute(_FORGET, IDLE, _OLD_AT_ONCE)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    await db.execute(_BEGIN, _hashed(secret), key_id, scopes, False, LONGEST)
    return secret


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
