"""Each statement of the engine beside what must be true of its answer and what it changes.

`blocked_by` names the open transactions it would wait for; `run` executes it; `effect` asserts the answer against a
view, writes the change there, and returns the names of the edges that were taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import asyncpg

from duly import queue
from duly.model import ClaimedJob, NewJob, Settlement
from duly.queue import ClaimCursor, Enqueued, Line, LiveSegments, Owner, Promoted, Rescued, Session
from machine import model
from machine.model import HOUR_S, WINDOW_S, Job, View

ALL = 1000  # a limit that takes everything
RUN_UP = timedelta(hours=2)
A = TypeVar("A")


class Statement(ABC, Generic[A]):
    """One call of the engine."""

    waits = False  # it can stand in line behind one open transaction and go on once that ends

    def blocked_by(self, view: View) -> set[str]:
        """Sessions whose open transaction it would wait for; claims, moves and upkeep pass by instead."""
        return set()

    @abstractmethod
    async def run(self, session: Session) -> A: ...

    @abstractmethod
    def effect(self, view: View, answer: A) -> Iterable[str]: ...


@dataclass
class Enqueue(Statement[list[Enqueued]]):
    """Jobs with, for each, the seconds until it is due. One id may stand in it twice."""

    items: Sequence[tuple[Owner, NewJob, float]]

    def __post_init__(self) -> None:
        self.waits = len(self.items) == 1

    def blocked_by(self, view: View) -> set[str]:
        unseen = (job.id for _, job, _ in self.items if view.get(job.id) is None)
        return {holder for job_id in unseen if (holder := view.holder(job_id)) is not None}

    async def run(self, session: Session) -> list[Enqueued]:
        return await queue.enqueue(session, [(owner, job) for owner, job, _ in self.items])

    def effect(self, view: View, answer: list[Enqueued]) -> Iterable[str]:
        expected = []
        for owner, spec, run_in_s in self.items:
            known = view.get(spec.id)
            if known is None:
                view.put(model.enqueued(owner, spec, run_in_s))
                expected.append((spec.id, "created"))
                yield f"enqueue {'later' if run_in_s > 0 else 'due'}"
            else:
                same = (known.owner, known.spec) == (owner, spec)
                expected.append((spec.id, "repeated" if same else "conflict"))
                yield f"enqueue {expected[-1][1]}"
        assert [(row.job_id, row.result) for row in answer] == expected
        if len(self.items) > 1:
            yield "enqueue batch"


@dataclass
class Claim(Statement[list[ClaimedJob] | None]):
    """None: the worker's lease is over."""

    worker: int
    limit: int
    kinds: Sequence[str]
    queues: Sequence[str] | None
    cursor: ClaimCursor
    segments: LiveSegments
    rest: timedelta = timedelta(0)

    async def run(self, session: Session) -> list[ClaimedJob] | None:
        try:
            return await queue.claim(
                session, self.worker, self.limit, self.kinds, self.queues, self.cursor, self.segments, self.rest
            )
        except asyncpg.PostgresError as error:
            if error.sqlstate == "DU001":
                return None
            raise

    def effect(self, view: View, answer: list[ClaimedJob] | None) -> Iterable[str]:
        if answer is None:
            assert not view.alive(self.worker), "claim refused to a worker whose lease is good"
            yield "claim refused: lease lost"
            return
        assert view.alive(self.worker), "claim granted to a worker whose lease is over"
        due = {job.id: job for job in view.free() if self._serves(job)}
        ids = [job.id for job in answer]
        assert len(ids) == len(set(ids)), "claimed twice in one answer"
        assert set(ids) <= due.keys(), "claimed what was not due, not served, or somebody else's"
        assert len(ids) <= self.limit
        assert ids or not due, "nothing claimed although something is due"
        if self.limit >= ALL:
            assert set(ids) == due.keys(), "due and not claimed"
        self._in_order(due, set(ids))
        for got in answer:
            view.put(_as_promised(due[got.id], got, self.worker))
            yield f"claim: {got.trigger}"
        yield "claim" if ids else "claim: nothing due"
        if len(ids) < len(due):
            yield "claim: some left"

    def _serves(self, job: Job) -> bool:
        queues = self.queues
        return job.place == "ready" and job.spec.kind in self.kinds and (queues is None or job.spec.queue in queues)

    def _in_order(self, due: dict[UUID, Job], ids: set[UUID]) -> None:
        """Of the jobs of a lane that became due just now, nothing is left behind that has a higher priority (a lower
        number) than what was taken. Others have aged: the time that passed here may be worth some levels.
        """
        fresh = [job for job in due.values() if job.spec.delay is None and not job.claims and job.attempt == 1]
        for lane in {job.lane for job in fresh if job.id in ids}:
            taken = max(job.spec.priority for job in fresh if job.lane == lane and job.id in ids)
            left = [job.spec.priority for job in fresh if job.lane == lane and job.id not in ids]
            assert not left or taken <= min(left), "claimed past a higher priority"


