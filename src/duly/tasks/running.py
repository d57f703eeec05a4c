"""The runtime of tasks: a handler for each kind, to be given to a worker.

Job code never runs on the worker's own loop. When an attempt's time is over, or it is to stop, its code is told so
(`cancelled` is set, a coroutine is cancelled, a process gets word) and has a moment to end; then its job is settled
without it. What cannot be stopped, a thread or a coroutine that goes on, is a stray: it is reported, and too many of
them make the worker unhealthy.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from duly import queue
from duly.model.errors import InvalidInputError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Bury, Cancel, Interrupted, Outcome, Report, Retry, Snooze, Success
from duly.queue import Database, NotedProgress
from duly.tasks.app import App
from duly.tasks.attempts import run_async, run_sync
from duly.tasks.context import Context, Progress
from duly.tasks.in_processes import Process, Processes
from duly.tasks.in_threads import Threads
from duly.tasks.mailbox import Mailbox
from duly.tasks.on_loop import BLOCKED_AFTER_S, Attempt, JobLoop, in_fresh_context
from duly.tasks.task import Task
from duly.tasks.wire import Job
from duly.worker import Handler

log = logging.getLogger("duly.task")

STOP_GRACE = timedelta(seconds=1.5)
"""How long an attempt that was told to stop may take to end; less than what the worker leaves beyond the time limit."""

_WATCH_EVERY_S = 0.25
_PROGRESS_EVERY_S = 1.0
_CLOSE_LIMIT_S = 2.0


class Runtime:
    """Runs tasks while it is entered. `stray_limit`: how much code that cannot be stopped is tolerated; then
    `unhealthy` is set.

    `db` keeps progress; None: nobody does.
    """

    def __init__(self, apps: Iterable[App], db: Database | None = None, *, stray_limit: int = 64) -> None:
        self._tasks = {kind: task for app in apps for task in app for kind in task.kinds}
        self._db = db
        self._stray_limit = stray_limit
        self._strays: set[str] = set()
        self._left_loops: list[JobLoop] = []
        self._progress: dict[tuple[Any, int], NotedProgress] = {}
        self._running_on: dict[JobLoop, dict[Attempt, asyncio.Future[Outcome]]] = {}
        self.unhealthy = asyncio.Event()
        for task in self._tasks.values():
            if task.run_in == "process":
                _where(task)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop)
        self._threads = Threads("duly-task")
        self._processes = Processes()
        self._loops_made = 0
        self._job_loop: JobLoop | None = None
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        self._threads.close()
        await self._processes.close()
        if self._job_loop is not None:
            self._job_loop.close()
            await asyncio.to_thread(self._job_loop.join, _CLOSE_LIMIT_S)

    @property
    def strays(self) -> int:
        """How many attempts are settled whose code still runs; and loops that were left and have not ended."""
        self._left_loops = [left for left in self._left_loops if not left.join(0)]
        return len(self._strays) + len(self._left_loops)

    def handlers(self) -> dict[str, Handler]:
        """For tasks that run in the worker's process, by kind."""
        return {
            kind: partial(self._run_async if task.is_async else self._run_sync, task)
            for kind, task in self._tasks.items()
            if task.run_in != "process"
        }

    def process_handlers(self) -> dict[str, Handler]:
        """For those that run in processes of their own; as many run at once as the worker has slots."""
        return {
            kind: partial(self._run_in_process, task) for kind, task in self._tasks.items() if task.run_in == "process"
        }

    async def _run_async(self, task: Task[Any, Any, Any], job: ClaimedJob) -> Outcome:
        context = self._context(task, job)
        done: asyncio.Future[Outcome] = self._loop.create_future()
        on = self._present_loop()

        def work() -> Coroutine[Any, Any, Outcome]:
            return run_async(task, job.payload_json, context, job.retry.on)

        attempt = Attempt(f"{task.name} {job.id} {job.attempt}", work, self._reporter(done, context))
        running = self._running_on.setdefault(on, {})
        running[attempt] = done
        on.start(attempt)
        try:
            return await self._watched(
                job, context, done, stop=lambda: on.cancel(attempt), left=lambda: self._left_on_loop(on, attempt)
            )
        finally:
            running.pop(attempt, None)

    async def _run_sync(self, task: Task[Any, Any, Any], job: ClaimedJob) -> Outcome:
        context = self._context(task, job)
        done: asyncio.Future[Outcome] = self._loop.create_future()
        report = self._reporter(done, context)

        def work() -> None:
            report(in_fresh_context(lambda: run_sync(task, job.payload_json, context, job.retry.on)))

        thread = self._threads.start(work)
        return await self._watched(job, context, done, stop=lambda: None, left=thread.stack)

    async def _run_in_process(self, task: Task[Any, Any, Any], job: ClaimedJob) -> Outcome:
        context = self._context(task, job)
        process = await self._processes.take()
        module, function = _where(task)
        told = Job(
            module,
            function,
            task.name,
            job.payload_json,
            str(job.id),
            job.attempt,
            context.is_final,
            job.queue,
            job.timeout.total_seconds(),
            job.retry.on,
        )
        done = asyncio.ensure_future(process.run(told, lambda progress: self._note(context, progress)))
        try:
            return await self._watched(job, context, done, stop=process.ask_to_stop, left=None)
        finally:
            self._after(process, done)

    def _after(self, process: Process, done: asyncio.Future[Outcome]) -> None:
        if done.done() and not done.cancelled():
            self._processes.give(process)
        else:
            self._processes.drop(process)
            done.cancel()

    async def _watched(
        self,
        job: ClaimedJob,
        context: Context,
        done: asyncio.Future[Outcome],
        stop: Callable[[], object],
        left: Callable[[], str | None] | None,
    ) -> Outcome:
        """Wait for the outcome within the time limit. `left()` says where code is that does not end, None if it is
        no stray after all.
        """
        limit_s = job.timeout.total_seconds()
        is_late = False
        try:
            await asyncio.wait({done}, timeout=limit_s)
            if done.done():
                return done.result()
            is_late = True
            return await self._stopped(job, context, done, stop, left, limit_s)
        except asyncio.CancelledError:
            if is_late:  # in the moment that it had to end
                return self._given_up(job, context, done, left, limit_s)
            outcome = await self._stopped(job, context, done, stop, left, limit_s)
            if isinstance(outcome, Success | Snooze | Bury | Cancel):  # it had ended, or ended so when told to
                return outcome
            raise

    async def _stopped(
        self,
        job: ClaimedJob,
        context: Context,
        done: asyncio.Future[Outcome],
        stop: Callable[[], object],
        left: Callable[[], str | None] | None,
        limit_s: float,
    ) -> Outcome:
        context.cancelled.set()
        stop()
        await asyncio.wait({done}, timeout=STOP_GRACE.total_seconds())
        if done.done():
            outcome = done.result()
            is_failure = isinstance(outcome, Retry) and outcome.at_least is None
            return _timed_out(limit_s, "") if is_failure else outcome
        return self._given_up(job, context, done, left, limit_s)

    def _given_up(
        self,
        job: ClaimedJob,
        context: Context,
        done: asyncio.Future[Outcome],
        left: Callable[[], str | None] | None,
        limit_s: float,
    ) -> Outcome:
        if left is None:
            return _timed_out(limit_s, "; its process was killed")
        where = left()
        if where is None:
            return Interrupted(Report("interrupted", error="the event loop was blocked by another job's code"))
        self._strayed(job, context, where, done)
        return _timed_out(limit_s, "; its code cannot be stopped and goes on")

    def _left_on_loop(self, on: JobLoop, attempt: Attempt) -> str | None:
        """An attempt on a loop does not end. If the loop is blocked, others must not wait any longer: it is
        replaced.
        """
        if on.blocked_for_s < BLOCKED_AFTER_S:
            return "in a coroutine that ignores its cancellation"
        blocking = on.blocking()
        stack = on.stack()
        if on is self._job_loop:
            log.warning(
                "replacing an event loop that job code blocks",
                extra={"running": None if blocking is None else blocking.name},
            )
            self._job_loop = None
            self._left_loops.append(on)
            on.leave()
            for other, done in list(self._running_on.pop(on, {}).items()):
                if other is not blocking and other is not attempt and not done.done():
                    done.set_result(
                        Interrupted(Report("interrupted", error="the event loop was blocked by another job's code"))
                    )
            self._judge()
        return stack if blocking is attempt else None

    def _strayed(self, job: ClaimedJob, context: Context, where: str, done: asyncio.Future[Outcome]) -> None:
        name = f"{context.task} {job.id} {job.attempt}"
        self._strays.add(name)
        done.add_done_callback(lambda _: self._strays.discard(name))
        log.warning(
            "job code goes on after its time:\n%s",
            where,
            extra={"job_id": str(job.id), "attempt": job.attempt, "task": context.task, "strays": self.strays},
        )
        self._judge()

    def _judge(self) -> None:
        if self.strays > self._stray_limit and not self.unhealthy.is_set():
            log.error("too much job code goes on after its time: this worker ends", extra={"strays": self.strays})
            self.unhealthy.set()

    def _context(self, task: Task[Any, Any, Any], job: ClaimedJob) -> Context:
        return Context(
            job.id,
            job.attempt,
            job.attempt >= job.final_attempt,
            task.name,
            job.queue,
            job.timeout,
            on_progress=self._note,
        )

    def _reporter(self, done: asyncio.Future[Outcome], context: Context) -> Callable[[Outcome], None]:
        """From the thread that ran the code to whoever waits on the worker's loop."""

        def take(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        return lambda outcome: self._mailbox.post(partial(take, outcome))

    def _note(self, context: Context, progress: Progress) -> None:
        """From any thread; the latest word is kept until the next round."""
        said = {"share": progress.share, "message": progress.message}
        self._progress[context.job_id, context.attempt] = NotedProgress(context.job_id, context.attempt, said)

    def _present_loop(self) -> JobLoop:
        if self._job_loop is None:
            self._loops_made += 1
            self._job_loop = JobLoop(f"duly-tasks-{self._loops_made}")
        return self._job_loop

    async def _watch(self) -> None:
        """Look after the loop of job code, and write progress now and then."""
        next_progress = self._loop.time() + _PROGRESS_EVERY_S
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            if self._job_loop is not None:
                self._job_loop.tell_if_blocked()
                self._job_loop.tick()
            if self._progress and self._db is not None and self._loop.time() >= next_progress:
                next_progress = self._loop.time() + _PROGRESS_EVERY_S
                await self._write_progress(self._db)

    async def _write_progress(self, db: Database) -> None:
        noted = [self._progress.pop(token) for token in list(self._progress)]
        try:
            await queue.note_progress(db, noted)
        except Exception as error:  # it is only told to people: the next round tries again with newer words
            log.info("progress was not written", extra={"error": str(error)})


def _timed_out(limit_s: float, what: str) -> Outcome:
    return Retry(Report("timeout", error=f"did not end within {limit_s:g} s{what}"))


def _where(task: Task[Any, Any, Any]) -> tuple[str, str]:
    """The module and the name in it where another process finds the task."""
    module, name = task.function.__module__, task.function.__qualname__
    if "<" in name:
        raise InvalidInputError(
            f"task {task.name} runs in a process, which finds it by its module: define it at the top of one"
        )
    if module == "__main__":
        raise InvalidInputError(
            f"task {task.name} runs in a process, which cannot import the script that runs: define it in a module"
        )
    return module, name


def threads_left() -> list[threading.Thread]:
    """Threads that job code has made and that would keep the process from ending."""
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and thread.is_alive() and not thread.daemon
    ]


def stacks_of(threads: Iterable[threading.Thread]) -> str:
    """Where they are, for the log."""
    import sys

    frames = sys._current_frames()
    shown = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        shown.append(f"{thread.name}:\n{''.join(traceback.format_stack(frame)) if frame else '(unknown)'}")
    return "\n".join(shown)
