"""The settings behind the API: accounts, projects, keys, signing secrets."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from duly.model import uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database
from duly.service import (
    Gatekeeper,
    SigningSecrets,
    authenticate,
    create_account,
    create_key,
    create_project,
    create_secret,
    ensure_default,
    list_accounts,
    list_keys,
    list_projects,
    list_secrets,
    revoke_key,
    rotate_secret,
)


async def test_accounts_and_projects(database: Database) -> None:
    """Names are unique where they must be, and a project starts with a signing secret."""
    account = await create_account(database, "acme")
    project = await create_project(database, account.id, "live")
    assert await list_accounts(database) == [account]
    assert await list_projects(database, account.id) == [project]
    assert await list_projects(database, uuid7()) == []
    assert len(await list_secrets(database, project.owner.project_id)) == 1
    with pytest.raises(InvalidInputError):
        await create_account(database, "acme")
    with pytest.raises(InvalidInputError):
        await create_project(database, account.id, "live")
    with pytest.raises(NotFoundError):
        await create_project(database, uuid7(), "live")
    for name in ("", " x", "x\n", "x" * 101, "a\x00b"):
        with pytest.raises(InvalidInputError):
            await create_account(database, name)


async def test_ensure_default_races(database: Database) -> None:
    """Eight programs that start at once find one tenant, and so do later ones."""
    tenants = await asyncio.gather(*(ensure_default(database) for _ in range(8)))
    assert len(set(tenants)) == 1
    assert await ensure_default(database) == tenants[0]
    assert len(await list_secrets(database, tenants[0].owner.project_id)) == 1
    assert (await ensure_default(database, "other")).owner != tenants[0].owner


async def test_a_repeated_start_uses_up_no_number(database: Database) -> None:
    """FO-042: the numbers of accounts and projects are 32 bits wide: a start that finds its tenant takes none."""
    numbers = "select (select last_value from duly.account_id_seq), (select last_value from duly.project_id_seq)"
    await ensure_default(database)
    before = await database.fetchrow(numbers)
    for _ in range(10):
        await ensure_default(database)
    assert await database.fetchrow(numbers) == before


async def test_a_key_is_kept_nowhere(database: Database) -> None:
    """Shown once: the table has its hash and a hint, and no text of ours shows it."""
    tenant = await ensure_default(database)
    made = await create_key(database, tenant.owner.project_id, "ci", scopes={"read"})
    assert made.key.startswith("duly_")
    assert len(made.key) == len("duly_") + 43
    assert made.info.hint == made.key[:11]
    assert made.key not in repr(made)
    row = await database.fetchrow("select k::text as shown, k.secret_hash from duly.api_key k")
    assert row is not None
    assert made.key not in row["shown"]
    assert row["secret_hash"] == hashlib.sha256(made.key.encode()).digest()
    principal = await authenticate(database, made.key)
    assert principal is not None
    assert (principal.owner, principal.key_id, principal.scopes) == (tenant.owner, made.info.id, frozenset({"read"}))


async def test_wrong_keys(database: Database) -> None:
    """Unknown, revoked, expired and absurd keys are nobody's."""
    tenant = await ensure_default(database)
    project_id = tenant.owner.project_id
    made = await create_key(database, project_id, "a")
    late = await create_key(database, project_id, "b", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    for wrong in ("", "x", made.key + "x", made.key[:-1], "\x00", "\ud800", "☃" * 1000, late.key):
        assert await authenticate(database, wrong) is None
    assert not await revoke_key(database, project_id + 1, made.info.id)
    assert await authenticate(database, made.key)
    assert await revoke_key(database, project_id, made.info.id)
    assert await revoke_key(database, project_id, made.info.id)
    assert await authenticate(database, made.key) is None
    assert {key.name for key in await list_keys(database, project_id)} == {"a", "b"}
    with pytest.raises(InvalidInputError):
        await create_key(database, project_id, "c", scopes=set())
    with pytest.raises(InvalidInputError):
        await create_key(database, project_id, "c", scopes={"everything"})  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        await create_key(database, project_id + 100, "c")


async def test_use_is_noted_once_a_minute(database: Database) -> None:
    """last_used_at moves at the first use, then not for a minute; a note never waits for another's."""
    tenant = await ensure_default(database)
    made = await create_key(database, tenant.owner.project_id, "a")

    async def last_used() -> datetime | None:
        [key] = await list_keys(database, tenant.owner.project_id)
        return key.last_used_at

    assert await last_used() is None
    async with database.transaction() as tx:
        await tx.execute("select 1 from duly.api_key for update")
        assert await authenticate(database, made.key)
    assert await last_used() is None
    assert await authenticate(database, made.key)
    first = await last_used()
    assert first is not None
    assert await authenticate(database, made.key)
    assert await last_used() == first
    await database.execute("update duly.api_key set last_used_at = now() - interval '61 seconds'")
    assert await authenticate(database, made.key)
    assert (await last_used() or first) >= first


async def test_the_gatekeeper_answers_each_for_itself(database: Database) -> None:
    """Many at once, good and bad mixed, the same key many times: every caller gets its own answer."""
    tenant = await ensure_default(database)
    keys = [await create_key(database, tenant.owner.project_id, f"k{n}") for n in range(5)]
    gatekeeper = Gatekeeper(database)
    presented = [key.key for key in keys] * 20 + ["wrong"] * 20
    answers = await asyncio.gather(*(gatekeeper.authenticate(key) for key in presented))
    assert [answer and answer.key_id for answer in answers] == [key.info.id for key in keys] * 20 + [None] * 20
    await gatekeeper.close()


async def test_rotation_overlaps(database: Database) -> None:
    """The new secret signs first, the old one beside it until the overlap ends; racing rotations leave one newest."""
    project_id = (await ensure_default(database)).owner.project_id
    [first] = await list_secrets(database, project_id)
    assert len(first.secret) == 32
    assert str(first.secret) not in repr(first)
    second = await rotate_secret(database, project_id)
    listed = await list_secrets(database, project_id)
    assert [secret.id for secret in listed] == [second.id, first.id]
    assert listed[0].expires_at is None
    assert listed[1].expires_at is not None
    third = await rotate_secret(database, project_id, overlap=timedelta(0))
    assert [secret.id for secret in await list_secrets(database, project_id)] == [third.id]
    await asyncio.gather(*(rotate_secret(database, project_id) for _ in range(4)))
    assert sum(secret.expires_at is None for secret in await list_secrets(database, project_id)) == 1
    with pytest.raises(NotFoundError):
        await rotate_secret(database, project_id + 100)


async def test_signing_secrets_are_remembered(database: Database) -> None:
    """One read serves ten seconds of deliveries; after that a change is seen."""
    project_id = (await ensure_default(database)).owner.project_id
    now_s = 0.0
    secrets = SigningSecrets(database, clock=lambda: now_s)
    before = await secrets.for_project(project_id)
    assert len(before) == 1
    await create_secret(database, project_id)
    assert await secrets.for_project(project_id) == before
    now_s = 10.0
    after = await asyncio.gather(*(secrets.for_project(project_id) for _ in range(10)))
    assert {len(found) for found in after} == {2}
    assert after[0][1] == before[0]
    assert await secrets.for_project(project_id + 100) == ()
