"""One cell, from an empty database to what was seen."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psutil

from duly import queue
from duly.embedded import EmbeddedPostgres
from duly.model.errors import DatabaseUnavailableError
from duly.queue import Database
from matrix.cells import BLOCKED, HELD, LATE_COMMIT, LEASE_OVER, WIRED, Cell, Fault
from matrix.judging import Seen
from matrix.points import AT_POINT
from matrix.refusing import allow, refusals, refuse
from matrix.scenes import SCENES, Scene, Stage
from matrix.wire import Loss, Wire, wired
from support.crash_fleet import Fleet, Process
from support.crash_ledger import ends, ledger
from support.engine import Engine
from support.sessions import somebody_waits, until, until_true

T = TypeVar("T")

SHORT_LEASE_S = 1.0  # of a victim that loses it
AWAY_LEASE_S = 3.0  # of one that must not lose it before the network goes
LONG_LEASE_S = 8.0  # of everybody else: never lost to a busy machine …
LONGEST_LEASE_S = 24.0  # … nor to a server that recovers on one
LOST_LEASE = timedelta(seconds=0.2)  # of the worker by hand that was lost before
OTHERS_LOOKED_S = 3.0  # two rounds of rescue by a process that must watch the database for a lease first
SAYS_PATIENCE_S = 15.0
FENCED = "lease not renewed in time, stopping what runs"
_ANSWERS = (
    "created",
    "repeated",
    "conflict",
    "cancelled",
    "requested",
    "final",
    "missing",
    "run",
    "redriven",
    "wrong_state",
)
_ACTIONS = {Fault.KILL: "die", Fault.STOP: "stop"}
_LEASES_S = {Fault.KILL: SHORT_LEASE_S, Fault.STOP: SHORT_LEASE_S, Fault.AWAY: AWAY_LEASE_S}
_LOSES_ONE = (Fault.QUESTION_LOST, Fault.ANSWER_LOST)


class Cast(Fleet):
    """Workers as the crash tests have them, and processes that meet a fault."""

    def actor(self, *arguments: str) -> Process:
        return self._spawn("matrix.victim", list(arguments))


@dataclass
class Run:
    """A cell while it runs. `others` reach the database directly, the victim through the wire where that is cut."""

    cell: Cell
    scene: Scene
    stage: Stage
    others: Cast
    victims: Cast
    wire: Wire
    server: EmbeddedPostgres | None
    seen: Seen
    final_rows: Any = None

    @property
    def gate(self) -> Path:
        """What a victim waits for at its point."""
        return self.others.gate("point-gate")


async def run_cell(cell: Cell, dsn: str, folder: Path, server: EmbeddedPostgres | None = None) -> Seen:
    """Run a cell on a fresh, migrated database; one that restarts the server needs a server of its own.

    What did not come in time is told in `trouble`. Leaves no process behind.
    """
    seen, scene, others = Seen(), SCENES[cell.path], Cast(dsn, folder)
    try:
        async with wired(dsn) as wire, await Database.open(dsn, max_size=4, name="matrix") as db:
            stage = Stage(db, dsn, await Engine.start(db, LOST_LEASE), others.gate("job-gate"))
            indirect = cell.fault in WIRED or scene.unheard
            victims = Cast(wire.url if indirect else dsn, folder, others.processes)
            run = Run(cell, scene, stage, others, victims, wire, server, seen)
            try:
                await _prepare(run)
                async with _watched(db, seen):
                    await _play(run)
            finally:
                for process in others.processes:
                    process.kill()
                await _collect(run)
    except (TimeoutError, AssertionError, DatabaseUnavailableError) as error:
        seen.trouble = f"{type(error).__name__} in {_where(error)}: {error}"
    seen.log = "".join(f"--- {process.log.name}\n{process.log.read_text()[-6000:]}" for process in others.processes)
    return seen


async def _prepare(run: Run) -> None:
    stage = run.stage
    await run.scene.prepare(stage)
    if run.scene.call != "rescue":  # the only workers are those of the cell
        await queue.deregister(stage.db, stage.engine.worker_id)
    if run.cell.fault is Fault.DISK_FULL:
        assert run.scene.write is not None
        await refuse(stage.db, run.scene.write)


async def _play(run: Run) -> None:
    cell, scene, stage, seen = run.cell, run.scene, run.stage, run.seen
    loss = _loss(run)
    victim = await _launch(run, loss)
    await _met(run, victim, loss)
    if scene.committed is not None:
        seen.committed = await stage.db.fetchval(scene.committed)
    if loss is not None:
        loss.go.set()
    if cell.while_stopped == LATE_COMMIT:
        await stage.afterwards()
        victim.send(signal.SIGCONT)
    if cell.while_stopped == HELD:
        stage.job_gate.unlink(missing_ok=True)
    other = await run.others.worker(lease_s=LONGEST_LEASE_S if cell.restarts else LONG_LEASE_S)
    clients = [victim] if scene.role == "ask" else []
    if scene.role == "ask" and cell.fault in _ACTIONS:
        clients.append(run.others.actor(*_request(run)))
    if cell.while_stopped != LATE_COMMIT:
        await stage.afterwards()
        if cell.fault in _LEASES_S and cell.while_stopped != HELD:
            stage.job_gate.touch()
        await _go_on(run, victim, other)
    stage.job_gate.touch()
    await _all_final(run)
    await until(_patient(lambda: stage.db.fetchval(scene.leaves)))
    await _end(run, victim, other, clients)


def _loss(run: Run) -> Loss | None:
    """What the wire is to lose."""
    if run.cell.fault not in _LOSES_ONE:
        return None
    return Loss(run.scene.words, "question" if run.cell.fault is Fault.QUESTION_LOST else "answer", run.scene.worth)


async def _launch(run: Run, loss: Loss | None) -> Process:
    """Start the victim and bring it to where the fault may come."""
    cell, scene = run.cell, run.scene
    losses = [loss] if loss is not None else []
    if scene.unheard:
        unheard = Loss("duly.claim(", "answer", "rows")
        unheard.go.set()
        losses.insert(0, unheard)
    if not scene.busy:
        run.wire.losses = losses
    victim = run.victims.actor(*_request(run), *_point(run))
    if scene.busy:
        await until_true(lambda: run.others.journal.entries("start"))
        run.wire.losses = losses
    if scene.drains:
        victim.send(signal.SIGTERM)
        await until_true(lambda: not victim.alive or victim.said("draining") or run.others.journal.entries(AT_POINT))
        if cell.path == "drain, deregister":
            run.stage.job_gate.touch()
    return victim


def _request(run: Run) -> list[str]:
    """The command line of a process that plays the scene's part."""
    lease_s = _LEASES_S.get(run.cell.fault, LONGEST_LEASE_S if run.cell.restarts else LONG_LEASE_S)
    arguments = [f"--role={run.scene.role}", f"--lease={lease_s}"]
    if run.scene.role == "ask":
        owner = run.stage.engine.owner
        arguments += [f"--ask={run.scene.call}", f"--account={owner.account_id}", f"--project={owner.project_id}"]
        if run.scene.call != "advance":
            arguments += [f"--jobs={','.join(map(str, run.stage.jobs))}"]
    return arguments


