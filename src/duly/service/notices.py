"""Who is told when something needs a person: a URL, what it is told of, and how much of it is too much.

A notice is delivered as an ordinary job of its project: signed with that project's secrets, kept from where no job may
go, tried again, visible in the history.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args
from uuid import UUID

import asyncpg

from duly.http.errors import TargetNotAllowedError
from duly.http.policy import EgressPolicy
from duly.http.url import parse_target
from duly.model import NewJob, uuid7
from duly.model.errors import InvalidInputError, NotFoundError
from duly.queue import Database, Executor, Owner
from duly.service.faults import Fault, InUseError, InvalidFieldsError
from duly.service.jobs import JobSpec, Limits, new_http_job
from duly.service.moments import show_moment

About = Literal["project", "account", "everything"]
NoticeType = Literal["dead_letters", "breaker_opened", "breaker_closed", "quota_near", "schedule_silent"]
TYPES: tuple[NoticeType, ...] = get_args(NoticeType)
QUEUE = "notices"
DEAD_LETTERS = 10
DEAD_WITHIN = timedelta(minutes=10)
LONGEST_WINDOW = timedelta(days=1)
MOST_DEAD_LETTERS = 5_000
MOST_NOTICES = 20
TAG = "notice"
MARK = "notice"
"""The member of a stored payload that says which notice a job delivers; only this service writes it."""

_NOTICE = """
    select n.id, n.about, n.url, n.queue, n.types, n.dead_letters, n.dead_seconds, n.quota_place, n.created_at,
           n.updated_at, n.project_id as project, p.public_id as project_id, p.name as project_name,
           p.account_id as account, n.account_id as about_account, t.public_id as account_id, t.name as account_name
      from duly.notice n
      join duly.project p on p.id = n.project_id
      join duly.account a on a.id = p.account_id
      left join duly.account t on t.id = n.account_id
     where p.deleted_at is null and a.deleted_at is null and t.deleted_at is null
       and ($1::integer is null or a.id = $1)