def _expired(job: Job) -> bool:
    """Its time is long past, or far ahead."""
    return job.spec.expires_at is not None and job.spec.expires_at.year < 2020


def _as_promised(job: Job, got: ClaimedJob, worker: int) -> Job:
    spec = job.spec
    assert (got.attempt, got.final_attempt, got.trigger) == (job.attempt, job.final_attempt, job.trigger)
    assert (got.account_id, got.project_id, got.queue, got.kind) == job.lane[:4]
    assert (got.max_attempts, got.priority, got.body) == (spec.retry.max_attempts, spec.priority, spec.body)
    assert got.expired == _expired(job), "expired"
    assert abs(got.age.total_seconds() - job.age_s) < HOUR_S / 2, "age"
    assert job.attempt <= job.final_attempt, "claimed past its budget"
    assert job.claims.count(job.attempt) <= job.releases.count(job.attempt), "one attempt claimed twice"
    return model.claimed(job, worker)


@dataclass
class Settle(Statement[frozenset[UUID]]):
    """Settlements of one worker, right or not; a job may stand in them twice."""

    worker: int
    settlements: Sequence[Settlement]
    rows: dict[UUID, int] = field(default_factory=dict)  # of those that it found, when it began to wait

    def __post_init__(self) -> None:
        self.waits = len(self.settlements) == 1

    def blocked_by(self, view: View) -> set[str]:
        found = [job for s in self.settlements if (job := self._held(view, s)) is not None]
        self.rows = {job.id: job.row for job in found}
        return {holder for job in found if (holder := view.holder(job.id)) is not None}

    async def run(self, session: Session) -> frozenset[UUID]:
        return await queue.settle(session, self.worker, self.settlements)

    def effect(self, view: View, answer: frozenset[UUID]) -> Iterable[str]:
        refused: set[UUID] = set()
        named: set[tuple[UUID, int]] = set()
        for how in self.settlements:
            job = self._held(view, how)
            if job is None or self.rows.get(job.id) != job.row:
                refused.add(how.job_id)
                yield self._why(view.get(how.job_id), how, named)
            else:
                after = model.settled(job, how)
                view.put(after)
                yield from _settle_edges(job, how, after)
            named.add((how.job_id, how.attempt))
        assert answer == refused, "a write was accepted that should be refused, or the other way round"

    def _held(self, view: View, how: Settlement) -> Job | None:
        job = view.get(how.job_id)
        return job if job is not None and job.holds(self.worker, how.attempt) else None

    def _why(self, job: Job | None, how: Settlement, named: set[tuple[UUID, int]]) -> str:
        if (how.job_id, how.attempt) in named:
            return "settle refused: named twice"
        if job is None or job.place != "running":
            return "settle refused: not running"
        return "settle refused: old attempt" if job.attempt != how.attempt else "settle refused: wrong worker"


def _settle_edges(job: Job, how: Settlement, after: Job) -> Iterable[str]:
    yield f"settle {how.edge}"
    if job.cancel_requested:
        yield f"after a request: {after.place}"
    if how.edge == "interrupted" and after.final_attempt == job.final_attempt:
        yield f"interrupted too often: {after.place}"


