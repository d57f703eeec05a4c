"""Accounts and their projects. A project owns jobs, keys and signing secrets; fairness goes round accounts.

`within` is the account that a caller may administer, by its number; None: all of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly.model import uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database, Executor, Owner, apply_limits, project_has_jobs, stored_jobs
from duly.service.faults import InUseError
from duly.service.keyring import NO_KEYRING, Keyring
from duly.service.plans import NO_LIMITS, AccountLimits, LimitsJson, read_limits
from duly.service.secrets import SigningSecret, create_secret

NAME_LIMIT = 100
MOST_PROJECTS = 1_000
OPERATOR = "operator"
SETTLED = timedelta(minutes=1)
ALL = (1 << 31) - 1
"""More than any page has."""

_ACCOUNT = """
    select a.id, a.public_id, a.name, a.operator, a.plan, a.limits, coalesce(p.limits, '{}') || a.limits as effective,
           a.created_at, a.disabled_at
      from duly.account a left join duly.plan p on p.name = a.plan
     where a.deleted_at is null and ($1::integer is null or a.id = $1)
"""
_PROJECT = """
    select p.id, p.public_id, p.account_id, a.public_id as account_public_id, p.name, p.created_at
      from duly.project p join duly.account a on a.id = p.account_id
     where p.deleted_at is null and a.deleted_at is null and ($1::integer is null or a.id = $1)
