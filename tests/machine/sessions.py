"""The machine's connections: one loop, one for the steps that commit at once, a few that keep a transaction open.

Clocks: PostgreSQL's cannot be set, so time passes by moving what the rows say: `pass_time` takes the same number of
seconds from every time that a state row or a worker carries (a negative number is a clock set back). Facts keep their
times. The engine spares everybody for a while after the server's start; the sessions see a function of their own first
in the search path that says it started ten days ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from duly.queue import Owner, Session
from duly.queue.database import server_settings
from support.engine import new_owner
from support.sessions import PATIENCE_S

T = TypeVar("T")
MAIN = "main"
LOCK_TIMEOUT = "10ms"  # of a statement that must wait; one that must not is given seconds

_PRETENDED = """
    create schema if not exists pretended;
    create or replace function pretended.pg_postmaster_start_time() returns timestamptz language sql
    return pg_catalog.clock_timestamp() - interval '10 days';
"""
_RESET = """
    delete from duly.job; delete from duly.job_tag; delete from duly.attempt; delete from duly.outcome;
    delete from duly.redrive;
    delete from duly.scheduled; delete from duly.ready; delete from duly.lease; delete from duly.worker;
    delete from duly.retired; delete from duly.kept;
    select nextval('duly.segment_current');
    select setval('duly.ready_floor', (select last_value from duly.segment_current)),
           setval('duly.lease_floor', (select last_value from duly.segment_current)),
           setval('duly.idle_until', 0), setval('duly.promote_at', 0);
"""
_PASS_TIME = (
    """update duly.scheduled set run_at = run_at - $1::interval
       where ctid = any (array(select ctid from duly.scheduled for update skip locked))""",
    """update duly.ready set run_at = run_at - $1::interval
       where ctid = any (array(select ctid from duly.ready for update skip locked))""",
    """update duly.lease set claimed_at = claimed_at - $1::interval, deadline_at = deadline_at - $1::interval
       where ctid = any (array(select ctid from duly.lease for update skip locked))""",
    """update duly.worker
       set heartbeat_at = heartbeat_at - $1::interval, lease_expires_at = lease_expires_at - $1::interval""",
)


class Sessions:
    """Opened once for a run; `reset` between examples."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._open: dict[str, Session] = {}
        self._pids: dict[str, int] = {}
        self.owners: list[Owner] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def start(self, queues: Sequence[str], kinds: Sequence[str], keys: Sequence[str]) -> None:
        """Two projects in one account, one in another, and their lanes: who enqueues first into a new lane makes it,
        and all others wait for that transaction.
        """
        main = await self.get(MAIN)
        await main.execute(_PRETENDED)
        first = await new_owner(main)
        self.owners = [first, await new_owner(main, first.account_id), await new_owner(main)]
        for owner in self.owners:
            await main.execute(
                """select duly.make_lanes(
                       array_agg($1::integer), array_agg($2::integer), array_agg(q), array_agg(k), array_agg(c))
                   from unnest($3::text[]) q, unnest($4::text[]) k, unnest($5::text[]) c""",
                owner.account_id,
                owner.project_id,
                queues,
                kinds,
                ["", *keys],
            )

    async def get(self, name: str) -> Session:
        """The session of this name, connected if need be."""
        if name not in self._open:
            settings = server_settings(f"machine {name}") | {
                "search_path": "pretended, pg_catalog",
                "lock_timeout": "5s",
                "idle_in_transaction_session_timeout": "0",
            }
            self._open[name] = Session(await asyncpg.connect(self._url, server_settings=settings), "duly")
            self._pids[name] = self._open[name].connection.get_server_pid()
        return self._open[name]

    async def kill(self, name: str) -> None:
        """The server ends the session's backend: nothing of it is under way any more when this returns."""
        main, session = await self.get(MAIN), self._open.pop(name)
        await main.execute("select pg_terminate_backend($1, 10000)", self._pids.pop(name))
        session.connection.terminate()

    async def begin(self, name: str) -> None:
        await (await self.get(name)).execute("begin")

    async def end(self, name: str, word: str) -> None:
        """`commit` or `rollback`."""
        await (await self.get(name)).execute(word)

    async def until_waiting(self, name: str, task: asyncio.Task[Any]) -> None:
        """Return once the session's statement waits for a lock; fail if it ends without."""
        main, pid = await self.get(MAIN), self._pids[name]
        async with asyncio.timeout(PATIENCE_S):
            while not await main.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):
                assert not task.done(), "went through where it should have waited"
                await asyncio.sleep(0.001)

    async def pass_time(self, seconds: float) -> None:
        """As if so many seconds had passed, for every row that no open transaction holds."""
        main = await self.get(MAIN)
        async with main.connection.transaction():
            for statement in _PASS_TIME:
                await main.connection.execute(statement.replace("$1::interval", f"interval '{seconds} seconds'"))

    async def let_worker_expire(self, worker: int, seconds_ago: float) -> None:
        await (await self.get(MAIN)).execute(
            "update duly.worker set lease_expires_at = clock_timestamp() - make_interval(secs => $2) where id = $1",
            worker,
            seconds_ago,
        )

    async def let_deadline_pass(self, job_id: UUID) -> None:
        await (await self.get(MAIN)).execute(
            "update duly.lease set deadline_at = clock_timestamp() - interval '1 second' where job_id = $1", job_id
        )

    async def let_time_come(self, job_id: UUID, seconds_ago: float) -> None:
        await (await self.get(MAIN)).execute(
            "update duly.scheduled set run_at = clock_timestamp() - make_interval(secs => $2) where job_id = $1",
            job_id,
            seconds_ago,
        )

    async def reset(self) -> None:
        """Nothing open, nothing stored; segments go on from a new number, as if all before it were retired."""
        for name in [name for name in self._open if name != MAIN]:
            session = self._open[name]
            if session.connection.is_closed() or session.connection.is_in_transaction():
                await self.kill(name)
        await (await self.get(MAIN)).execute("set lock_timeout = '20s'")
        await (await self.get(MAIN)).execute(_RESET)
        await (await self.get(MAIN)).execute("set lock_timeout = '5s'")

    def close(self) -> None:
        async def close() -> None:
            for session in self._open.values():
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await session.connection.close(timeout=5)

        self._runner.run(close())
        self._runner.close()