"""


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """What its owner says. `dead_letters` within `dead_within` are told of; the jobs that tell stand in `queue`."""

    url: str
    types: tuple[NoticeType, ...] = TYPES
    dead_letters: int = DEAD_LETTERS
    dead_within: timedelta = DEAD_WITHIN
    queue: str = QUEUE


@dataclass(frozen=True, slots=True)
class Notice:
    """One URL that is told. `owner`: whose jobs tell it. It is told of that project, or of all of an account, or of
    everything (`account_id` None).

    `about_account`: the number of that account. `quota_place`: the accounts up to this number have had their turn.
    """

    id: UUID
    owner: Owner
    project_id: UUID
    project_name: str
    about: About
    account_id: UUID | None
    account_name: str | None
    about_account: int | None
    settings: NoticeSettings
    created_at: datetime
    updated_at: datetime
    quota_place: int = 0

    @property
    def about_project(self) -> int | None:
        """The number of the project that it is told of; None: not of one only."""
        return self.owner.project_id if self.about == "project" else None


def check_notice_url(url: str, policy: EgressPolicy) -> str:
    """The URL as it is kept. Raises InvalidFieldsError if no job may go there."""
    try:
        target = parse_target(url)
        policy.check_target(target)
    except (InvalidInputError, TargetNotAllowedError) as error:
        raise InvalidFieldsError([Fault("/url", str(error))]) from error
    return target.url


async def put_notice(
    db: Database,
    project_id: UUID,
    about: About,
    account_id: UUID | None,
    settings: NoticeSettings,
    *,
    within: int | None,
) -> tuple[Notice, bool]:
    """Have a URL told, or change what it is told of: one URL is one notice of a project and what it is about. The flag
    says whether it is new. `account_id`: for "account", of which one; None: the project's own.

    The URL is for the caller to check. Raises NotFoundError, or InUseError beyond the most that a project may have.
    """
    async with db.transaction() as tx:
        owner = await tx.fetchrow(
            """select p.id, p.account_id from duly.project p join duly.account a on a.id = p.account_id
                where p.public_id = $1 and p.deleted_at is null and a.deleted_at is null
                  and ($2::integer is null or a.id = $2) for no key update of p""",
            project_id,
            within,
        )
        if owner is None:
            raise NotFoundError("project", project_id)
        of = None if about == "everything" else owner["account_id"]
        if about == "account" and account_id is not None:
            of = await tx.fetchval(
                """select id from duly.account
                    where public_id = $1 and deleted_at is null and ($2::integer is null or id = $2)""",
                account_id,
                within,
            )
            if of is None:
                raise NotFoundError("account", account_id)
        row = await tx.fetchrow(
            """insert into duly.notice
                      (id, project_id, about, account_id, url, queue, types, dead_letters, dead_seconds)
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
               on conflict (project_id, about, coalesce(account_id, 0), url) do update
               set queue = excluded.queue, types = excluded.types, dead_letters = excluded.dead_letters,
                   dead_seconds = excluded.dead_seconds, updated_at = now()
               returning id, id = $1 as is_new""",
            uuid7(),
            owner["id"],
            about,
            of,
            settings.url,
            settings.queue,
            list(settings.types),
            settings.dead_letters,
            settings.dead_within.total_seconds(),
        )
        assert row is not None  # one of both is done
        if row["is_new"] and await _count(tx, owner["id"]) > MOST_NOTICES:
            raise InUseError(f"the project has {MOST_NOTICES} notices, the most there may be: remove one first")
        return await get_notice(tx, row["id"], within=within), row["is_new"]


async def get_notice(db: Executor, notice_id: UUID, *, within: int | None = None) -> Notice:
    """Raises NotFoundError."""
    row = await db.fetchrow(f"{_NOTICE} and n.id = $2", within, notice_id)
    if row is None:
        raise NotFoundError("notice", notice_id)
    return _notice(row)


async def find_notices(
    db: Executor, *, within: int | None = None, project_id: UUID | None = None, after: UUID | None = None, limit: int
) -> list[Notice]:
    """The notices of all projects or of one, oldest first, those behind `after`."""
    rows = await db.fetch(
        f"""{_NOTICE} and ($2::uuid is null or p.public_id = $2) and ($3::uuid is null or n.id > $3)
            order by n.id limit $4""",
        within,
        project_id,
        after,
        limit,
    )
    return [_notice(row) for row in rows]


async def remove_notice(db: Database, notice_id: UUID, *, within: int | None = None) -> None:
    """It is told no more; what is on its way still arrives. Raises NotFoundError."""
    async with db.transaction() as tx:
        await get_notice(tx, notice_id, within=within)
        await tx.execute("delete from duly.notice where id = $1", notice_id)


def notice_job(notice: Notice, message: dict[str, Any], *, now: datetime, policy: EgressPolicy) -> NewJob:
    """The job that delivers a message. Raises InvalidJobError if no job may go to its URL (any more)."""
    spec = JobSpec(
        notice.settings.url,
        json=json.dumps(message, ensure_ascii=False).encode(),
        queue=notice.settings.queue,
        priority=0,
        tags=(TAG,),
        metadata={"notice_id": str(notice.id), "type": message["type"]},
    )
    job = new_http_job(spec, now=now, policy=policy, limits=Limits())
    return replace(job, payload={**job.payload, MARK: str(notice.id)})


def trial_message(notice: Notice, now: datetime) -> dict[str, Any]:
    """What a URL is told to see whether it hears."""
    return message_of(notice, "test", now, "this is a test: notices arrive here", {}, {"notices": "/v1/notices"})


def message_of(
    notice: Notice, kind: str, now: datetime, what: str, figures: dict[str, Any], links: dict[str, str]
) -> dict[str, Any]:
    """The body of a notice. `links` are paths of the API and the dashboard."""
    account = None if notice.account_id is None else {"id": str(notice.account_id), "name": notice.account_name}
    project = {"id": str(notice.project_id), "name": notice.project_name} if notice.about == "project" else None
    return {
        "type": kind,
        "at": show_moment(now),
        "notice_id": str(notice.id),
        "about": notice.about,
        "account": account,
        "project": project,
        "what": what,
        "figures": figures,
        "links": links,
    }


async def _count(tx: Executor, project: int) -> int:
    count: int = await tx.fetchval("select count(*) from duly.notice where project_id = $1", project)
    return count


def _notice(row: asyncpg.Record) -> Notice:
    return Notice(
        row["id"],
        Owner(row["account"], row["project"]),
        row["project_id"],
        row["project_name"],
        row["about"],
        row["account_id"],
        row["account_name"],
        row["about_account"],
        NoticeSettings(
            row["url"],
            tuple(kind for kind in TYPES if kind in row["types"]),
            row["dead_letters"],
            timedelta(seconds=row["dead_seconds"]),
            row["queue"],
        ),
        row["created_at"],
        row["updated_at"],
        row["quota_place"],
    )
