"""Every fire once, whatever happens: `python -m bench.fires [--seconds N] [--schedules N]`, two minutes by default.

Three worker processes with wall clocks that are two minutes fast, right, and two minutes slow fire schedules of every
second while they are killed and started again at random. At the end each schedule must have exactly one job for each
second. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from bench.setting import open_setting
from bench.skewed_clock import SkewedClock, compile_preload
from duly.cli.stopping import run_loop
from duly.queue import Database, Owner, server_now
from duly.service.fire_plan import Policy
from duly.service.keyring import NO_KEYRING
from duly.service.schedules import NewSchedule, create_schedule
from duly.service.templates import Template
from duly.service.timing import Timing

SKEWS = (timedelta(minutes=2), timedelta(0), timedelta(minutes=-2))
TARGET = "http://127.0.0.1:9/"

_CATCH_UP_LIMIT_S = 60.0
_AUDIT = """
    with fires as (
        select f.schedule_id, f.fire_at, f.outcome, f.job_id from duly.fire f where f.fire_at <= $1
    ), per_schedule as (
        select f.schedule_id, count(*) as fires, extract(epoch from max(f.fire_at) - min(f.fire_at)) + 1 as seconds,
               max(f.fire_at) as last, min(f.fire_at) as first
        from fires f group by f.schedule_id
    )
    select (select count(*) from duly.schedule) as schedules,
           (select count(*) from per_schedule p where p.fires <> p.seconds or p.last < $1 or p.first > $2) as with_gaps,
           (select count(*) from fires f where f.outcome <> 'made') as not_made,
           (select count(*) from fires f
            where not exists (select from duly.job j where j.id = f.job_id)) as without_job,
           (select count(*) from duly.job j where j.run_at <= $1) as jobs,
           (select count(*) from fires) as fires,
           (select count(*) from (select run_at, payload->>'url' from duly.job where run_at <= $1
                                  group by 1, 2 having count(*) > 1) d) as doubled
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found. Sound: one job a schedule and second, each with its row, from the first second to the last."""

    schedules: int
    with_gaps: int
    not_made: int
    without_job: int
    jobs: int
    fires: int
    doubled: int
    kills: int

    @property
    def sound(self) -> bool:
        return self.jobs == self.fires > 0 and not (self.with_gaps or self.not_made or self.without_job or self.doubled)


@dataclass
class Fleet:
    """Worker processes as `duly worker` starts them, which serve a queue that nobody fills: they only fire."""

    dsn: str
    folder: Path
    clocks: Sequence[SkewedClock]
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: int = 0

    def start(self, place: int) -> None:
        command = [sys.executable, "-m", "duly", "worker", "--database-url", self.dsn, "--no-encryption"]
        command += ["--queues", "nothing", "--allow", "127.0.0.0/8", "--allow-port", "9", "--lease", "5"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        with (self.folder / f"worker-{place}.log").open("ab") as log:
            self.running[place] = subprocess.Popen(
                command, env={**kept, **self.clocks[place].environment}, stdout=log, stderr=log
            )

    def kill(self, place: int) -> None:
        process = self.running.pop(place)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        self.kills += 1

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait(30)
        self.running.clear()


async def fire_through_kills(
    db: Database, dsn: str, owner: Owner, folder: Path, *, schedules: int, seconds: float, rng: random.Random
) -> Audit:
    """Make the schedules, fire them for so long under kills, let the workers catch up, and audit."""
    preload = compile_preload(folder)
    clocks = [SkewedClock.make(preload, folder / f"clock-{n}", skew) for n, skew in enumerate(SKEWS)]
    fleet = Fleet(dsn, folder, clocks)
    begun_at = await _make(db, owner, schedules)
    try:
        for place in range(len(SKEWS)):
            fleet.start(place)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            place = rng.randrange(len(SKEWS))
            if place in fleet.running:
                fleet.kill(place)
            else:
                fleet.start(place)
        for place in set(range(len(SKEWS))) - set(fleet.running):
            fleet.start(place)
        until = await server_now(db)
        await _caught_up(db, until)
    finally:
        await asyncio.to_thread(fleet.end)
    row = await db.fetchrow(_AUDIT, until.replace(microsecond=0), begun_at + timedelta(seconds=1))
    assert row is not None
    return Audit(**dict(row), kills=fleet.kills)


async def _make(db: Database, owner: Owner, count: int) -> datetime:
    now = await server_now(db)
    for n in range(count):
        template = Template("http", {"url": f"{TARGET}{n}", "method": "POST", "headers": []})
        new = NewSchedule(Timing(now, cron="* * * * * *"), Policy(), template)
        await create_schedule(db, owner, new, keyring=NO_KEYRING, now=now)
    return now


async def _caught_up(db: Database, until: datetime) -> None:
    """Wait until every schedule is past a moment."""
    async with asyncio.timeout(_CATCH_UP_LIMIT_S):
        while await db.fetchval("select exists (select from duly.schedule_turn t where t.next_fire_at <= $1)", until):
            await asyncio.sleep(0.2)


def main() -> int:
    """0 if the audit is sound."""
    parser = argparse.ArgumentParser(prog="python -m bench.fires", description="Fire through kills, and audit.")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    told = parser.parse_args()
    seed = random.randrange(1 << 32) if told.seed is None else told.seed

    async def run() -> Audit:
        async with setting.database() as place, await Database.open(place.dsn) as db:
            return await fire_through_kills(
                db,
                place.dsn,
                place.owner,
                setting.folder,
                schedules=told.schedules,
                seconds=told.seconds,
                rng=random.Random(seed),
            )

    with open_setting(False) as setting:
        audit = run_loop(run)
    print(f"seed {seed}: {audit}")
    print("sound" if audit.sound else "NOT SOUND")
    return 0 if audit.sound else 1


if __name__ == "__main__":
    sys.exit(main())