@dataclass
class GiveBack(Statement[int]):
    worker: int
    heard: Sequence[UUID]
    segments: LiveSegments

    def blocked_by(self, view: View) -> set[str]:
        return {holder for job in self._unheard(view) if (holder := view.holder(job.id)) is not None}

    async def run(self, session: Session) -> int:
        return await queue.give_back(session, self.worker, self.heard, self.segments)

    def effect(self, view: View, answer: int) -> Iterable[str]:
        unheard = self._unheard(view)
        assert answer == len(unheard)
        for job in unheard:
            view.put(model.settled(job, Settlement(job.id, job.attempt, "release")))
            yield "give_back"

    def _unheard(self, view: View) -> list[Job]:
        return view.jobs(lambda job: job.worker == self.worker and job.id not in self.heard)


@dataclass
class Control(Statement[str]):
    """What the three statements of an owner about one job have in common."""

    owner: Owner
    job_id: UUID
    row: int = -1
    waits = True

    def blocked_by(self, view: View) -> set[str]:
        job = self._mine(view)
        if job is None or not self._takes(job):
            return set()
        self.row = job.row
        holder = view.holder(job.id)
        return set() if holder is None else {holder}

    def effect(self, view: View, answer: str) -> Iterable[str]:
        job = self._mine(view)
        expected = "missing" if job is None else self._expected(view, job)
        assert answer == expected
        yield f"{type(self).__name__.lower()}: {answer}"

    def _mine(self, view: View) -> Job | None:
        job = view.get(self.job_id)
        return job if job is not None and job.owner == self.owner else None

    @abstractmethod
    def _takes(self, job: Job) -> bool: ...

    @abstractmethod
    def _expected(self, view: View, job: Job) -> str: ...


@dataclass
class Cancel(Control):
    abort: bool = False

    async def run(self, session: Session) -> str:
        return await queue.cancel(session, self.owner, self.job_id, abort=self.abort)

    def _takes(self, job: Job) -> bool:
        return not job.final

    def _expected(self, view: View, job: Job) -> str:
        if job.final:
            return "cancelled" if job.place == "cancelled" else "final"
        view.put(model.cancelled(job, self.abort))
        return "requested" if job.place == "running" else "cancelled"


@dataclass
class RunNow(Control):
    async def run(self, session: Session) -> str:
        return await queue.run_now(session, self.owner, self.job_id)

    def _takes(self, job: Job) -> bool:
        return job.place == "scheduled"

    def _expected(self, view: View, job: Job) -> str:
        if not self._takes(job) or job.row != self.row:
            return "wrong_state"
        view.put(model.run_now(job))
        return "run"


@dataclass
class Redrive(Control):
    async def run(self, session: Session) -> str:
        return await queue.redrive(session, self.owner, self.job_id, by="somebody")

    def _takes(self, job: Job) -> bool:
        return job.place in ("dead", "cancelled")

    def _expected(self, view: View, job: Job) -> str:
        if not self._takes(job) or job.row != self.row:
            return "wrong_state"
        if _expired(job):
            return "expired"
        view.put(model.redriven(job))
        return "redriven"


@dataclass
class Promote(Statement[tuple[Promoted, set[UUID]]]):
    limit: int
    sweep: bool

    async def run(self, session: Session) -> tuple[Promoted, set[UUID]]:
        before = await _ids(session, "select job_id from duly.scheduled")
        promoted = await queue.promote(session, self.limit, sweep=self.sweep)
        return promoted, before - await _ids(session, "select job_id from duly.scheduled")

    def effect(self, view: View, answer: tuple[Promoted, set[UUID]]) -> Iterable[str]:
        promoted, ids = answer
        oldest_s = float("-inf") if self.sweep else -WINDOW_S
        due = {job.id for job in view.free() if job.place == "scheduled" and oldest_s < job.due_in_s <= 0}
        assert ids <= due, "promoted before its time, or out of the window"
        assert promoted.count == len(ids) == min(self.limit, len(due)), "due and not promoted"
        assert timedelta(0) <= promoted.sleep <= timedelta(seconds=1)
        assert promoted.sleep == timedelta(0) or promoted.count < self.limit, "sleeps although there is more"
        for job_id in ids:
            job = view.get(job_id)
            assert job is not None
            view.put(model.promoted(job))
            yield f"promote: {job.trigger}"
            if job.due_in_s <= -WINDOW_S:
                yield "promote after a minute"


