"""The account and the project that a command is about."""

from __future__ import annotations

from typing import Annotated

import typer

from duly.model.errors import NotFoundError
from duly.queue import Database, Owner
from duly.service import list_accounts, list_projects

AccountOfAll = Annotated[
    str | None, typer.Option("--account", help="Only of this account. Default: of all.", show_default=False)
]
Project = Annotated[
    str | None, typer.Option("--project", help="Its project. Default: that of the same name.", show_default=False)
]


async def named_owner(db: Database, account: str, project: str | None = None) -> Owner:
    """The project as typed. Raises NotFoundError."""
    for one in await list_accounts(db):
        if one.name == account:
            for its in await list_projects(db, one.id):
                if its.name == (project or account):
                    return its.owner
            name = project or f"{account}, as no --project says otherwise,"
            raise NotFoundError(f"in account {account} a project", name)
    raise NotFoundError("account", account)


async def owner_if_named(db: Database, account: str | None, project: str | None) -> Owner | None:
    """The project as typed; None, which is everybody, if no account was. Raises NotFoundError."""
    if account is None and project is None:
        return None
    return await named_owner(db, account or "default", project)
