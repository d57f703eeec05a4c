"""What the doctor looks at, reading only. A part that cannot be read does not keep it from the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError
from duly.observe.probing import BadPlan, bad_plans, is_pooled, listen_works
from duly.queue import Conservation, Database, Figures, ScheduleHealth, SnapshotHolder, WorkerView
from duly.queue.breaker import OpenBreaker, list_breakers
from duly.queue.database import Executor
from duly.worker.skew import ahead

LEDGER_LIMIT = timedelta(minutes=10)
_DAYS_AHEAD = 1

Answer = TypeVar("Answer")

_SERVER = """
    select current_setting('server_version') as version,
           current_setting('server_version_num')::integer / 10000 as major, clock_timestamp() as now,
           extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8 as up_seconds,
           current_setting('max_connections')::integer as max_connections,
           current_setting('superuser_reserved_connections')::integer
               + coalesce(current_setting('reserved_connections', true)::integer, 0) as reserved_connections,
           (select sum(d.numbackends)::integer from pg_stat_database d) as connections,
           (select age(d.datfrozenxid) from pg_database d where d.datname = current_database()) as frozen_age
"""
_SETTINGS = """
    select s.name, s.setting from pg_settings s
    where s.name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
                     'transaction_read_only', 'shared_buffers', 'max_wal_size')
"""
_TIMEOUTS = """
    select s.name, s.setting::float8 / 1000 as seconds from pg_settings s
    where s.name in ('statement_timeout', 'lock_timeout', 'transaction_timeout') and s.setting::bigint > 0
"""
_UNVACUUMED = """
    select format('%I.%I', $1::text, c.relname) as name from pg_class c
    where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = $1) and c.relkind = 'r'
      and c.reloptions && array['autovacuum_enabled=off', 'autovacuum_enabled=false', 'autovacuum_enabled=0']
    order by 1
"""
_LACKING = """
    select format('use the schema %I', n.nspname) as lacking from pg_namespace n
    where n.nspname = $1 and not has_schema_privilege(n.oid, 'usage')
    union all
    select format('%s %I.%I', right_.name, $1::text, c.relname)
    from pg_class c cross join unnest(array['select', 'insert', 'update', 'delete']) right_ (name)
    where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = $1) and c.relkind in ('r', 'p')
      and not c.relispartition and c.relname <> 'schema_version' and not has_table_privilege(c.oid, right_.name)
    union all
    select format('%s the sequence %I.%I', right_.name, $1::text, c.relname)
    from pg_class c cross join unnest(array['select', 'update', 'usage']) right_ (name)
    where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = $1) and c.relkind = 'S'
      and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
      and not has_sequence_privilege(c.oid, right_.name)
    union all
    select format('execute %I.%I', $1::text, p.proname)
    from pg_proc p
    where p.pronamespace = (select n.oid from pg_namespace n where n.nspname = $1)
      and not has_function_privilege(p.oid, 'execute')
    order by 1
"""
_SEES_ALL = "select pg_has_role(current_user, 'pg_read_all_stats', 'usage')"
_TABLES = """
    select name, pg_relation_size(('duly.' || name)::regclass) as size_bytes,
           pg_stat_get_live_tuples(('duly.' || name)::regclass) as live_rows,
           pg_stat_get_dead_tuples(('duly.' || name)::regclass) as dead_rows
    from unnest(array['scheduled', 'ready', 'lease', 'worker', 'unique_key']) name
"""
_MISSING_DAYS = """
    select distinct d.day
    from (select (clock_timestamp() at time zone 'utc')::date + n as day from generate_series(0, $1::integer) n) d
    cross join unnest(array['job', 'attempt', 'outcome']) fact
    where to_regclass('duly.' || fact || to_char(d.day, '_YYYYMMDD')) is null
    order by 1
"""
# Not one row for each of a million waiting jobs: of as many as are looked at.
_UNSERVED = """
    select k.kind, k.queue, w.jobs, extract(epoch from clock_timestamp() - w.run_at)::float8 as oldest_seconds
    from (select (r.lane_id >> 32)::integer as block_id, count(*) as jobs, min(r.run_at) as run_at
          from (select r.lane_id, r.run_at from duly.ready r limit 1000000) r group by 1) w
    join duly.lane_block k on k.id = w.block_id
    where not exists (
              select from duly.worker v where v.lease_expires_at > clock_timestamp() and k.kind = any (v.kinds)
                and (v.queues is null or k.queue = any (v.queues)))
      and exists (select from duly.worker v where v.lease_expires_at > clock_timestamp())
      and not exists (select from duly.queue q where q.project_id = k.project_id and q.name = k.queue and q.paused)
    order by w.run_at limit 100
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The server's version, clock, settings as this role has them, and how full it is. `timeouts`: in seconds."""

    version: str
    major: int
    now: datetime
    up_seconds: float
    max_connections: int
    reserved_connections: int
    connections: int
    frozen_age: int
    settings: Mapping[str, str]
    timeouts: Mapping[str, float]
    unvacuumed: list[str]


