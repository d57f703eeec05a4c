"""How each path is set up, which call and statement it is, and how the database shows that it was committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.ids import uuid7
from duly.queue import Database, Session
from matrix.refusing import NEW_TABLE
from matrix.victim import DRAINING_HANDLER, FINISH, HANDLER
from support.crash_driver import KIND
from support.engine import Engine
from support.old_days import finished, make_day
from support.sessions import until

Role = Literal["work", "keep", "ask"]


async def _nothing() -> None:
    """Not every scene has something left to do."""


@dataclass
class Stage:
    """One cell's database, the jobs that take part, and what is still to be done when the fault was met."""

    db: Database
    dsn: str
    engine: Engine
    job_gate: Path
    jobs: list[UUID] = field(default_factory=list)
    afterwards: Callable[[], Awaitable[None]] = _nothing

    async def enqueue(self, n: int = 1, **settings: Any) -> None:
        self.jobs += await self.engine.enqueue(n, kind=KIND, payload=FINISH, **settings)

    async def enqueue_at_gate(self, n: int) -> None:
        """Jobs that end when the job gate is open."""
        order = {"do": "wait", "gate": str(self.job_gate)}
        self.jobs += await self.engine.enqueue(n, kind=KIND, payload=order)


@dataclass(frozen=True, slots=True)
class Scene:
    """`call` is the engine call with the point, `words` its statement as it is on the wire, `committed` true once it
    took effect (None: nothing to see), `write` what a full disk refuses, `leaves` true at the end. `busy`: the victim
    runs a job meanwhile. `drains`: it is told to stop while it does. `unheard`: a claim's answer was lost before.
    """

    role: Role
    call: str
    words: str
    committed: str | None
    write: str | None
    prepare: Callable[[Stage], Awaitable[None]]
    worth: Literal["any", "rows", "true"] = "any"
    refusals: int = 2
    leaves: str = "select true"
    busy: bool = False
    drains: bool = False
    unheard: bool = False


async def _ids(stage: Stage) -> None:
    stage.jobs = [uuid7() for _ in range(3)]


async def _one_ready(stage: Stage) -> None:
    stage.job_gate.touch()
    await stage.enqueue_at_gate(1)


async def _three_ready(stage: Stage) -> None:
    stage.job_gate.touch()
    await stage.enqueue_at_gate(3)


async def _one_that_waits(stage: Stage) -> None:
    await stage.enqueue_at_gate(1)


async def _one_for_later(stage: Stage) -> None:
    await stage.enqueue(delay=timedelta(hours=1))


async def _three_due(stage: Stage) -> None:
    await stage.enqueue(3, delay=timedelta(milliseconds=100))
    await until(lambda: stage.db.fetchval("select every(run_at < clock_timestamp()) from duly.scheduled"))


async def _one_dead(stage: Stage) -> None:
    job = await stage.engine.running(kind=KIND, payload=FINISH)
    await stage.engine.finish(job, "dead")
    stage.jobs = [job.id]


async def _three_lost(stage: Stage) -> None:
    """Claimed by a worker that has not renewed for longer than its lease."""
    await stage.enqueue(3)
    assert len(await stage.engine.claim(kinds=(KIND,))) == 3
    await stage.engine.expire_worker()


async def _before_and_after(stage: Stage) -> None:
    """One job in the segment that is closed, one in the segment that is opened."""
    await stage.enqueue()
    stage.afterwards = stage.enqueue


async def _ten_segments(stage: Stage) -> None:
    """More closed segments than a keeper leaves alone, one job in each."""
    for _ in range(10):
        await stage.enqueue()
        await queue.advance(stage.db)


async def _late_transaction(stage: Stage) -> None:
    """Closed segments: one with a job, one that an open transaction will bring a row into, one that is empty, one with
    a job. The first job makes the lane, which the open transaction must not: others would wait for it.
    """
    await stage.enqueue()
    await queue.advance(stage.db)
    connection = await asyncpg.connect(stage.dsn)
    transaction = connection.transaction()
    await transaction.start()
    late = await stage.engine.enqueue_on(Session(connection, stage.db.schema), kind=KIND, payload=FINISH)
    await queue.advance(stage.db)
    await queue.advance(stage.db)
    await stage.enqueue()
    await queue.advance(stage.db)

    async def commit() -> None:
        await transaction.commit()
        await connection.close()
        stage.jobs.append(late)

    stage.afterwards = commit


async def _three_empty_segments(stage: Stage) -> None:
    for _ in range(3):
        await queue.advance(stage.db)
    await stage.enqueue(3)
    await queue.advance(stage.db)


async def _no_days(stage: Stage) -> None:
    """One job, and no partition for the days after today."""
    await stage.enqueue()
    await stage.db.execute(
        """do $$
        declare
            v_table text;
        begin
            for v_table in
                select c.relname from pg_class c
                where c.relnamespace = 'duly'::regnamespace and c.relkind = 'r'
                  and c.relname ~ '^(job|attempt|outcome)_[0-9]{8}$'
                  and right(c.relname, 8) > to_char(now() at time zone 'utc', 'YYYYMMDD')
            loop
                execute format('drop table duly.%I', v_table);
            end loop;
        end $$"""
    )