def _point(run: Run) -> list[str]:
    """The command line's part about the fault point, where there is one."""
    cell = run.cell
    if cell.fault in _LOSES_ONE or cell.fault is Fault.DISK_FULL:
        return []
    action = _ACTIONS.get(cell.fault, "wait")
    return [f"--call={run.scene.call}", f"--step={cell.step.name}", f"--action={action}", f"--gate={run.gate}"]


async def _met(run: Run, victim: Process, loss: Loss | None) -> None:
    """Return when the victim has met the fault."""
    match run.cell.fault:
        case Fault.KILL:
            assert await victim.ended() == -signal.SIGKILL
            assert run.others.journal.entries(AT_POINT, victim.pid)
        case Fault.STOP:
            await until_true(lambda: psutil.Process(victim.pid).status() == psutil.STATUS_STOPPED)
        case Fault.QUESTION_LOST | Fault.ANSWER_LOST:
            assert loss is not None
            async with asyncio.timeout(20):
                await loss.caught.wait()
        case Fault.DISK_FULL:

            async def refused() -> bool:
                return await refusals(run.stage.db) >= run.scene.refusals

            await until(refused)
        case _:
            await until_true(lambda: run.others.journal.entries(AT_POINT, victim.pid))


async def _go_on(run: Run, victim: Process, other: Process) -> None:
    """What the fault is, where it comes from outside, and its end."""
    match run.cell.fault:
        case Fault.STOP:
            await _while_stopped(run, other)
            victim.send(signal.SIGCONT)
        case Fault.CUT:
            run.wire.cut()
        case Fault.AWAY:
            run.wire.mode = "black_hole"
            await until_true(lambda: victim.said(FENCED))
            await _while_stopped(run, other)
            run.wire.mode = "pass"
            run.wire.cut()  # what has lost bytes is of no use
        case Fault.CRASH:
            assert run.server is not None
            run.server.kill()
            run.server.start()
        case Fault.FAST:
            assert run.server is not None
            run.server.stop()
            run.server.start()
        case Fault.DISK_FULL:
            assert run.scene.write is not None
            await allow(run.stage.dsn, run.scene.write)
        case _:
            pass
    run.gate.touch()
    if run.cell.while_stopped == HELD:
        await _says(run, victim)
        held = "select count(*) from duly.lease l join duly.worker w on w.id = l.worker_id where w.name like '%:' || $1"
        if await run.stage.db.fetchval(held, str(other.pid)) != len(run.stage.jobs):
            run.seen.faults.append("a late write took another worker's lease")


