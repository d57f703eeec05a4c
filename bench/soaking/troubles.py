"""What goes wrong during a soak: each trouble is a loop of its own that strikes at random until it is cancelled."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import asyncpg
import psutil

from bench.soaking.fleet import SKEWS, Fleet
from bench.soaking.orders import LEASE
from duly.embedded import EmbeddedPostgres

_TABLES = "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'duly' order by 1"
_SOME_BACKEND = """
    select pid from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    order by random() limit 1
"""
_SNAPSHOTS_AT_ONCE = 2
_HOUR = timedelta(hours=1)
_AWAY = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class Troubles:
    """Strikes at the fleet and at the server it works on; counts what it did."""

    def __init__(self, fleet: Fleet, server: EmbeddedPostgres, dsn: str, rng: random.Random) -> None:
        self._fleet = fleet
        self._server = server
        self._dsn = dsn
        self._rng = rng
        self._snapshots: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Strike until cancelled; nobody stays stopped, and the server runs, when it returns."""
        loops: list[tuple[Callable[[], Awaitable[None]], float, float]] = [
            (self._kill_worker, 2.0, 8.0),
            (self._kill_client, 4.0, 15.0),
            (self._drain_worker, 15.0, 40.0),
            (self._stop_worker, 4.0, 12.0),
            (self._strike_server, 8.0, 25.0),
            (self._terminate_backend, 1.0, 5.0),
            (self._hold_snapshot, 5.0, 25.0),
            (self._step_clock, 3.0, 12.0),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for strike, shortest_s, longest_s in loops:
                    group.create_task(self._again(strike, shortest_s, longest_s))
        finally:
            for member in self._fleet.members:
                if member.stopped:
                    self._fleet.go_on(member)
            if not self._server.alive:
                self._server.start()

    async def end_snapshots(self) -> None:
        """Let go of every snapshot that is held."""
        for task in self._snapshots:
            task.cancel()
        await asyncio.gather(*self._snapshots, return_exceptions=True)

    async def _again(self, strike: Callable[[], Awaitable[None]], shortest_s: float, longest_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(shortest_s, longest_s))
            await strike()

    async def _kill_worker(self) -> None:
        if worker := self._fleet.some("worker"):
            self._fleet.kill(worker)
            self.done["workers killed"] += 1

    async def _kill_client(self) -> None:
        if client := self._fleet.some("client"):
            self._fleet.kill(client)
            self.done["clients killed"] += 1

    async def _drain_worker(self) -> None:
        if worker := self._fleet.some("worker"):
            self._fleet.tell(worker)
            self.done["workers told to drain"] += 1

    async def _stop_worker(self) -> None:
        """Some stops are shorter than a lease, most longer."""
        if worker := self._fleet.some("worker"):
            self._fleet.stop(worker)
            self.done["workers stopped"] += 1
            await asyncio.sleep(self._rng.uniform(0.3, 2.2) * LEASE.total_seconds())
            self._fleet.go_on(worker)

    async def _strike_server(self) -> None:
        """Start and stop block this loop: the server belongs to the main thread, whose end would end it."""
        match self._rng.choice(("restart", "outage", "immediate", "kill", "backend")):
            case "restart":
                self.done["server restarts"] += 1
                self._server.stop()
                self._server.start()
            case "outage":
                self.done["server outages"] += 1
                self._server.stop()
                await asyncio.sleep(self._rng.uniform(0.5, 2.0) * LEASE.total_seconds())
                self._server.start()
            case "immediate":
                self.done["server stops, immediate"] += 1
                assert self._server.pid is not None
                server = psutil.Process(self._server.pid)
                server.send_signal(signal.SIGQUIT)
                while self._server.alive:
                    await asyncio.sleep(0.01)
                self._server.start()
            case "kill":
                self.done["server kills"] += 1
                assert self._server.pid is not None
                backends = psutil.Process(self._server.pid).children(recursive=True)
                self._server.kill()
                for backend in backends:
                    with suppress(psutil.NoSuchProcess):
                        backend.kill()
                self._server.start()
            case "backend":  # the postmaster ends all others and recovers by itself
                pid = await self._ask(_SOME_BACKEND)
                if pid is not None:
                    with suppress(psutil.NoSuchProcess):
                        psutil.Process(pid).kill()
                        self.done["backend crashes"] += 1

    async def _terminate_backend(self) -> None:
        if await self._ask(f"select pg_terminate_backend(pid) from ({_SOME_BACKEND}) one"):
            self.done["backends terminated"] += 1

    async def _hold_snapshot(self) -> None:
        self._snapshots = {task for task in self._snapshots if not task.done()}
        if len(self._snapshots) < _SNAPSHOTS_AT_ONCE:
            self._snapshots.add(asyncio.create_task(self._snapshot(self._rng.uniform(20.0, 60.0))))

    async def _snapshot(self, seconds: float) -> None:
        """As pg_dump: REPEATABLE READ with ACCESS SHARE on every table. The server may end it early."""
        with suppress(*_AWAY):
            connection = await asyncpg.connect(self._dsn, timeout=5)
            try:
                tables = [row[0] for row in await connection.fetch(_TABLES)]
                await connection.execute("begin isolation level repeatable read")
                await connection.execute(f"lock table {', '.join(tables)} in access share mode")
                await connection.execute("select pg_current_xact_id(), (select count(*) from duly.worker)")
                self.done["snapshots held"] += 1
                await asyncio.sleep(seconds)
            finally:
                connection.terminate()

    async def _step_clock(self) -> None:
        """An hour back, or to another of the skews: an hour forward, if it was back."""
        if worker := self._fleet.some("worker"):
            shift = self._rng.choice(SKEWS) - (_HOUR if self._rng.random() < 0.5 else timedelta(0))
            worker.clock.step_to(shift)
            self.done["clocks stepped"] += 1

    async def _ask(self, statement: str) -> int | None:
        try:
            connection = await asyncpg.connect(self._dsn, timeout=5)
            try:
                answer: int | None = await connection.fetchval(statement, timeout=5)
            finally:
                connection.terminate()
        except _AWAY:
            return None
        return answer
