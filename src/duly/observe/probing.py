"""What has to be tried out to be known: plans, the pooler in between, wake-ups. Nothing is changed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from duly.queue import Database
from duly.queue.database import CONNECT_LIMIT, server_settings
from duly.schema import named

_NOTIFICATION_LIMIT_S = 3.0
ID = "01890a5d-ac96-774b-bcce-b302099a8057"  # of no job

# As the hot functions ask, and under the settings that pin their plans: in the order of the index that is meant, since
# on a table of a page or two any other index that holds the column is as cheap.
_HOT: tuple[tuple[str, str, str], ...] = (
    (
        "a claim's look for the next job of a lane",
        "ready_line",
        "select r.job_id from duly.ready r where r.segment = 1 and r.account_id = 1 and r.lane_id = 1 "
        "order by r.line_at, r.job_id limit 1",
    ),
    (
        "taking a ready job by its id",
        "ready_pkey",
        f"select r.segment from duly.ready r where r.job_id between '{ID}' and '{ID}' order by r.job_id limit 1",
    ),
    ("settling a lease", "lease_pkey", f"select l.attempt from duly.lease l where l.job_id = '{ID}'"),
    (
        "counting what runs in a lane",
        "lease_line",
        "select 1 from duly.lease l where l.segment = 1 and l.account_id = 1 and l.lane_id = 1",
    ),
    (
        "promoting what is due",
        "scheduled_by_time",
        "select s.job_id from duly.scheduled s where s.run_at > now() - interval '1 minute' and s.run_at <= now() "
        "order by s.run_at, s.job_id limit 100",
    ),
    (
        "a job's scheduled row",
        "scheduled_pkey",
        f"select s.run_at from duly.scheduled s where s.job_id between '{ID}' and '{ID}' order by s.job_id limit 1",
    ),
    (
        "attempts that are to stop",
        "lease_to_abort",
        "select l.job_id from duly.lease l where l.worker_id = 1 and l.abort_requested",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadPlan:
    """A hot statement whose pinned plan is not chosen any more."""

    statement: str
    expected: str
    chosen: str


async def bad_plans(db: Database) -> list[BadPlan]:
    """Hot statements that would not go by their index."""
    found: list[BadPlan] = []
    async with db.transaction() as session:
        for switch in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort"):
            await session.execute(f"set local enable_{switch} = off")
        for name, index, statement in _HOT:
            plan = json.loads(await session.fetchval(f"explain (format json) {statement}"))[0]["Plan"]
            used = list(_scans(plan))
            if used != [index]:
                found.append(BadPlan(name, index, ", ".join(used) or "no index"))
    return found


async def is_pooled(dsn: str) -> bool:
    """Whether two statements of one connection may reach different backends: then a pooler in transaction mode is in
    between. While another connection holds a transaction open, ours may not be given the backend that it has.
    """
    async with _connected(dsn) as one, _connected(dsn) as other:
        before = await _backend(one)
        await other.execute("begin")
        try:
            held = await _backend(other)
            return held == before or await _backend(one) != before
        finally:
            await other.execute("rollback")


async def listen_works(dsn: str, schema: str) -> bool:
    """Whether a notification arrives, sent from one connection to another."""
    channel = named("duly.doctor_", schema) + uuid.uuid4().hex[:12]
    heard = asyncio.Event()
    async with _connected(dsn) as listener, _connected(dsn) as notifier:
        await listener.add_listener(channel, lambda *_: heard.set())
        await notifier.execute(f'notify "{channel}"')
        try:
            async with asyncio.timeout(_NOTIFICATION_LIMIT_S):
                await heard.wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    limit_s = CONNECT_LIMIT.total_seconds()
    connection = await asyncpg.connect(
        dsn, timeout=limit_s, command_timeout=limit_s, server_settings=server_settings("duly-doctor")
    )
    try:
        yield connection
    finally:
        connection.terminate()


async def _backend(connection: asyncpg.Connection) -> str:
    """The number of the backend that answers, asked without preparing a statement, which poolers may not bear."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def heard(_: object, message: Any) -> None:
        if not told.done():
            told.set_result(str(message.message))

    connection.add_log_listener(heard)
    try:
        await connection.execute("do $$ begin raise warning '%', pg_backend_pid(); end $$")
        async with asyncio.timeout(CONNECT_LIMIT.total_seconds()):
            return await told
    finally:
        connection.remove_log_listener(heard)


def _scans(plan: Mapping[str, Any]) -> list[str]:
    """What a plan reads, by index, or by table where it uses none."""
    here = [plan.get("Index Name") or f"a {plan['Node Type']}"] if "Relation Name" in plan else []
    return here + [scan for child in plan.get("Plans", ()) for scan in _scans(child)]
