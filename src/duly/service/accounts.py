"""Accounts and their projects. A project owns jobs, keys and signing secrets; fairness goes round accounts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database, Executor, Owner
from duly.service.keyring import NO_KEYRING, Keyring
from duly.service.secrets import create_secret

NAME_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Account:
    """A customer. `id` is public; the number that hot rows carry stays inside."""

    id: UUID
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Project:
    """One environment of an account. `owner` is how the queue knows it."""

    id: UUID
    account_id: UUID
    name: str
    owner: Owner
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DefaultTenant:
    """The account and project that a single-user installation works in."""

    owner: Owner
    account_id: UUID
    project_id: UUID


async def create_account(db: Executor, name: str) -> Account:
    """Make an account. Raises InvalidInputError if the name is taken or unusable."""
    try:
        row = await db.fetchrow(
            """insert into duly.account (public_id, name) values ($1, $2)
               returning public_id, name, created_at""",
            uuid7(),
            checked_name(name),
        )
    except asyncpg.UniqueViolationError as error:
        raise InvalidInputError("an account of this name exists already: choose another name", "/name") from error
    assert row is not None
    return Account(row["public_id"], row["name"], row["created_at"])


async def list_accounts(db: Executor) -> list[Account]:
    """All accounts, oldest first."""
    rows = await db.fetch("select public_id, name, created_at from duly.account order by id")
    return [Account(row["public_id"], row["name"], row["created_at"]) for row in rows]


async def create_project(db: Database, account_id: UUID, name: str, *, keyring: Keyring = NO_KEYRING) -> Project:
    """Make a project with its first signing secret. Raises NotFoundError, or InvalidInputError if the name is taken."""
    try:
        async with db.transaction() as tx:
            row = await tx.fetchrow(
                """insert into duly.project (public_id, account_id, name)
                   select $1, id, $3 from duly.account where public_id = $2
                   returning id, public_id, account_id, name, created_at""",
                uuid7(),
                account_id,
                checked_name(name),
            )
            if row is None:
                raise NotFoundError("account", account_id)
            await create_secret(tx, row["id"], keyring=keyring)
    except asyncpg.UniqueViolationError as error:
        raise InvalidInputError(
            "the account has a project of this name already: choose another name", "/name"
        ) from error
    return Project(row["public_id"], account_id, row["name"], Owner(row["account_id"], row["id"]), row["created_at"])


async def list_projects(db: Executor, account_id: UUID) -> list[Project]:
    """An account's projects, oldest first; none for an unknown account."""
    rows = await db.fetch(
        """select p.id, p.public_id, p.account_id, p.name, p.created_at
             from duly.project p join duly.account a on a.id = p.account_id
            where a.public_id = $1
            order by p.id""",
        account_id,
    )
    return [
        Project(row["public_id"], account_id, row["name"], Owner(row["account_id"], row["id"]), row["created_at"])
        for row in rows
    ]


async def ensure_default(db: Database, name: str = "default", *, keyring: Keyring = NO_KEYRING) -> DefaultTenant:
    """Make sure that the account and project `name` exist, with a signing secret; any number of callers may race."""
    name = checked_name(name)
    tenant = await _default(db, name)  # a conflicting insert would use up a number at every start
    if tenant is not None:
        return tenant
    async with db.transaction() as tx:
        # The conflicting insert waits for whoever is ahead; the read after it is a new statement and sees their row.
        await tx.execute(
            "insert into duly.account (public_id, name) values ($1, $2) on conflict (name) do nothing", uuid7(), name
        )
        created = await tx.fetchval(
            """insert into duly.project (public_id, account_id, name)
               select $1, a.id, $2 from duly.account a where a.name = $2
               on conflict (account_id, name) do nothing
               returning id""",
            uuid7(),
            name,
        )
        if created is not None:
            await create_secret(tx, created, keyring=keyring)
        tenant = await _default(tx, name)
    assert tenant is not None
    return tenant


async def _default(db: Executor, name: str) -> DefaultTenant | None:
    row = await db.fetchrow(
        """select a.id as account, a.public_id as account_id, p.id as project, p.public_id as project_id
             from duly.account a join duly.project p on p.account_id = a.id and p.name = a.name
            where a.name = $1""",
        name,
    )
    if row is None:
        return None
    return DefaultTenant(Owner(row["account"], row["project"]), row["account_id"], row["project_id"])


def checked_name(name: str) -> str:
    """A name for people: 1 to 100 printable characters, no space at the ends. Raises InvalidInputError."""
    if not (1 <= len(name) <= NAME_LIMIT and name.isprintable() and name == name.strip()):
        raise InvalidInputError(f"a name is 1 to {NAME_LIMIT} printable characters, with no space at its ends", "/name")
    return name
