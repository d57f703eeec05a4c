"""One worker process from start to drain."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from duly import queue
from duly.model.errors import DatabaseUnavailableError, InvalidInputError
from duly.model.jobs import ClaimedJob
from duly.model.settlement import release
from duly.queue.claiming import Shares
from duly.queue.database import RESERVE, Database
from duly.worker.claimer import Claimer, Slots
from duly.worker.config import WorkerConfig
from duly.worker.executor import Executor
from duly.worker.heartbeat import Heartbeat
from duly.worker.listener import Wakeups
from duly.worker.settler import Settler
from duly.worker.sharing import shares
from duly.worker.skew import warn_of_skew
from duly.worker.waiting import first_of

log = logging.getLogger("duly.worker")

LEAST_CONNECTIONS = 2
_SETTLERS = RESERVE
_LAST_WORDS_S = 10.0  # after the grace: for aborted jobs to end and their outcomes to be written


@dataclass(frozen=True, slots=True)
class Drained:
    """How a worker ended. `clean`: everything it held was settled or given back."""

    settled: int
    interrupted: int
    clean: bool


class Worker:
    """Claims, runs and settles jobs until told to stop; then drains.

    `db` is used for claims, and may be lent to handlers. What must not wait for those has connections of its own:
    settling and registering the reserve of `db`, the heartbeat one that it makes from `dsn`. One instance runs once.

    Raises InvalidInputError if the pool of `db` is too small.
    """

    def __init__(self, config: WorkerConfig, db: Database, dsn: str, wakeups: Wakeups) -> None:
        if db.max_size < LEAST_CONNECTIONS:
            raise InvalidInputError(
                f"the worker's pool has max_size {db.max_size}: claims and upkeep need {LEAST_CONNECTIONS} or more, "
                "and each handler that holds a connection while it runs one more"
            )
        self.config = config
        self._db = db
        self._dsn = dsn
        self._worker_id = 0
        self._registered_at = 0.0
        self._slots = Slots(config.concurrency)
        self._executor = Executor(config.handlers)
        self._settler = Settler(
            db.reserve, config.settle_batch, self._slots.end, lambda: self._claimer.doubt(), config.observer
        )
        self._claimer = Claimer(
            db,
            config,
            self._slots,
            lambda: self._worker_id,
            lambda: self.fenced,
            self._held,
            self._start,
            wakeups.subscribe(),
            self._shares,
        )
        self._stopping = asyncio.Event()
        self._settling_ends = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._heartbeat: Heartbeat | None = None
        self._register_anew: asyncio.Task[None] | None = None
        self.started = asyncio.Event()

    @property
    def worker_id(self) -> int:
        """The present registration; 0 before the start."""
        return self._worker_id

    @property
    def running(self) -> int:
        """Jobs that run now."""
        return self._executor.running

    @property
    def held(self) -> int:
        """Slots in use: jobs that run, and outcomes on their way to the database; not what a claim asks for."""
        return len(self._held())

    @property
    def fenced(self) -> bool:
        """True while the lease may have run out."""
        return self._heartbeat is not None and self._heartbeat.fenced

    async def run(self, stopping: asyncio.Event, aborting: asyncio.Event | None = None) -> Drained:
        """Work until `stopping` is set, then drain: claim no more, keep renewing, let what runs end, settle, give back.

        The grace bounds how long it waits for what runs; `aborting` cuts it short. Then about ten seconds are left for
        the last outcomes, whether the database answers or not. Raises DatabaseUnavailableError if it cannot start.
        """
        await self._db.reserve.connect(RESERVE)  # held from here on, however full the server gets
        await self._register()
        self._heart_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heartbeat = self._make_heartbeat()
        self._heartbeat.start()
        settlers = [asyncio.create_task(self._settler.run(self._settling_ends)) for _ in range(_SETTLERS)]
        claimer = asyncio.create_task(self._claimer.run(self._stopping))
        warden = asyncio.create_task(self._end_overdue())
        teller = asyncio.create_task(warn_of_skew(self._db, self._worker_id))
        stop = asyncio.create_task(_set(stopping))
        self.started.set()
        try:
            await asyncio.wait({stop, self._heart_failed, claimer, *settlers}, return_when=asyncio.FIRST_COMPLETED)
            for task in (self._heart_failed, claimer, *settlers):
                if task.done():
                    task.result()  # a loop that died ends the process, loudly
            return await self._drain(claimer, settlers, aborting or asyncio.Event())
        finally:
            if not self._heart_failed.cancel():
                self._heart_failed.exception()
            for task in (stop, warden, teller, claimer, *settlers):
                task.cancel()
            await asyncio.gather(stop, warden, teller, claimer, *settlers, return_exceptions=True)
            await self._heartbeat.stop()

    async def _drain(
        self, claimer: asyncio.Task[None], settlers: list[asyncio.Task[None]], aborting: asyncio.Event
    ) -> Drained:
        log.info("draining", extra={"worker_id": self._worker_id, "running": self._executor.running})
        self._stopping.set()
        await first_of(self._idle, aborting, limit_s=self.config.grace.total_seconds())
        half_over_at = time.monotonic() + _LAST_WORDS_S / 2
        over_at = half_over_at + _LAST_WORDS_S / 2
        interrupted = self._executor.running
        if interrupted:
            log.warning("grace is over, stopping what still runs", extra={"running": interrupted})
            self._executor.abort_all()
            await first_of(self._idle, limit_s=_left_s(half_over_at))
        await asyncio.wait({claimer}, timeout=_left_s(half_over_at))  # what it still brings is given back
        self._settling_ends.set()
        _, unwritten = await asyncio.wait(settlers, timeout=_left_s(over_at))
        clean = not unwritten and not self._executor.running and claimer.done()
        claimer.cancel()
        try:
            async with asyncio.timeout(_left_s(over_at)):
                await asyncio.wait({claimer})
                await self._claimer.last_word(self._db.reserve)
                await queue.deregister(self._db.reserve, self._worker_id)
        except (DatabaseUnavailableError, asyncpg.PostgresError, TimeoutError) as error:
            log.warning("could not deregister", extra={"worker_id": self._worker_id, "error": str(error)})
            clean = False
        return Drained(self._settler.settled_total, interrupted, clean)

    def _start(self, job: ClaimedJob, worker_id: int) -> None:
        if self._stopping.is_set() or self.fenced:  # claimed while the stop or the fence came: give it back unstarted
            self._settler.add(release(job), worker_id)
            return
        task = asyncio.create_task(self._run_job(job, worker_id))
        self._executor.started(job, task)
        self._idle.clear()

    async def _run_job(self, job: ClaimedJob, worker_id: int) -> None:
        settlement = await self._executor.execute(job)
        self._settler.add(settlement, worker_id)
        self._executor.ended(job)
        if not self._executor.running:
            self._idle.set()

    async def _end_overdue(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._executor.abort_overdue()

    def _held(self) -> set[UUID]:
        return self._executor.job_ids() | self._settler.holding()

    def _shares(self, wanted: int) -> Shares:
        if not self.config.shared:
            return Shares()
        return shares(self.config.concurrency, self._executor.running, self._executor.by_account(), wanted)

    async def _register(self) -> None:
        config = self.config
        self._registered_at = time.monotonic()
        queues = None if config.queues is None else list(config.queues)
        self._worker_id = await queue.register(
            self._db.reserve, config.name, sorted(config.handlers), queues, config.concurrency, config.lease
        )
        log.info("registered", extra={"worker_id": self._worker_id, "worker": config.name})

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._dsn,
            self._db.schema,
            self._worker_id,
            self._registered_at,
            self.config.lease,
            self._db.trouble,
            asyncio.get_running_loop(),
            on_fenced=self._executor.abort_all,
            on_unknown=self._on_unknown,
            on_abort=self._on_abort,
            on_failed=self._on_heartbeat_failed,
        )

    def _on_heartbeat_failed(self, error: BaseException) -> None:
        self._executor.abort_all()
        if not self._heart_failed.done():
            self._heart_failed.set_exception(error)

    def _on_abort(self, attempts: frozenset[tuple[UUID, int]]) -> None:
        for job_id, attempt in attempts:
            self._executor.abort(job_id, attempt)

    def _on_unknown(self) -> None:
        """The database does not know this worker any more: what it held is lost; start over under a new id."""
        if self._settling_ends.is_set():  # it is going, and has taken its row away itself
            return
        if self._register_anew is not None and not self._register_anew.done():
            return
        log.warning("not registered any more, registering anew", extra={"worker_id": self._worker_id})
        self._executor.abort_all()
        self._register_anew = asyncio.create_task(self._again())

    async def _again(self) -> None:
        try:
            await self._register()
        except (DatabaseUnavailableError, asyncpg.PostgresError) as error:
            self._db.trouble.failed("register", error)
            return  # the heartbeat will notice again
        self._db.trouble.fine("register")
        assert self._heartbeat is not None  # it was the one to notice
        self._heartbeat.worker_id = self._worker_id


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _left_s(until: float) -> float:
    """The time until then, but a moment at least: whoever comes last may still try."""
    return max(until - time.monotonic(), _LAST_WORDS_S / 10)
