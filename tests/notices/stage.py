"""A project that has things to tell, and a watch that is moved by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from duly.http import EgressPolicy
from duly.model import DeadReason, Report, RetryPolicy
from duly.queue import Database, Owner
from duly.queue.breaker import open_breaker
from duly.service import Project, create_account, create_project, list_accounts
from duly.service.notices import TYPES, About, Notice, NoticeSettings, put_notice
from duly.service.noticing import NoticeWatch
from support.engine import Engine, new_worker, settled

MINUTE = timedelta(minutes=1)
URL = "http://127.0.0.1:9999/notices"


@dataclass
class Stage:
    """One project, its engine, and everybody's notices."""

    db: Database
    project: Project
    engine: Engine
    policy: EgressPolicy = field(default_factory=lambda: EgressPolicy.parse(allow_loopback=True))

    @classmethod
    async def of(cls, db: Database) -> Stage:
        account = await create_account(db, f"account-{len(await list_accounts(db))}")
        project = await create_project(db, account.id, "main")
        return cls(db, project, Engine(db, project.owner, await new_worker(db, MINUTE)))

    @property
    def owner(self) -> Owner:
        return self.project.owner

    def watch(self, **settings: Any) -> NoticeWatch:
        return NoticeWatch(self.db, **{"policy": self.policy, **settings})

    async def notice(
        self, *types: Any, about: About = "project", account_id: UUID | None = None, url: str = URL, **settings: Any
    ) -> Notice:
        given = NoticeSettings(url, types or TYPES, **settings)
        notice, _ = await put_notice(self.db, self.project.id, about, account_id, given, within=None)
        return notice

    async def due(self) -> None:
        """As if it were time to look."""
        await self.db.execute("update duly.notice_watch set next_at = now()")

    async def look(self, **settings: Any) -> list[dict[str, Any]]:
        """Look once, whoever looked when; what that told, as it is to be delivered."""
        before = await self.told()
        await self.due()
        await self.watch(**settings).step()
        return (await self.told())[len(before) :]

    async def told(self) -> list[dict[str, Any]]:
        """All that was told so far."""
        rows = await self.db.fetch(
            """select convert_from(j.body, 'UTF8') as body from duly.job j
               where j.kind = 'http' and j.payload ? 'notice' order by j.id"""
        )
        return [json.loads(row["body"]) for row in rows]

    async def die(self, number: int = 1, host: str = "a.example", status: int = 500, **settings: Any) -> list[UUID]:
        """So many deliveries to a host are dead."""
        payload = {"url": f"https://user:pass@{host}/in?key=hidden", "method": "POST", "headers": []}
        given = {"retry": RetryPolicy(max_attempts=1), "kind": "http", "queue": "dying", "payload": payload, **settings}
        await self.engine.enqueue(number, **given)
        jobs = await self.engine.claim(number, kinds=[given["kind"]], queues=["dying"])
        assert len(jobs) == number
        report = Report("http_error", f"the target answered {status}", status)
        dead = [settled(job, "dead", reason=DeadReason.ATTEMPTS_EXHAUSTED, report=report) for job in jobs]
        assert not await self.engine.settle(*dead)
        return [job.id for job in jobs]

    async def open(self, *hosts: str) -> None:
        for host in hosts:
            await open_breaker(self.db, self.owner.account_id, host, 20, "connect_refused", MINUTE, MINUTE)

    async def age(self, by: timedelta) -> None:
        """As if so much time had passed since what has happened."""
        await self.db.execute("update duly.outcome set finished_at = finished_at - $1::interval", by)
        await self.db.execute(
            "update duly.notice_episode set began_at = began_at - $1::interval, told_at = told_at - $1::interval", by
        )


def types_of(told: Sequence[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in told]
