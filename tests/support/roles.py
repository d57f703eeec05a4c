"""Roles and databases that misbehave for one test only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from support.sessions import autocommitting


class Role:
    """A role of the test's own that may do what the owner may. `url` connects as it."""

    def __init__(self, url: str) -> None:
        self._owner_url = url
        self.name = f"role_{uuid4().hex[:12]}"
        self.url = urlunsplit(urlsplit(url)._replace(netloc=f"{self.name}@"))

    async def alter(self, setting: str) -> None:
        """`alter role … setting`; for connections made from now on."""
        await self._run(f"alter role {self.name} {setting}")

    async def cut(self) -> None:
        """Terminate all its backends."""
        await self._run(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{self.name}'")

    async def _run(self, statement: str) -> None:
        async with autocommitting(self._owner_url) as owner:
            await owner.execute(statement)


@asynccontextmanager
async def new_role(url: str, *settings: str) -> AsyncIterator[Role]:
    """A role with these settings, each as `alter role` takes it, while the block runs."""
    role = Role(url)
    async with autocommitting(url) as owner:
        await owner.execute(f"create role {role.name} login")
        mine = await owner.fetchval("select quote_ident(current_user)")
        await owner.execute(f"grant {mine} to {role.name}")
        for setting in settings:
            await role.alter(setting)
        try:
            yield role
        finally:
            await role.cut()
            await owner.execute(f"drop role {role.name}")


async def cut_all(url: str) -> None:
    """Terminate every backend of the database but the one that asks."""
    async with autocommitting(url) as one:
        await one.execute(
            """select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"""
        )


async def alter_database(url: str, setting: str) -> None:
    """`alter database … setting`, for connections made from now on."""
    async with autocommitting(url) as one:
        await one.execute("set transaction_read_only = off")
        name = await one.fetchval("select quote_ident(current_database())")
        await one.execute(f"begin; set transaction read write; alter database {name} {setting}; commit")