@dataclass
class Rescue(Statement[list[Rescued]]):
    """`watched` below a lease (an hour) spares workers; below half a minute it spares everybody."""

    limit: int
    watched: timedelta | None
    segments: LiveSegments

    async def run(self, session: Session) -> list[Rescued]:
        rows = await queue.rescue(session, self.segments, self.limit, self.watched)
        back = [row.job_id for row in rows if row.way == "scheduled"]  # the delay is drawn by chance: an hour instead
        await session.execute(
            """update duly.scheduled set run_at = clock_timestamp() + interval '1 hour'
               where job_id = any ($1) and run_at <= clock_timestamp() + interval '75 seconds'""",
            back,
        )
        return rows

    def effect(self, view: View, answer: list[Rescued]) -> Iterable[str]:
        lost = {job.id: why for job in view.free() if job.place == "running" and (why := self._why(view, job))}
        assert {row.job_id: row.outcome for row in answer}.items() <= lost.items(), "rescued from a good lease"
        assert len(answer) == min(self.limit, len(lost)), "lost and not rescued"
        for row in answer:
            job = view.get(row.job_id)
            assert job is not None
            assert (row.attempt, row.worker_id) == (job.attempt, job.worker)
            after = model.rescued(job, row.outcome)
            assert row.way == after.place
            view.put(after)
            yield f"rescue {row.outcome}"
            yield f"rescue: {row.way}"
        held = {job.worker for job in view.jobs()}
        for worker, left_s in list(view.world.workers.items()):
            if left_s < -model.FORGOTTEN_S and worker not in held:
                assert view.session is None
                del view.world.workers[worker]
                yield "rescue: worker forgotten"

    def forgets(self, view: View) -> bool:
        """Whether it may delete rows of workers, which the rules keep out of transactions that stay open."""
        return any(left_s < -model.FORGOTTEN_S for left_s in view.world.workers.values())

    def _why(self, view: View, job: Job) -> str | None:
        assert job.worker is not None
        watched_s = float("inf") if self.watched is None else self.watched.total_seconds()
        left_s = view.world.workers.get(job.worker)
        if left_s is None or (left_s <= 0 and watched_s > HOUR_S):
            return "worker_lost"
        return "timeout" if job.deadline_in_s <= 0 and watched_s > 30 else None


@dataclass
class Move(Statement[tuple[int, set[UUID], set[UUID]]]):
    """Answers how many, which rows were there, and which of them are left."""

    line: Line
    segment: int
    limit: int

    async def run(self, session: Session) -> tuple[int, set[UUID], set[UUID]]:
        there = f"select job_id from duly.{self.line} where segment = $1"
        before = await _ids(session, there, self.segment)
        moved = await queue.move(session, self.line, self.segment, self.limit)
        return moved, before, await _ids(session, there, self.segment)

    def effect(self, view: View, answer: tuple[int, set[UUID], set[UUID]]) -> Iterable[str]:
        moved, before, left = answer
        free = {job.id for job in view.free()}
        assert before - left <= free, "carried over what somebody holds"
        assert moved == len(before - left) == min(self.limit, len(before & free))
        for job_id in before - left:
            job = view.get(job_id)
            assert job is not None
            assert job.place == ("ready" if self.line == "ready" else "running")
            view.put(job)
            yield f"move {self.line}"
        if before - free:
            yield "move: held rows passed by"


def claims_of(jobs: Iterable[Job]) -> Counter[tuple[UUID, int]]:
    """How often each attempt was handed out."""
    return Counter((job.id, attempt) for job in jobs for attempt in job.claims)


async def _ids(session: Session, statement: str, *args: Any) -> set[UUID]:
    return {row["job_id"] for row in await session.fetch(statement, *args)}
