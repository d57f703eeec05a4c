"""Telling what needs a person: a look every half minute, by one process at a time, and a job for each thing to tell.

Who looks holds one row, so any number of workers may try. What is told and that it was told are written by one
transaction: a process that dies anywhere in between leaves both or neither. Deliveries of notices tell of nothing
themselves: their deaths do not count, nor does the breaker of a notice's own target for that notice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly.http.breaker import host_of
from duly.http.policy import EgressPolicy
from duly.model.errors import DatabaseUnavailableError
from duly.model.reminding import Reminder
from duly.queue import Database, Session, server_now, stored_jobs
from duly.queue.breaker import OpenBreaker, list_breakers
from duly.queue.noticing import Deaths, SilentSchedule, quota_taken, recent_deaths, silent_schedules
from duly.service.creating import Creator
from duly.service.keyring import NO_KEYRING, Keyring
from duly.service.moments import show_moment
from duly.service.notice_plan import Episode, Finding, Plan, plan_notices
from duly.service.notice_words import Place, closed, deaths_detail, message
from duly.service.notices import MOST_DEAD_LETTERS, TYPES, Notice, get_notice, notice_job
from duly.service.plans import AccountLimits, read_limits
from duly.upkeep.running import every
from duly.worker.waiting import first_of

log = logging.getLogger("duly.service")

LOOK_EVERY = timedelta(seconds=30)
BATCH = 50
MOST_BREAKERS = 1_000
MOST_SCHEDULES = 1_000
MOST_ACCOUNTS = 200
COUNTED_TO = 1_000_000
"""Stored jobs are counted so far, so a larger limit of them is told of when so many are a part of it that counts."""
NEAR, FULL, CALM = 0.8, 1.0, 0.7
"""From this share of a limit on it is near, or met; below the last one an episode of it is over."""

_RIVALS = timedelta(seconds=2)
_BREATH = timedelta(milliseconds=200)

_TURN = "select place from duly.notice_watch where next_at <= clock_timestamp() for update skip locked"
_NEXT = """
    select n.id from duly.notice n
      join duly.project p on p.id = n.project_id
      join duly.account a on a.id = p.account_id
     where ($1::uuid is null or n.id > $1) and p.deleted_at is null and a.deleted_at is null and a.disabled_at is null
     order by n.id limit $2 for key share of n
"""
_LIMITED = """
    select a.id, a.public_id, a.name, (coalesce(p.limits, '{}') || a.limits)::text as limits
      from duly.account a left join duly.plan p on p.name = a.plan
     where case when $1::integer is null then a.id > $2 else a.id = $1 end
       and a.deleted_at is null and a.disabled_at is null
       and (coalesce(p.limits, '{}') || a.limits) ?| array['monthly_quota', 'stored']
     order by a.id limit $3
"""
_PLACES = """
    select p.id, a.public_id as account_id, a.name as account, p.public_id as project_id, p.name as project
      from duly.project p join duly.account a on a.id = p.account_id where p.id = any ($1::integer[])
"""
_ACCOUNTS = "select a.id, a.public_id, a.name from duly.account a where a.id = any ($1::integer[])"
_EPISODES = "select e.type, e.key, e.level, e.began_at, e.told_at from duly.notice_episode e where e.notice_id = $1"
_BEGIN = """
    insert into duly.notice_episode (notice_id, type, key, level, began_at, told_at)
    select $1, e.type, e.key, e.level, e.began_at, e.told_at
      from unnest($2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::timestamptz[])
           e (type, key, level, began_at, told_at)
    on conflict (notice_id, key) do update set level = excluded.level, told_at = excluded.told_at
