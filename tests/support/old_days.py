"""Days long past, with finished jobs in them: what retention is about, without waiting for it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from duly.model import uuid7
from duly.queue import Database
from support.engine import Engine


async def make_day(db: Database, age_days: int) -> date:
    """The partitions of the day `age_days` ago."""
    day: date = await db.fetchval("select (now() at time zone 'utc')::date - $1::int", age_days)
    for fact in ("job", "job_tag", "attempt", "outcome"):
        name = f"{fact}_{day:%Y%m%d}"
        await db.execute(f"create table duly.{name} (like duly.{fact} including defaults including constraints)")
        bounds = [str(uuid7_floor(day + timedelta(days=n))) for n in (0, 1)]
        await db.execute(
            f"alter table duly.{fact} attach partition duly.{name} for values from ('{bounds[0]}') to ('{bounds[1]}')"
        )
    return day


def uuid7_floor(day: date) -> UUID:
    milliseconds = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    return UUID(int=milliseconds << 80)


async def finished(
    engine: Engine, day: date, n: int, *, state: str = "succeeded", days_after: float = 0.1, redriven: bool = False
) -> list[UUID]:
    """n jobs of that day which ended `days_after` it began, each with one attempt."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    ids = [uuid7(int(start.timestamp() * 1000) + k * 80_000_000 // max(n, 1)) for k in range(n)]
    values = (ids, engine.owner.account_id, engine.owner.project_id, start + timedelta(days=days_after), state)
    await engine.db.execute(
        "select duly.make_lanes(array[$1::integer], array[$2::integer], '{default}', '{k}', '{}')",
        *values[1:3],
    )
    async with engine.db.transaction() as session:
        await session.execute(
            """insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts,
                                     timeout_seconds, run_at, created_at, payload)
               select id, $2, $3, (select min(l.id) from duly.lane l), 'default', 'k', 5, 8, 30, $4, $4, '{}'
               from unnest($1::uuid[]) id""",
            *values[:4],
        )
        await session.execute(
            """insert into duly.attempt (job_id, number, worker_id, trigger, started_at, finished_at, outcome)
               select id, 1, 1, 'schedule', $2, $2, 'success' from unnest($1::uuid[]) id""",
            ids,
            values[3],
        )
        await session.execute(
            """insert into duly.outcome (job_id, account_id, state, attempt, final_attempt, finished_at)
               select id, $4, $3, 1, 8, $2 from unnest($1::uuid[]) id""",
            ids,
            *values[3:],
            engine.owner.account_id,
        )
        if redriven:
            await session.execute(
                """insert into duly.redrive (job_id, after_attempt, redriven_at)
                   select id, 1, $2 from unnest($1::uuid[]) id""",
                ids,
                values[3],
            )
    return ids