async def _an_old_day(stage: Stage) -> None:
    """One job, and a day of long ago: two jobs that are old enough to go and a dead letter that is not."""
    await stage.enqueue()
    day = await make_day(stage.db, 40)
    await finished(stage.engine, day, 2)
    await finished(stage.engine, day, 1, state="dead")


async def _a_day_of_the_past(stage: Stage) -> None:
    """One job, and a day of which nothing is to be kept."""
    await stage.enqueue()
    await finished(stage.engine, await make_day(stage.db, 100), 3)


def _by_hand(call: str, prepare: Callable[[Stage], Awaitable[None]], committed: str, write: str) -> Scene:
    return Scene("ask", call, f"duly.{call}(", committed, write, prepare)


_LEASED = "select exists (select from duly.lease)"
_DAYS = "select to_regclass(to_char((now() at time zone 'utc')::date + %d, '\"duly.job_\"YYYYMMDD')) is not null"
_ADVANCED = "select last_value > 1 from duly.segment_current"
_RETIRED = "select exists (select from duly.retired)"
_FORGOTTEN = """select not exists (select from duly.retired where line = 'ready' and segment < 4)
                and (select last_value from duly.ready_floor) >= 4"""
_RENEWED = "select every(w.heartbeat_at > l.claimed_at) from duly.worker w join duly.lease l on l.worker_id = w.id"
_OLD = "select count(*) = 1 from duly.job where id < duly.uuid7_floor(now() - interval '35 days')"
_DROPPED = "select to_regclass(to_char((now() at time zone 'utc')::date - 100, '\"duly.job_\"YYYYMMDD')) is null"
_UNDER_WAY = Scene("work", HANDLER, "", None, None, _one_ready)

SCENES: dict[str, Scene] = {
    "enqueue": _by_hand("enqueue", _ids, "select exists (select from duly.job)", "insert on job"),
    "promote": Scene(
        "keep", "promote", "duly.promote(", "select exists (select from duly.ready)", "insert on ready", _three_due
    ),
    "claim": Scene("work", "claim", "duly.claim(", _LEASED, "insert on lease", _three_ready, worth="rows"),
    "give back": Scene(
        "work", "give_back", "duly.give_back(", "select not exists (select from duly.lease)", "insert on ready",
        _three_ready, unheard=True,
    ),
    "execution": _UNDER_WAY,
    "settle": Scene(
        "work", "settle", "duly.settle(", "select exists (select from duly.outcome)", "insert on outcome", _one_ready
    ),
    "heartbeat": Scene(
        "work", "heartbeat", "duly.heartbeat(", _RENEWED,
        "update on worker", _one_that_waits, refusals=1, busy=True,
    ),
    "rescue": Scene(
        "keep", "rescue", "duly.rescue(", "select exists (select from duly.attempt)", "insert on attempt", _three_lost,
        worth="rows",
    ),
    "advance": Scene("ask", "advance", "duly.advance(", _ADVANCED, None, _before_and_after),
    "move": Scene(
        "keep", "move", "duly.move_segment(", "select not exists (select from duly.ready where segment = 1)",
        "update on ready", _ten_segments, leaves="select (select last_value from duly.ready_floor) > 1",
    ),
    "retire": Scene(
        "keep", "retire", "duly.retire_segment(", _RETIRED, "insert on retired", _late_transaction, worth="true",
        leaves="select (select last_value from duly.ready_floor) > 3",
    ),
    "raise floor": Scene(
        "keep", "raise_floor", "duly.raise_floor(", _FORGOTTEN, "delete on retired", _three_empty_segments,
        leaves=_FORGOTTEN,
    ),
    "new days": Scene("keep", "add_days", "duly.add_days(", _DAYS % 1, NEW_TABLE, _no_days, leaves=_DAYS % 4),
    "prune": Scene("keep", "prune_day", "duly.prune_day(", _OLD, "delete on outcome", _an_old_day, leaves=_OLD),
    "drop day": Scene("keep", "drop_day", "duly.drop_day(", _DROPPED, None, _a_day_of_the_past, leaves=_DROPPED),
    "cancel": _by_hand("cancel", _one_for_later, "select exists (select from duly.outcome)", "insert on outcome"),
    "run now": _by_hand("run_now", _one_for_later, "select exists (select from duly.ready)", "insert on ready"),
    "redrive": _by_hand("redrive", _one_dead, "select exists (select from duly.redrive)", "insert on redrive"),
    "drain, job runs": Scene("work", DRAINING_HANDLER, "", None, None, _one_ready, busy=True, drains=True),
    "drain, deregister": Scene(
        "work", "deregister", "duly.deregister(", "select not exists (select from duly.worker)", "delete on worker",
        _one_that_waits, refusals=1, busy=True, drains=True,
    ),
}  # fmt: skip
