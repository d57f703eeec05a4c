"""Rules: what workers do. Register and renew, claim, settle rightly and wrongly, give back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from duly import queue
from duly.model import DeadReason, Report, Settlement
from duly.model.settlement import Edge
from machine.drawing import KINDS, LATE, NOW, Patience, edges, nth, patience, picks, rival, step, undo, where
from machine.model import HOUR_S, View
from machine.stage import Stage
from machine.statements import ALL, GiveBack, Settle


class Workers(Stage):
    @step(
        do=st.sampled_from(("heartbeats", "heartbeat", "heartbeat", "register", "deregister", "read segments")),
        pick=picks,
    )
    def live(self, do: str, pick: int) -> None:
        """A worker's own life. The list of segments that a claim passes is as old as the worker's last look."""
        worker = nth(self.workers, pick)
        match do:
            case "heartbeat":
                gone = [one for one in self.workers if one not in self.world.workers]
                asked = sorted({job.worker for job in self._running() if job.worker and job.abort_requested})
                self._heartbeat(nth(gone + asked or self.workers, pick))
            case "heartbeats":
                for worker in sorted(self.world.workers):
                    self._heartbeat(worker)
            case "register" if len(self.world.workers) < 4:
                self._register()
            case "deregister" if len(self.world.workers) > 1:
                worker = nth(sorted(self.world.workers), pick)
                self._do(queue.deregister(self._main(), worker))
                del self.world.workers[worker]
                self._reach("deregister")
            case _:
                self.lists[worker] = self._do(queue.live_segments(self._main(), "ready"))
                self.lease_list = self._do(queue.live_segments(self._main(), "lease"))

    def _heartbeat(self, worker: int) -> None:
        renewal = self._do(queue.heartbeat(self._main(), worker))
        assert (renewal is not None) == (worker in self.world.workers)
        if renewal is None:
            self._reach("heartbeat: gone")
            return
        self.world.workers[worker] = HOUR_S
        asked = self.world.view(None).jobs(lambda job: job.worker == worker and job.abort_requested)
        assert renewal.abort == {(job.id, job.attempt) for job in asked}
        self._reach("heartbeat: abort" if asked else "heartbeat")

    @step(
        pick=picks,
        limit=st.sampled_from((1, 2, 5, ALL, ALL)),
        kinds=st.sampled_from((KINDS, KINDS, ("k",), ("other",))),
        queues=st.sampled_from((None, None, ("a",), ("b", "c"))),
        lost=st.sampled_from((False, False, False, True)),
        rest=st.booleans(),
        expired=st.sampled_from((False, False, False, True)),
        where=where,
        undo=undo,
    )
    def claim(
        self, pick: int, limit: int, kinds: Sequence[str], queues: Sequence[str] | None, lost: bool, rest: bool,
        expired: bool, where: str, undo: bool,
    ) -> None:  # fmt: skip
        """With `lost` the answer never reaches the worker; with `expired` the worker may be one whose lease is over."""
        if not self.world.workers:  # the last one was forgotten
            self._register()
        worker = nth(self.workers if expired else sorted(self.world.workers), pick)
        if not expired and not self.world.view(None).alive(worker):
            self._heartbeat(worker)
        statement = self._claim(worker, limit, kinds, queues, timedelta(seconds=1 if rest else 0))
        claimed = self._perform(where, statement, undo=undo)
        if claimed is None:  # the exception ended the transaction, if there was one
            return
        if claimed and statement.segments.upwards_from < self._current():
            self._reach("claim: stale list")
        if lost and claimed:
            self._reach("claim: answer lost")
        elif not (undo and where in LATE):
            self.known[worker] |= {job.id for job in claimed}

    @precondition(lambda self: self._running() or (self.world.open and self._tokens(self.world.view(None))))
    @step(
        pick=picks,
        edge=edges,
        delay_h=st.sampled_from((0, 1)),
        more=st.lists(
            st.tuples(st.sampled_from(("held", "held", "old", "old", "foreign", "same")), picks, edges), max_size=3
        ),
        asked=st.sampled_from((True, True, False)),
        impostor=st.sampled_from((False, False, False, True)),
        where=where,
        rival=rival,
        patience=patience,
        undo=undo,
    )
    def settle(
        self, pick: int, edge: str, delay_h: int, more: list[tuple[str, int, str]], asked: bool,
        impostor: bool, where: str, rival: bool, patience: Patience, undo: bool,
    ) -> None:  # fmt: skip
        """Held leases, others' leases, attempts that are over, and jobs named twice, in one batch."""
        view = self.world.view(self._session(where))
        running = view.jobs(lambda job: job.place == "running")
        if not running:
            token = nth(self._tokens(view), pick)
            self._perform(where, Settle(nth(self.workers, pick), [self._settlement(view, *token, edge, delay_h)]))
            return
        running = self._held_by_others(running, where, rival)
        requested = [job for job in running if job.cancel_requested]
        first = nth(requested if asked and requested else running, pick)
        worker = first.worker
        if impostor:
            worker = nth([other for other in self.workers if other != worker], pick)
        assert worker is not None
        named = [(first.id, first.attempt, edge)]
        for aim, other, its_edge in more:
            choice: list[tuple[Any, int]] = {
                "held": [(job.id, job.attempt) for job in running if job.worker == worker],
                "foreign": [(job.id, job.attempt) for job in running if job.worker != worker],
                "old": [(job.id, n) for job in running for n in job.claims if n != job.attempt] or self._tokens(view),
                "same": [(first.id, first.attempt)],
            }[aim]
            if choice:
                named.insert(other % 2 * len(named), (*nth(choice, other), its_edge))
        settlements = [self._settlement(view, *token, delay_h) for token in named]
        self._perform(where, Settle(worker, settlements), patience=patience, undo=undo)

    @precondition(lambda self: self._running())
    @step(pick=picks, slip=st.sampled_from(("status code", "delay", "edge", "named twice")), where=where)
    def settle_with_refused_content(self, pick: int, slip: str, where: str) -> None:
        """From another language, without our checks: the statement fails and nothing is written."""
        view = self.world.view(self._session(where))
        running = [job for job in view.free() if job.place == "running" and not job.cancel_requested]
        if not running:
            return
        job = nth(running, pick)
        times = 2 if slip == "named twice" else 1
        edge = {"edge": "finished", "named twice": "succeeded"}.get(slip, "retry")
        delay_s = float("inf") if slip == "delay" else 1.0
        status = 99_999 if slip == "status code" else 500

        async def settle(session: queue.Session) -> None:
            await session.fetch(
                "select * from duly.settle($1, $2, $3, $4, $5, '{}', $6, $7, '{}', '{}', '{}', '{}') refused",
                job.worker,
                [job.id] * times,
                [job.attempt] * times,
                [edge] * times,
                [delay_s] * times,
                ["error"] * times,
                [status] * times,
            )

        self._fails(where, None, settle)
        self._reach("settle refused: content")

    @precondition(lambda self: self._running("restless"))
    @step(pick=picks, times=st.sampled_from((1, 12, 13)))
    def stop_and_go(self, pick: int, times: int) -> None:
        """A worker that is restarted again and again while it runs one job."""
        job = nth(self._running("restless"), pick)
        if job.worker in self.world.workers:
            self._heartbeat(job.worker)
        for _ in range(times):
            found = self.world.jobs[job.id]
            worker = found.worker
            if found.place != "running" or worker is None or self.world.view(None).holder(job.id):
                break
            self._perform(NOW, Settle(worker, [Settlement(job.id, found.attempt, "interrupted")]))
            if not self.world.view(None).alive(worker):
                break
            claimed = self._perform(NOW, self._claim(worker, ALL, ("restless",), None)) or []
            self.known[worker] |= {got.id for got in claimed}

    @precondition(lambda self: self._running())
    @step(pick=picks, where=where, patience=patience)
    def give_back(self, pick: int, where: str, patience: Patience) -> None:
        worker = nth([job.worker for job in self._running()], pick)
        assert worker is not None
        self._perform(where, GiveBack(worker, sorted(self.known[worker]), self.lease_list), patience=patience)

    def _settlement(self, view: View, job_id: Any, attempt: int, edge: str, delay_h: int) -> Settlement:
        """As the worker would decide it: what failed is tried again while there is budget left."""
        job = view.get(job_id)
        delay = timedelta(hours=delay_h)
        report = Report("error", error="it failed")
        if edge == "fail":
            last = job is not None and job.attempt >= job.final_attempt
            if last:
                return Settlement(job_id, attempt, "dead", reason=DeadReason.ATTEMPTS_EXHAUSTED, report=report)
            return Settlement(job_id, attempt, "retry", delay=delay, report=report)
        if edge == "dead":
            return Settlement(job_id, attempt, "dead", reason=DeadReason.PERMANENT, report=report)
        if edge == "expired":
            return Settlement(job_id, attempt, "dead", reason=DeadReason.EXPIRED)
        plain: Edge = edge  # type: ignore[assignment]
        return Settlement(job_id, attempt, plain, delay=delay if edge in ("snooze", "hold") else timedelta(0))

    # tried more often than the others
    claim_2 = claim
    settle_2 = settle_3 = settle_4 = settle
    stop_and_go_2 = stop_and_go
    give_back_2 = give_back_3 = give_back
