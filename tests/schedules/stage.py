"""Schedules made in few words, and the database's stored times moved instead of waiting for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.http import EgressPolicy
from duly.model import Report, Settlement
from duly.queue import (
    ClaimCursor,
    Database,
    JobView,
    Owner,
    claim,
    list_jobs,
    live_segments,
    register,
    server_now,
    settle,
)
from duly.service import Keyring
from duly.service.fire_plan import Policy
from duly.service.firing import Firer
from duly.service.schedules import (
    FireView,
    NewSchedule,
    Schedule,
    create_schedule,
    get_schedule,
    list_fires,
)
from duly.service.templates import Template
from duly.service.timing import Timing

KEYRING = Keyring([("test", bytes(32))])
TARGET = "http://127.0.0.1:9999/hook"
MINUTELY = "* * * * *"
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def template(**settings: Any) -> Template:
    """Calls TARGET with a secret header and a body."""
    payload = {"url": TARGET, "method": "POST", "headers": [["X-Api-Key", "for-nobody-else"]]}
    return Template(**{"kind": "http", "payload": payload, "body": b"the body", **settings})


@dataclass
class Stage:
    """One project on a database, and a firer."""

    db: Database
    owner: Owner

    def firer(self, **settings: Any) -> Firer:
        policy = EgressPolicy.parse(allow_loopback=True)
        return Firer(self.db, **{"keyring": KEYRING, "policy": policy, **settings})

    async def schedule(
        self,
        *,
        owner: Owner | None = None,
        ago: timedelta = timedelta(0),
        made_of: Template | None = None,
        **settings: Any,
    ) -> Schedule:
        """Create one, as if it had been created `ago`: its fires since then are due and nobody has made them.

        The settings are those of Timing, Policy and NewSchedule together.
        """
        now = await server_now(self.db) - ago
        timing = {name: settings.pop(name) for name in Timing.__dataclass_fields__ if name in settings}
        policy = {name: settings.pop(name) for name in Policy.__dataclass_fields__ if name in settings}
        if not timing.keys() & {"cron", "every", "at"}:
            timing["cron"] = MINUTELY
        anchor = timing.pop("anchor", now + timing.get("every", timedelta(0)))
        new = NewSchedule(Timing(anchor, **timing), Policy(**policy), made_of or template(), **settings)
        schedule, _ = await create_schedule(self.db, owner or self.owner, new, keyring=KEYRING, now=now)
        return schedule

    async def fire(self, **settings: Any) -> int:
        """Step a fresh firer until nothing is due; how many jobs it made."""
        firer = self.firer(**settings)
        for _ in range(1000):
            if await firer.step() > timedelta(0) and firer._swept_at > 0:
                return firer.fired_total
        raise AssertionError("there is no end of it")

    async def now(self) -> datetime:
        return await server_now(self.db)

    async def read(self, schedule: Schedule | UUID) -> Schedule:
        schedule_id = schedule if isinstance(schedule, UUID) else schedule.id
        found = await get_schedule(self.db, schedule_id, None)
        assert found is not None
        return found

    async def fires(self, schedule: Schedule) -> list[FireView]:
        """Its ledger, the first fire first."""
        return (await list_fires(self.db, schedule.id, limit=5000))[::-1]

    async def jobs(self, owner: Owner | None = None) -> list[JobView]:
        """The jobs of the project, by the time they were to run."""
        jobs = await list_jobs(self.db, owner or self.owner, limit=5000)
        return sorted(jobs, key=lambda job: job.run_at)

    async def move_back(self, schedule: Schedule, by: timedelta) -> None:
        """As if so much time had passed: all that the database knows of the schedule happened so much earlier."""
        await self.db.execute(
            """update duly.schedule_turn
               set next_fire_at = next_fire_at - $2::interval, look_at = look_at - $2::interval,
                   since_at = since_at - $2::interval, last_fire_at = last_fire_at - $2::interval
               where schedule_id = $1""",
            schedule.id,
            by,
        )
        await self.db.execute(
            "update duly.schedule set anchor_at = anchor_at - $2::interval where id = $1", schedule.id, by
        )
        await self.db.execute(
            "update duly.fire set fire_at = fire_at - $2::interval where schedule_id = $1", schedule.id, by
        )

    async def end_jobs(self) -> int:
        """Whatever waits or runs is over."""
        worker = await register(self.db, "test", ["http"], None, 1000, HOUR)
        claimed = await claim(
            self.db, worker, 1000, ["http"], None, ClaimCursor(), await live_segments(self.db, "ready")
        )
        report = Report("success", status_code=200)
        await settle(
            self.db, worker, [Settlement(j.id, j.attempt, "succeeded", result=None, report=report) for j in claimed]
        )
        return len(claimed)


def key(n: int) -> tuple[str, bytes]:
    """An encryption key of another ring."""
    return f"k{n}", bytes([n]) * 32