"""


class NoticeWatch:
    """Looks, and makes the jobs that tell. `policy`: where jobs may go."""

    def __init__(
        self, db: Database, *, policy: EgressPolicy, keyring: Keyring = NO_KEYRING, batch: int = BATCH
    ) -> None:
        self._db = db
        self._policy = policy
        self._creator = Creator(db, keyring=keyring)
        self._batch = batch
        self._reminder = Reminder(time.monotonic)
        self.told_total = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Look until `stopping`; not at once, since what a start catches up with is no news."""
        await first_of(stopping, limit_s=LOOK_EVERY.total_seconds())
        await every(self.step, stopping, self._db.trouble, "notices")

    async def step(self) -> timedelta:
        """See to one batch of notices, if it is time and nobody else does; returns the delay until the next step."""
        wait_s: float = await self._db.fetchval(
            "select extract(epoch from next_at - clock_timestamp())::float8 from duly.notice_watch"
        )
        if wait_s > 0:
            return min(timedelta(seconds=wait_s), LOOK_EVERY) * random.uniform(1, 1.25)
        async with self._db.transaction() as tx:
            turn = await tx.fetchrow(_TURN)
            if turn is None:
                return _RIVALS * random.uniform(0.75, 1.25)
            ids = [row["id"] for row in await tx.fetch(_NEXT, turn["place"], self._batch)]
            look = _Look(tx, await server_now(tx))
            told = 0
            for notice_id in ids:
                told += await self._see_to(look, notice_id)
            is_over = len(ids) < self._batch
            pause = LOOK_EVERY if is_over else timedelta(0)
            await tx.execute(
                "update duly.notice_watch set place = $1, next_at = clock_timestamp() + $2::interval",
                None if is_over else ids[-1],
                pause,
            )
        self.told_total += told
        if told:
            log.info("told of what needs a person", extra={"notices": told})
        return pause or _BREATH

    async def _see_to(self, look: _Look, notice_id: UUID) -> int:
        """Tell one URL what there is to tell; how many jobs that makes. One that cannot be told keeps nobody else from
        it.
        """
        try:
            async with look.tx.connection.transaction():
                return await self._tell(look, await get_notice(look.tx, notice_id))
        except DatabaseUnavailableError:
            raise
        except asyncpg.PostgresError as error:
            if not isinstance(error, asyncpg.DataError | asyncpg.IntegrityConstraintViolationError):
                raise
            self._complain(notice_id, type(error).__name__)
        except Exception as error:  # one that nobody foresaw is no reason for the others to be silent
            self._complain(notice_id, str(error))
        return 0

    def _complain(self, notice_id: UUID, why: str) -> None:
        if self._reminder.is_due(str(notice_id)):
            log.error("a notice cannot be told", extra={"notice_id": str(notice_id), "error": why})

    async def _tell(self, look: _Look, notice: Notice) -> int:
        before = [Episode(**dict(row)) for row in await look.tx.fetch(_EPISODES, notice.id)]
        seen = await _seen(look, notice)
        plan = plan_notices(seen.findings, before, look.now, seen.was_looked_at)
        jobs = [
            notice_job(notice, told, now=look.now, policy=self._policy) for told in await _messages(look, notice, plan)
        ]
        await _write(look.tx, notice, plan, seen)
        if jobs:
            await self._creator.create_all(notice.owner, jobs, session=look.tx)
        return len(jobs)


@dataclass(slots=True)
class _Look:
    """What one step has read: notices of one scope share it."""

    tx: Session
    now: datetime
    _breakers: dict[int | None, list[OpenBreaker]] = field(default_factory=dict)
    _deaths: dict[tuple[Any, ...], list[Deaths]] = field(default_factory=dict)
    _silent: dict[tuple[Any, ...], list[SilentSchedule]] = field(default_factory=dict)

    async def breakers(self, account_id: int | None) -> list[OpenBreaker]:
        if account_id not in self._breakers:
            self._breakers[account_id] = await list_breakers(self.tx, account_id)
        return self._breakers[account_id]

    async def deaths(self, account_id: int | None, project_id: int | None, window: timedelta) -> list[Deaths]:
        scope = (account_id, project_id, window)
        if scope not in self._deaths:
            self._deaths[scope] = await recent_deaths(self.tx, account_id, project_id, window, MOST_DEAD_LETTERS)
        return self._deaths[scope]

    async def silent(self, account_id: int | None, project_id: int | None) -> list[SilentSchedule]:
        scope = (account_id, project_id)
        if scope not in self._silent:
            self._silent[scope] = await silent_schedules(self.tx, account_id, project_id, MOST_SCHEDULES)
        return self._silent[scope]

    async def places(self, project_ids: Iterable[int]) -> dict[int, Place]:
        rows = await self.tx.fetch(_PLACES, sorted(set(project_ids)))
        return {row["id"]: Place(row["account_id"], row["account"], row["project_id"], row["project"]) for row in rows}

    async def accounts(self, account_ids: Iterable[int]) -> dict[int, Place]:
        rows = await self.tx.fetch(_ACCOUNTS, sorted(set(account_ids)))
        return {row["id"]: Place(row["public_id"], row["name"]) for row in rows}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found for a notice. `quotas`: the accounts from the one number, excluded, to the other had their turn;
    None: all of them.
    """

    findings: Sequence[Finding]
    quotas: tuple[int, int] | None = None

    def was_looked_at(self, episode: Episode) -> bool:
        if episode.type != "quota_near" or self.quotas is None:
            return True
        after, upto = self.quotas
        return after < int(episode.key.split(":")[1]) <= upto


async def _seen(look: _Look, notice: Notice) -> _Seen:
    types = notice.settings.types
    findings: list[Finding] = []
    if "dead_letters" in types:
        findings += await _dead(look, notice)
    if "breaker_opened" in types or "breaker_closed" in types:
        findings += await _open(look, notice)
    if "schedule_silent" in types:
        findings += await _silent(look, notice)
    if "quota_near" not in types:
        return _Seen(findings)
    near, turn = await _near(look, notice)
    return _Seen([*findings, *near], turn)


async def _dead(look: _Look, notice: Notice) -> list[Finding]:
    """One finding of all that is dead: it begins at the threshold and is over below half of it."""
    settings = notice.settings
    deaths = await look.deaths(notice.about_account, notice.about_project, settings.dead_within)
    dead = sum(one.dead for one in deaths)
    if not dead or 2 * dead < settings.dead_letters:
        return []
    if dead < settings.dead_letters:
        return [Finding("dead_letters", "dead_letters", level=0)]
    places = await look.places(one.project_id for one in deaths)
    return [Finding("dead_letters", "dead_letters", deaths_detail(notice, deaths, places))]


async def _open(look: _Look, notice: Notice) -> list[Finding]:
    """The open breakers of the account, but for that of the notice's own target."""
    own = (notice.owner.account_id, host_of(json.dumps({"url": notice.settings.url})))
    found = [one for one in await look.breakers(notice.about_account) if (one.account_id, one.host) != own]
    return [
        Finding(
            "breaker_opened",
            f"breaker:{one.account_id}:{one.host}",
            {
                "host": one.host,
                "opened_at": show_moment(one.opened_at),
                "failures": one.failures,
                "last_error": one.last_error,
                "account_number": one.account_id,
            },
        )
        for one in sorted(found, key=lambda one: (one.opened_at, one.account_id, one.host))[:MOST_BREAKERS]
    ]


