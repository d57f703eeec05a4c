"""What a rule stands on: one example's model and sessions, and the ways in which a statement is run.

Nothing here waits by chance: from the open transactions the model knows which statement must wait. That one is given up
(by lock_timeout, statement_timeout or the end of its backend) or stands in line until the transaction ends; every
other one must go through.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine

from duly import queue
from duly.model import NewJob, RetryPolicy, uuid7
from duly.queue import ClaimCursor, Line, LiveSegments, Owner
from duly.upkeep import SegmentKeeper
from machine import checks
from machine.drawing import KINDS, NOW, Patience
from machine.model import HOUR_S, Job, View, World
from machine.sessions import LOCK_TIMEOUT, MAIN, Sessions
from machine.statements import Claim, Statement

_KEPT = """
    select exists (select from duly.kept k, duly.ready_floor f, duly.ready r
                   where k.line = 'ready' and k.segment < f.last_value and r.segment = k.segment)
        or exists (select from duly.kept k, duly.lease_floor f, duly.lease l
                   where k.line = 'lease' and k.segment < f.last_value and l.segment = k.segment)
"""
A = TypeVar("A")
T = TypeVar("T")


@dataclass
class Waiting:
    """A statement that stands in line behind an open transaction."""

    name: str
    statement: Statement[Any]
    task: asyncio.Task[Any]


class Stage(RuleBasedStateMachine):
    """One example. `sessions` and `reached` are set for the whole run."""

    sessions: Sessions
    reached: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.started_ms = time.time_ns() // 1_000_000
        self.made = 0
        self.reached["example"] += 1
        self.waiting: dict[str, Waiting] = {}  # by the open transaction that is waited for
        self.workers: list[int] = []  # ever registered
        self.cursors: dict[int, ClaimCursor] = {}
        self.lists: dict[int, LiveSegments] = {}  # ready, as each worker read it last
        self.lease_list = LiveSegments((), 0)
        self.known: dict[int, set[Any]] = {}  # jobs that each worker heard it had claimed
        self.noted: dict[Line, dict[int, frozenset[str]]] = {"ready": {}, "lease": {}}
        self.keepers: dict[tuple[Line, int], SegmentKeeper] = {}
        self.opened_at: dict[str, int] = {}
        self.checked_inside: str | None = None
        self.sound = False  # the last step ended well

    # How a statement is run

    def _perform(
        self, where: str, statement: Statement[A], *, patience: Patience = "lock_timeout", undo: bool = False
    ) -> A | None:
        """Run it at once or inside a late transaction (begun if need be), and take its change into the model. None if
        it was given up, or waits in line.
        """
        session = self._session(where)
        if session is not None:
            self._begin(session)
        view = self.world.view(session)
        holders = statement.blocked_by(view)
        if not holders:
            return self._run(view, session, statement, undo)
        if session is None and patience == "in line" and statement.waits and not holders & self.waiting.keys():
            self._stand_in_line(statement, *holders)
        elif session is None and patience == "killed":
            self._kill_while_waiting(statement)
        else:
            self._give_up(session, statement, patience)
        return None

    def _run(self, view: View, name: str | None, statement: Statement[A], undo: bool) -> A:
        session = self._main() if name is None else self._do(self.sessions.get(name))
        before = None if name is None else dict(self.world.open[name])
        if undo and name is not None:
            self._do(session.execute("savepoint s"))
        answer: A = self._do(statement.run(session))
        for edge in statement.effect(view, answer):
            self._reach(edge)
        if name is None or before is None:
            return answer
        if isinstance(statement, Claim) and answer is None:  # it ended in an exception
            self._end(name, "rollback")
            self._reach("failed in a transaction")
            return answer
        self.checked_inside = name
        if undo:
            self._do(checks.check(session, self.world, name))
            self._do(session.execute("rollback to savepoint s"))
            self.world.open[name] = before
            self._reach("undone by a savepoint")
        return answer

    def _give_up(self, name: str | None, statement: Statement[Any], patience: Patience) -> None:
        """Nothing was written; inside a transaction, all that it wrote before is lost too."""
        setting = "statement_timeout" if patience == "statement_timeout" else "lock_timeout"
        error = asyncpg.QueryCanceledError if patience == "statement_timeout" else asyncpg.LockNotAvailableError
        session = self._main() if name is None else self._do(self.sessions.get(name))
        limit_ms = LOCK_TIMEOUT if setting == "lock_timeout" else "50ms"
        self._do(session.execute(f"set {'local' if name else 'session'} {setting} = '{limit_ms}'"))
        try:
            with pytest.raises(error):
                self._do(statement.run(session))
        finally:
            if name is None:
                self._do(session.execute(f"reset {setting}"))
        self._reach(f"must wait: {setting}")
        if name is not None:
            self._end(name, "rollback")
            self._reach("failed in a transaction")

    def _kill_while_waiting(self, statement: Statement[Any]) -> None:
        async def run() -> None:
            session = await self.sessions.get("victim")
            task = asyncio.ensure_future(statement.run(session))
            await self.sessions.until_waiting("victim", task)
            await self.sessions.kill("victim")
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await task

        self._do(run())
        self._reach("must wait: killed")

    def _stand_in_line(self, statement: Statement[Any], holder: str) -> None:
        name = f"behind {holder}"

        async def run() -> asyncio.Task[Any]:
            task = asyncio.ensure_future(statement.run(await self.sessions.get(name)))
            await self.sessions.until_waiting(name, task)
            return task

        self.waiting[holder] = Waiting(name, statement, self._do(run()))
        self._reach("must wait: in line")

    def _begin(self, name: str) -> None:
        if name not in self.world.open:
            self._do(self.sessions.begin(name))
            self.world.open[name] = {}
            self.opened_at[name] = self._current()

    def _end(self, name: str, how: str) -> None:
        """Commit, rollback, or the backend's death; then whoever stood in line behind it goes on."""
        wrote = bool(self.world.open[name])
        if how == "killed":
            self._do(self.sessions.kill(name))
        else:
            self._do(self.sessions.end(name, how))
        if how == "commit":
            self.world.commit(name)
            if wrote and self._current() > self.opened_at[name]:
                self._reach("late commit over a turn")
        else:
            self.world.roll_back(name)
        self._reach(how)
        waiting = self.waiting.pop(name, None)
        if waiting is not None:
            answer = self._do(ended(waiting.task))
            for edge in waiting.statement.effect(self.world.view(None), answer):
                self._reach(edge)
            self._reach(f"went on after {'commit' if how == 'commit' else 'rollback'}")

    def _fails(self, where: str, sqlstate: str | None, call: Any) -> None:
        """The statement is refused for what it says."""
        name = self._session(where)
        if name is not None:
            self._begin(name)
        session = self._main() if name is None else self._do(self.sessions.get(name))
        with pytest.raises(asyncpg.PostgresError) as caught:
            self._do(call(session))
        assert sqlstate in (None, caught.value.sqlstate)
        if name is not None:
            self._end(name, "rollback")
            self._reach("failed in a transaction")

    # What the rules ask

    def _do(self, work: Any) -> Any:
        self.sound = False
        return self.sessions.run(work)

    def _main(self) -> queue.Session:
        session: queue.Session = self._do(self.sessions.get(MAIN))
        return session

    def _reach(self, edge: str) -> None:
        self.reached[edge] += 1

    def _session(self, where: str) -> str | None:
        return None if where == NOW else where

    def _current(self) -> int:
        number: int = self._do(self._main().fetchval("select last_value from duly.segment_current"))
        return number

    def _closed(self, line: Line) -> list[int]:
        live: LiveSegments = self._do(queue.live_segments(self._main(), line))
        return list(live.closed)

    def _look_at_floors(self) -> None:
        main = self._main()
        if self._do(main.fetchval(_KEPT)):
            self._reach("segment kept")
        self._reach("floor raised")

    def _known_ids(self) -> list[Job]:
        """Every job that somebody has heard of, committed or not."""
        jobs = dict(self.world.jobs)
        for own in self.world.open.values():
            jobs = {**own, **jobs}
        return [job for _, job in sorted(jobs.items())]

    def _tokens(self, view: View) -> list[tuple[UUID, int]]:
        """Every attempt that was ever handed out, as far as the session sees; others are nobody's."""
        return [(job.id, attempt) for job in view.jobs() for attempt in job.claims]

    def _held_by_others(self, jobs: list[Job], where: str, wanted: bool) -> list[Job]:
        """Those that an open transaction holds against this session, if that is wanted and there are any."""
        view = self.world.view(self._session(where))
        return [job for job in jobs if wanted and view.holder(job.id) is not None] or jobs

    def _running(self, kind: str | None = None) -> list[Job]:
        return self.world.view(None).jobs(lambda job: job.place == "running" and kind in (None, job.spec.kind))

    def _register(self) -> int:
        worker: int = self._do(queue.register(self._main(), "machine", KINDS, None, 100, timedelta(hours=1)))
        self.world.workers[worker] = HOUR_S
        self.workers.append(worker)
        self.cursors[worker] = ClaimCursor()
        self.known[worker] = set()
        self.lists[worker] = self._do(queue.live_segments(self._main(), "ready"))
        return worker

    def _claim(
        self,
        worker: int,
        limit: int,
        kinds: Sequence[str],
        queues: Sequence[str] | None,
        rest: timedelta = timedelta(0),
    ) -> Claim:
        return Claim(worker, limit, kinds, queues, self.cursors[worker], self.lists[worker], rest)

    def _new(
        self, owner: int = 0, queue: str = "a", kind: str = "k", key: str | None = None, priority: int = 5,
        attempts: int = 2, run_in_h: int = 0, expires: int | None = None,
    ) -> tuple[Owner, NewJob, float]:  # fmt: skip
        """A job whose id is later than all before it, so that the order of ids does not depend on chance."""
        self.made += 1
        spec = NewJob(
            kind,
            {"n": self.made},
            id=uuid7(self.started_ms + self.made),
            queue=queue,
            concurrency_key=key,
            priority=priority,
            delay=timedelta(hours=run_in_h) if run_in_h else None,
            timeout=timedelta(seconds=HOUR_S - 30),  # a claim adds half a minute
            retry=RetryPolicy(max_attempts=attempts),
            expires_at=None if expires is None else datetime(expires, 1, 1, tzinfo=UTC),
        )
        note(f"job {self.made} is {spec.id}")
        return self.sessions.owners[owner], spec, run_in_h * HOUR_S


async def ended(task: asyncio.Task[T]) -> T:
    async with asyncio.timeout(10):
        return await task