"""


@dataclass(frozen=True, slots=True)
class Account:
    """A customer. `id` is public; the number that hot rows carry stays inside.

    `limits` are its own, `effective` what applies: its own, else its plan's. The admin keys of an `operator` account
    administer all accounts. While it is disabled its keys are refused and none of its jobs starts.
    """

    id: UUID
    name: str
    created_at: datetime
    operator: bool = False
    plan: str | None = None
    limits: LimitsJson = field(default_factory=dict)
    effective: AccountLimits = NO_LIMITS
    disabled_at: datetime | None = None


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


async def create_account(
    db: Database, name: str, *, plan: str | None = None, limits: LimitsJson | None = None
) -> Account:
    """Make an account; limits are as `checked_limits` gives them. Raises InvalidInputError if the name is taken or
    unusable, or the plan is not there.
    """
    account_id = uuid7()
    try:
        async with db.transaction() as tx:
            number = await tx.fetchval(
                "insert into duly.account (public_id, name, plan, limits) values ($1, $2, $3, $4) returning id",
                account_id,
                checked_name(name),
                plan,
                json.dumps(limits or {}),
            )
            await apply_limits(tx, number)
            return await get_account(tx, account_id)
    except asyncpg.UniqueViolationError as error:
        raise _account_name_taken() from error
    except asyncpg.ForeignKeyViolationError as error:
        raise _no_such_plan() from error


async def get_account(db: Executor, account_id: UUID, *, within: int | None = None) -> Account:
    """Raises NotFoundError."""
    row = await db.fetchrow(f"{_ACCOUNT} and a.public_id = $2", within, account_id)
    if row is None:
        raise NotFoundError("account", account_id)
    return _account(row)


async def account_number(db: Executor, account_id: UUID) -> int:
    """How the queue knows an account. Raises NotFoundError."""
    number: int | None = await db.fetchval(
        "select id from duly.account where public_id = $1 and deleted_at is null", account_id
    )
    if number is None:
        raise NotFoundError("account", account_id)
    return number


async def numbered_account(db: Executor, number: int) -> Account:
    """The account that the queue knows by this number. Raises NotFoundError."""
    row = await db.fetchrow(_ACCOUNT, number)
    if row is None:
        raise NotFoundError("account", number)
    return _account(row)


async def list_accounts(
    db: Executor, *, within: int | None = None, after: UUID | None = None, limit: int = ALL
) -> list[Account]:
    """Accounts, oldest first, those behind `after`."""
    rows = await db.fetch(
        f"{_ACCOUNT} and ($2::uuid is null or a.public_id > $2) order by a.public_id limit $3", within, after, limit
    )
    return [_account(row) for row in rows]


async def change_account(db: Database, account_id: UUID, changes: Mapping[str, Any]) -> Account:
    """Give an account another `name`, `plan` (None: none) or `limits` (its own, replaced whole), those that are given.

    Limits apply at once to what is claimed and created next. Raises as `create_account`, and NotFoundError.
    """
    try:
        async with db.transaction() as tx:
            number = await _locked(tx, account_id)
            await tx.execute(
                """update duly.account
                      set name = coalesce($2, name), plan = case when $3 then $4 else plan end,
                          limits = coalesce($5, limits)
                    where id = $1""",
                number,
                checked_name(changes["name"]) if "name" in changes else None,
                "plan" in changes,
                changes.get("plan"),
                json.dumps(changes["limits"]) if "limits" in changes else None,
            )
            await apply_limits(tx, number)
            return await get_account(tx, account_id)
    except asyncpg.UniqueViolationError as error:
        raise _account_name_taken() from error
    except asyncpg.ForeignKeyViolationError as error:
        raise _no_such_plan() from error


async def disable_account(db: Database, account_id: UUID) -> Account:
    """From now on its keys are refused and none of its jobs starts; what runs ends as ever, nothing is lost.

    Raises NotFoundError, or InUseError for an operator's account: nobody could enable it again.
    """
    async with db.transaction() as tx:
        number = await _locked(tx, account_id)
        await _refuse_operator(tx, number, "disabled")
        await tx.execute("update duly.account set disabled_at = coalesce(disabled_at, now()) where id = $1", number)
        await apply_limits(tx, number)
        return await get_account(tx, account_id)


async def enable_account(db: Database, account_id: UUID) -> Account:
    """What waited goes on. Raises NotFoundError."""
    async with db.transaction() as tx:
        number = await _locked(tx, account_id)
        await tx.execute("update duly.account set disabled_at = null where id = $1", number)
        await apply_limits(tx, number)
        return await get_account(tx, account_id)


async def delete_account(db: Database, account_id: UUID) -> None:
    """Its keys are gone, its name is free; its finished jobs go with retention.

    Raises NotFoundError, or InUseError while a job of it has not ended, or it has not been disabled for a minute: a
    request that came in before may take that long, and its job would never run.
    """
    async with db.transaction() as tx:
        number = await _locked(tx, account_id)
        await _refuse_operator(tx, number, "deleted")
        if await tx.fetchval(
            "select coalesce(disabled_at > now() - $2::interval, true) from duly.account where id = $1", number, SETTLED
        ):
            raise InUseError("the account is in use, or was a minute ago: disable it, and wait a minute, first")
        if await stored_jobs(tx, number, 1):
            raise InUseError("the account has jobs that have not ended: cancel them, or enable it and wait, first")
        await tx.execute("update duly.account set deleted_at = now() where id = $1", number)
        await tx.execute(
            "update duly.project set deleted_at = now() where account_id = $1 and deleted_at is null", number
        )


async def create_project(db: Database, account_id: UUID, name: str, *, keyring: Keyring = NO_KEYRING) -> Project:
    """Make a project with its first signing secret. Raises NotFoundError, or InvalidInputError if the name is taken."""
    project, _ = await create_project_with_secret(db, account_id, name, keyring=keyring)
    return project


async def create_project_with_secret(
    db: Database, account_id: UUID, name: str, *, within: int | None = None, keyring: Keyring
) -> tuple[Project, SigningSecret]:
    """The same, and the secret. Raises InUseError beyond the most projects that an account may have."""
    try:
        async with db.transaction() as tx:
            number = await _locked(tx, account_id, within)
            if await tx.fetchval(
                "select count(*) >= $2 from duly.project where account_id = $1 and deleted_at is null",
                number,
                MOST_PROJECTS,
            ):
                raise InUseError(f"the account has {MOST_PROJECTS} projects, the most there may be: delete one first")
            project_id = uuid7()
            project = await tx.fetchval(
                "insert into duly.project (public_id, account_id, name) values ($1, $2, $3) returning id",
                project_id,
                number,
                checked_name(name),
            )
            secret = await create_secret(tx, project, keyring=keyring)
            return await get_project(tx, project_id), secret
    except asyncpg.UniqueViolationError as error:
        raise _project_name_taken() from error


async def get_project(db: Executor, project_id: UUID, *, within: int | None = None) -> Project:
    """Raises NotFoundError."""
    row = await db.fetchrow(f"{_PROJECT} and p.public_id = $2", within, project_id)
    if row is None:
        raise NotFoundError("project", project_id)
    return _project(row)


async def list_projects(
    db: Executor,
    account_id: UUID | None = None,
    *,
    within: int | None = None,
    after: UUID | None = None,
    limit: int = ALL,
) -> list[Project]:
    """Projects, oldest first, those behind `after`; of one account, or of all. None for an unknown account."""
    rows = await db.fetch(
        f"""{_PROJECT} and ($2::uuid is null or a.public_id = $2) and ($3::uuid is null or p.public_id > $3)
            order by p.public_id limit $4""",
        within,
        account_id,
        after,
        limit,
    )
    return [_project(row) for row in rows]


async def rename_project(db: Executor, project_id: UUID, name: str, *, within: int | None = None) -> Project:
    """Raises NotFoundError, or InvalidInputError if the name is taken or unusable."""
    project = await get_project(db, project_id, within=within)
    try:
        await db.execute(
            "update duly.project set name = $2 where id = $1 and deleted_at is null",
            project.owner.project_id,
            checked_name(name),
        )
    except asyncpg.UniqueViolationError as error:
        raise _project_name_taken() from error
    return await get_project(db, project_id, within=within)


async def delete_project(db: Database, project_id: UUID, *, within: int | None = None) -> None:
    """Its keys and schedules are gone, its name is free; its finished jobs go with retention. A job that came in just
    then still runs: nothing that was accepted is lost.

    Raises NotFoundError, or InUseError while a job of it has not ended.
    """
    async with db.transaction() as tx:
        project = await get_project(tx, project_id, within=within)
        await tx.fetchval("select id from duly.project where id = $1 for no key update", project.owner.project_id)
        if await project_has_jobs(tx, project.owner.account_id, project.owner.project_id):
            raise InUseError("the project has jobs that have not ended: cancel them, or wait, first")
        await tx.execute("delete from duly.schedule where project_id = $1", project.owner.project_id)
        await tx.execute("update duly.project set deleted_at = now() where id = $1", project.owner.project_id)


async def closed_accounts(db: Executor, accounts: Collection[int]) -> set[int]:
    """Which of these are disabled or deleted."""
    rows = await db.fetch(
        "select id from duly.account where id = any($1) and (disabled_at is not null or deleted_at is not null)",
        list(accounts),
    )
    return {row["id"] for row in rows}


async def ensure_default(
    db: Database, name: str = "default", *, operator: bool = False, keyring: Keyring = NO_KEYRING
) -> DefaultTenant:
    """Make sure that the account and project `name` exist, with a signing secret; any number of callers may race.

    `operator`: if it is made now, its admin keys administer all accounts.
    """
    name = checked_name(name)
    tenant = await _default(db, name)  # a conflicting insert would use up a number at every start
    if tenant is not None:
        return tenant
    async with db.transaction() as tx:
        # The conflicting insert waits for whoever is ahead; the read after it is a new statement and sees their row.
        await tx.execute(
            """insert into duly.account (public_id, name, operator) values ($1, $2, $3)
               on conflict (name) where deleted_at is null do nothing""",
            uuid7(),
            name,
            operator,
        )
        created = await tx.fetchval(
            """insert into duly.project (public_id, account_id, name)
               select $1, a.id, $2 from duly.account a where a.name = $2 and a.deleted_at is null
               on conflict (account_id, name) where deleted_at is null do nothing
               returning id""",
            uuid7(),
            name,
        )
        if created is not None:
            await create_secret(tx, created, keyring=keyring)
        tenant = await _default(tx, name)
    assert tenant is not None
    return tenant


async def ensure_operator(db: Database, *, keyring: Keyring = NO_KEYRING) -> DefaultTenant:
    """The account whose admin keys administer all accounts, made if it is not there.

    Raises InvalidInputError if a customer has its name.
    """
    tenant = await ensure_default(db, OPERATOR, operator=True, keyring=keyring)
    if not (await get_account(db, tenant.account_id)).operator:
        raise InvalidInputError(
            f"an account is called {OPERATOR} and is not the operator's: give it another name first", "/name"
        )
    return tenant


async def _default(db: Executor, name: str) -> DefaultTenant | None:
    row = await db.fetchrow(
        """select a.id as account, a.public_id as account_id, p.id as project, p.public_id as project_id
             from duly.account a join duly.project p on p.account_id = a.id and p.name = a.name
            where a.name = $1 and a.deleted_at is null and p.deleted_at is null""",
        name,
    )
    if row is None:
        return None
    return DefaultTenant(Owner(row["account"], row["project"]), row["account_id"], row["project_id"])


async def _locked(tx: Executor, account_id: UUID, within: int | None = None) -> int:
    number: int | None = await tx.fetchval(
        """select id from duly.account
            where public_id = $1 and deleted_at is null and ($2::integer is null or id = $2) for no key update""",
        account_id,
        within,
    )
    if number is None:
        raise NotFoundError("account", account_id)
    return number


async def _refuse_operator(tx: Executor, number: int, what: str) -> None:
    if await tx.fetchval("select operator from duly.account where id = $1", number):
        raise InUseError(f"this is the operator's account: it cannot be {what}")


def checked_name(name: str) -> str:
    """A name for people: 1 to 100 printable characters, no space at the ends. Raises InvalidInputError."""
    if not (1 <= len(name) <= NAME_LIMIT and name.isprintable() and name == name.strip()):
        raise InvalidInputError(f"a name is 1 to {NAME_LIMIT} printable characters, with no space at its ends", "/name")
    return name


def _account_name_taken() -> InvalidInputError:
    return InvalidInputError("an account of this name exists already: choose another name", "/name")


def _project_name_taken() -> InvalidInputError:
    return InvalidInputError("the account has a project of this name already: choose another name", "/name")


def _no_such_plan() -> InvalidInputError:
    return InvalidInputError("there is no plan of this name: make it first", "/plan")


def _account(row: asyncpg.Record) -> Account:
    return Account(
        row["public_id"],
        row["name"],
        row["created_at"],
        row["operator"],
        row["plan"],
        json.loads(row["limits"]),
        read_limits(row["effective"]),
        row["disabled_at"],
    )


def _project(row: asyncpg.Record) -> Project:
    return Project(
        row["public_id"],
        row["account_public_id"],
        row["name"],
        Owner(row["account_id"], row["id"]),
        row["created_at"],
    )