@dataclass(frozen=True, slots=True)
class Table:
    """How large a table is; rows by the server's statistics."""

    name: str
    size_bytes: int
    live_rows: int
    dead_rows: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """Due jobs that no living worker may claim."""

    kind: str
    queue: str
    jobs: int
    oldest_seconds: float


@dataclass(slots=True)
class Examination:
    """All that was seen; what could not be read is None or empty, and `unread` says why. `keys`: unfinished jobs by the
    encryption key that they need. `clock_ahead_s`: this machine's clock against the database's, at least.
    """

    server: Server | None = None
    figures: Figures | None = None
    conservation: Conservation | None = None
    workers: list[WorkerView] = field(default_factory=list)
    holders: list[SnapshotHolder] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing_days: list[date] = field(default_factory=list)
    unserved: list[Unserved] = field(default_factory=list)
    bad_plans: list[BadPlan] = field(default_factory=list)
    schedules: ScheduleHealth | None = None
    breakers: list[OpenBreaker] = field(default_factory=list)
    grants: list[str] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    sees_all_sessions: bool | None = None
    clock_ahead_s: float | None = None
    is_pooled: bool | None = None
    listen_works: bool | None = None
    unread: dict[str, str] = field(default_factory=dict)


async def examine(db: Database, dsn: str, *, with_ledger: bool = True) -> Examination:
    """Look at everything; without the ledger at nothing that reads all jobs."""
    seen = Examination()

    async def part(name: str, look: Callable[[], Awaitable[Answer]], empty: Answer) -> Answer:
        try:
            return await look()
        except (
            DatabaseUnavailableError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            OSError,
            TimeoutError,
        ) as error:
            seen.unread[name] = str(error) or type(error).__name__
            return empty

    seen.server = await part("the server", lambda: _server(db), None)
    seen.grants = await part("grants", lambda: _column(db, _LACKING, db.schema), [])
    seen.sees_all_sessions = await part("rights to see sessions", lambda: db.fetchval(_SEES_ALL), None)
    seen.clock_ahead_s = await part("the clock", lambda: _clock_ahead(db), None)
    seen.figures = await part("figures", lambda: queue.figures(db), None)
    seen.workers = await part("workers", lambda: queue.list_workers(db), [])
    seen.holders = await part("snapshots", lambda: queue.snapshot_holders(db), [])
    seen.tables = await part("tables", lambda: _rows(db, Table, _TABLES), [])
    seen.missing_days = await part("partitions", lambda: _column(db, _MISSING_DAYS, _DAYS_AHEAD), [])
    seen.unserved = await part("unserved jobs", lambda: _rows(db, Unserved, _UNSERVED), [])
    seen.bad_plans = await part("plans", lambda: bad_plans(db), [])
    seen.schedules = await part("schedules", lambda: queue.schedule_health(db), None)
    seen.breakers = await part("breakers", lambda: list_breakers(db), [])
    seen.keys = await part("encryption keys", lambda: queue.unfinished_by_key(db), {})
    seen.is_pooled = await part("the pooler", lambda: is_pooled(dsn), None)
    seen.listen_works = await part("wake-ups", lambda: listen_works(dsn, db.schema), None)
    if with_ledger:
        seen.conservation = await part("the ledger", lambda: queue.conservation(db), None)
    return seen


async def _server(db: Executor) -> Server:
    row = await db.fetchrow(_SERVER)
    assert row is not None  # it has no table
    return Server(
        **dict(row),
        settings={r["name"]: r["setting"] for r in await db.fetch(_SETTINGS)},
        timeouts={r["name"]: r["seconds"] for r in await db.fetch(_TIMEOUTS)},
        unvacuumed=await _column(db, _UNVACUUMED, db.schema),
    )


async def _clock_ahead(db: Executor) -> float:
    asked = datetime.now(UTC)
    database = await queue.server_now(db)
    return ahead(asked, database, datetime.now(UTC)).total_seconds()


async def _column(db: Executor, statement: str, *args: object) -> list[Any]:
    return [row[0] for row in await db.fetch(statement, *args)]


async def _rows(db: Executor, kind: type[Answer], statement: str) -> list[Answer]:
    return [kind(**dict(row)) for row in await db.fetch(statement)]