async def _silent(look: _Look, notice: Notice) -> list[Finding]:
    """Parked is worse than late: nothing fires it again by itself."""
    return [
        Finding(
            "schedule_silent",
            f"schedule:{one.schedule_id}",
            {
                "id": str(one.schedule_id),
                "name": one.name,
                "state": "parked" if one.state == "parked" else "overdue",
                "due_at": None if one.due_at is None else show_moment(one.due_at),
                "why": one.why,
                "project_number": one.project_id,
            },
            2 if one.state == "parked" else 1,
        )
        for one in await look.silent(notice.about_account, notice.about_project)
    ]


async def _near(look: _Look, notice: Notice) -> tuple[list[Finding], tuple[int, int] | None]:
    """The limits that are near, and whose turn it was: of everybody's accounts, some at each look."""
    rows = await look.tx.fetch(_LIMITED, notice.about_account, notice.quota_place, MOST_ACCOUNTS)
    found: list[Finding] = []
    for row in rows:
        place = Place(row["public_id"], row["name"]).to_json()
        for name, used, limit in await _used(look.tx, row["id"], read_limits(row["limits"])):
            share = used / limit
            if share >= CALM:
                level = 100 if share >= FULL else 80 if share >= NEAR else 0
                detail = {"name": name, "used": used, "limit": limit, "percent": int(100 * share), **place}
                found.append(Finding("quota_near", f"quota:{row['id']}:{name}", detail, level))
    if notice.about != "everything":
        return found, None
    upto = rows[-1]["id"] if len(rows) == MOST_ACCOUNTS else (1 << 31) - 1
    return found, (notice.quota_place, upto)


async def _used(tx: Session, account_id: int, limits: AccountLimits) -> list[tuple[str, int, int]]:
    """Name, use and size of each limit of an account that can be near."""
    used: list[tuple[str, int, int]] = []
    if limits.monthly_quota:
        used.append(("monthly_quota", await quota_taken(tx, account_id), limits.monthly_quota))
    if limits.stored:
        used.append(("stored", await stored_jobs(tx, account_id, min(limits.stored, COUNTED_TO)), limits.stored))
    return used


async def _messages(look: _Look, notice: Notice, plan: Plan) -> list[dict[str, Any]]:
    tell = {kind: list(findings) for kind, findings in plan.tell.items()}
    over = [closed(episode) for episode in plan.ended if episode.type == "breaker_opened"]
    if over:
        tell["breaker_closed"] = over
    return [
        message(notice, kind, await _placed(look, notice, tell[kind]), plan.again, look.now)
        for kind in TYPES
        if kind in tell and kind in notice.settings.types
    ]


async def _placed(look: _Look, notice: Notice, findings: Sequence[Finding]) -> list[Finding]:
    """The same, with names for the numbers of their projects and accounts; without them, where it is of one project."""
    wider = notice.about != "project"
    projects = await look.places(_numbers(findings, "project_number") if wider else ())
    accounts = await look.accounts(_numbers(findings, "account_number") if wider else ())

    def placed(detail: Mapping[str, Any]) -> dict[str, Any]:
        named = {name: value for name, value in detail.items() if not name.endswith("_number")}
        place = projects.get(detail.get("project_number", 0)) or accounts.get(detail.get("account_number", 0))
        return named if place is None else {**named, **place.to_json()}

    return [Finding(one.type, one.key, placed(one.detail), one.level) for one in findings]


def _numbers(findings: Sequence[Finding], name: str) -> list[int]:
    return [one.detail[name] for one in findings if name in one.detail]


async def _write(tx: Session, notice: Notice, plan: Plan, seen: _Seen) -> None:
    if plan.episodes:
        columns = zip(*((e.type, e.key, e.level, e.began_at, e.told_at) for e in plan.episodes), strict=True)
        await tx.execute(_BEGIN, notice.id, *map(list, columns))
    if plan.ended:
        keys = [episode.key for episode in plan.ended]
        await tx.execute(
            "delete from duly.notice_episode where notice_id = $1 and key = any ($2::text[])", notice.id, keys
        )
    if seen.quotas is not None and notice.about == "everything":
        place = seen.quotas[1] if seen.quotas[1] < (1 << 31) - 1 else 0
        if place != notice.quota_place:
            await tx.execute("update duly.notice set quota_place = $2 where id = $1", notice.id, place)