async def _while_stopped(run: Run, other: Process) -> None:
    db = run.stage.db
    match run.cell.while_stopped:
        case words if words == BLOCKED:
            await somebody_waits(db)
        case words if words == LEASE_OVER:
            await until(
                lambda: db.fetchval(
                    """select every(case when w.name like '%:' || $1 then w.started_at + make_interval(secs => $2)
                                    else w.lease_expires_at end < clock_timestamp()) from duly.worker w""",
                    str(other.pid),
                    OTHERS_LOOKED_S,
                )
            )
        case words if words == HELD:
            second = {(job, 2) for job in run.stage.jobs}
            await until_true(lambda: run.others.journal.starts(other.pid).keys() == second)
        case _:
            await _all_final(run)


async def _says(run: Run, victim: Process) -> None:
    """Wait until the victim has said what it must."""
    if run.cell.says is not None:
        words = run.cell.says
        with suppress(TimeoutError):
            await until_true(lambda: victim.said(words) or not victim.alive, SAYS_PATIENCE_S)
        run.seen.said = victim.said(words)


async def _all_final(run: Run) -> None:
    """Return when every job is in the state that the cell expects; remember what is written then."""
    db, jobs = run.stage.db, run.stage.jobs
    there = "select count(*) = cardinality($1::uuid[]) from duly.outcome where job_id = any ($1) and state = $2"
    await until(_patient(lambda: db.fetchval(there, jobs, run.cell.state)))
    if run.final_rows is None:
        run.final_rows = await _rows(db)


async def _rows(db: Database) -> Any:
    """What may not change any more; what is old enough for retention may go."""
    young = "job_id > duly.uuid7_floor(now() - interval '2 days')"
    return (
        await db.fetch(f"select * from duly.attempt where {young} order by job_id, number"),
        await db.fetch(f"select * from duly.outcome where {young} order by job_id"),
    )


async def _end(run: Run, victim: Process, other: Process, clients: list[Process]) -> None:
    """Ask everybody to go, and see what they say and do at the end."""
    await _says(run, victim)
    if victim not in clients and not run.scene.drains and victim.alive:
        victim.send(signal.SIGTERM)
    run.seen.exit_code = await victim.ended()
    other.send(signal.SIGTERM)
    code = await other.ended()
    assert code == 0, f"the other worker did not drain cleanly: exit code {code}"
    for client in clients:
        assert await client.ended() in (0, -signal.SIGKILL), "a client failed"
    run.seen.changed = await _rows(run.stage.db) != run.final_rows


async def _collect(run: Run) -> None:
    """Read what is left: the ledger, the final states, and what the processes wrote down."""
    db, seen, journal = run.stage.db, run.seen, run.others.journal
    seen.jobs = list(run.stage.jobs)
    seen.acknowledged = journal.jobs("acknowledged") | (set() if run.cell.path == "enqueue" else set(seen.jobs))
    seen.answers = {word for word in _ANSWERS if journal.entries(f"told-{word}")}
    seen.starts = journal.starts()
    await until(_patient(lambda: db.fetchval("select true")))
    seen.ledger = await ledger(db)
    seen.states = {job: end.state for job, end in (await ends(db)).items()}


@asynccontextmanager
async def _watched(db: Database, seen: Seen) -> AsyncIterator[None]:
    """Meanwhile conservation is looked at again and again."""

    async def watch() -> None:
        while True:
            with suppress(DatabaseUnavailableError):
                count = await queue.conservation(db)
                seen.looks += 1
                if count.faults:
                    seen.faults.append(f"conservation: {count.faults}")
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield
        count = await queue.conservation(db)
        if count.faults or (count.scheduled, count.ready, count.running) != (0, 0, 0):
            seen.faults.append(f"at the end: {count}")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _patient(what: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T | None]]:
    """The same question, which a server that is away answers with None."""

    async def look() -> T | None:
        try:
            return await what()
        except DatabaseUnavailableError:
            return None

    return look


def _where(error: BaseException) -> str:
    """The functions of this file that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    return " > ".join(frame.name for frame in frames if frame.filename == __file__)
