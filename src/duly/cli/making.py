"""Making jobs as the API makes them: read by its rules, vetted by the egress policy, inside the account's limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from duly.cli.own import all_own_addresses
from duly.cli.owners import named_owner
from duly.http import EgressPolicy
from duly.model import NewJob
from duly.model.errors import DulyError
from duly.queue import Database, Enqueued, Owner, Session, server_now
from duly.service import Allowances, Creator, Keyring, Limits, ensure_default, list_accounts
from duly.service.creating import Created
from duly.service.faults import BatchRefusedError
from duly.service.plans import NO_LIMITS, AccountLimits


@dataclass(frozen=True, slots=True)
class Egress:
    """What `--allow`, `--deny` and `--allow-port` say."""

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    ports: Sequence[str] = ()

    def __post_init__(self) -> None:
        EgressPolicy.parse(self.allow, self.deny, self.ports)  # what is wrong with it is said before anything happens

    async def policy(self, db: Database, url: str) -> EgressPolicy:
        """With the database itself closed."""
        return EgressPolicy.parse(self.allow, self.deny, self.ports, await all_own_addresses(db, url, ()))


class RefusedError(DulyError):
    """Jobs that cannot be stored, by id, and why. None of those beside them was."""

    def __init__(self, refused: Mapping[UUID, DulyError]) -> None:
        super().__init__(f"{len(refused)} jobs cannot be stored: none was")
        self.refused = refused


@dataclass(slots=True)
class Maker:
    """Makes jobs on one database."""

    db: Database
    policy: EgressPolicy
    keyring: Keyring
    creator: Creator
    allowances: Allowances
    _limits: dict[int, AccountLimits] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def opened(cls, db: Database, policy: EgressPolicy, keyring: Keyring) -> AsyncIterator[Maker]:
        """While the block runs; what is left of an account's quota is given back at its end."""
        maker = cls(db, policy, keyring, Creator(db, keyring=keyring), Allowances(db))
        try:
            yield maker
        finally:
            await maker.creator.close()
            await maker.allowances.close()

    async def owner(self, account: str, project: str | None) -> Owner:
        """The project as typed; the default one is made if it is not there. Raises NotFoundError."""
        if account == "default" and project in (None, "default"):
            return (await ensure_default(self.db, keyring=self.keyring)).owner
        return await named_owner(self.db, account, project)

    async def limits(self, owner: Owner) -> Limits:
        """What a job of this account may be."""
        return (await self._account_limits(owner)).narrowed(Limits())

    async def now(self) -> datetime:
        """The database's clock."""
        return await server_now(self.db)

    async def make(self, owner: Owner, job: NewJob) -> Created:
        """Store a job, as `Creator.create` does. Raises OverLimitError too."""
        async with self.allowances.take(owner.account_id, await self._account_limits(owner)) as taking:
            created = await self.creator.create(owner, job)
            taking.created = int(created.result == "created")
            return created

    async def make_all(self, jobs: Sequence[tuple[Owner, NewJob]], session: Session) -> list[Enqueued]:
        """Store all of them in the session's transaction, or none: then it raises RefusedError, or OverLimitError."""
        by_owner: dict[Owner, list[NewJob]] = {}
        for owner, job in jobs:
            by_owner.setdefault(owner, []).append(job)
        answers: list[Enqueued] = []
        async with AsyncExitStack() as stack:
            for owner, its in by_owner.items():
                limits = await self._account_limits(owner)
                taking = await stack.enter_async_context(self.allowances.take(owner.account_id, limits, len(its)))
                try:
                    made = await self.creator.create_all(owner, its, session)
                except BatchRefusedError as error:
                    raise RefusedError({its[place].id: why for place, why in error.refused.items()}) from error
                taking.created = sum(answer.result == "created" for answer in made)
                answers += made
        return answers

    async def _account_limits(self, owner: Owner) -> AccountLimits:
        if owner.account_id not in self._limits:
            found = await list_accounts(self.db, within=owner.account_id)
            self._limits[owner.account_id] = found[0].effective if found else NO_LIMITS
        return self._limits[owner.account_id]
