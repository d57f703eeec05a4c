"""Rules: what clients and people do. Enqueue, cancel, run now, redrive; and transactions of theirs that end late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from duly import queue
from duly.model import NewJob, uuid7
from machine.drawing import VERSION_4, Patience, nth, patience, picks, rival, step, undo, where, wishes
from machine.model import Job
from machine.stage import Stage
from machine.statements import Cancel, Control, Enqueue, Redrive, RunNow


class Clients(Stage):
    @step(
        jobs=st.lists(wishes, min_size=1, max_size=3),
        bad=st.sampled_from((None,) * 9 + ("old", "ahead", "version 4")),
        where=where,
        undo=undo,
    )
    def enqueue(self, jobs: list[dict[str, Any]], bad: str | None, where: str, undo: bool) -> None:
        if bad is not None:
            self._enqueue_bad(bad, where)
            return
        self._perform(where, Enqueue([self._new(**wish) for wish in jobs]), undo=undo)

    @precondition(lambda self: self._known_ids())
    @step(
        pick=picks,
        change=st.sampled_from((None, None, "priority", "payload", "owner")),
        twice=st.sampled_from((False, False, True)),
        rival=rival,
        where=where,
        patience=patience,
    )
    def enqueue_again(
        self, pick: int, change: str | None, twice: bool, rival: bool, where: str, patience: Patience
    ) -> None:
        """The same id: the same job after a lost reply, or another one."""
        old = nth(self._held_by_others(self._known_ids(), where, rival), pick)
        owner, spec = old.owner, old.spec
        if change == "owner":
            owner = nth([other for other in self.sessions.owners if other != owner], pick)
        elif change is not None:
            spec = _changed(spec, change)
        item = (owner, spec, 0.0 if spec.delay is None else spec.delay.total_seconds())
        self._perform(where, Enqueue([item] * (2 if twice else 1)), patience=patience)

    def _enqueue_bad(self, how: str, where: str) -> None:
        """Refused as a whole: what stands beside it is not stored either."""
        owner, good, _ = self._new()
        bad = {"old": uuid7(self.started_ms - 25 * 3_600_000), "ahead": uuid7(self.started_ms + 1_200_000)}
        job = NewJob("k", {}, id=bad.get(how, VERSION_4))
        self._fails(where, "22023", lambda session: queue.enqueue(session, [(owner, good), (owner, job)]))
        self._reach("enqueue refused")

    @precondition(lambda self: self._known_ids())
    @step(
        pick=picks,
        do=st.sampled_from((Cancel, Cancel, Cancel, RunNow, Redrive, Redrive)),
        fitting=st.sampled_from((True, True, False)),
        stranger=st.sampled_from((False, False, False, False, True)),
        abort=st.sampled_from((True, True, False)),
        rival=rival,
        where=where,
        patience=patience,
        undo=undo,
    )
    def control(
        self, pick: int, do: type[Control], fitting: bool, stranger: bool, abort: bool, rival: bool, where: str,
        patience: Patience, undo: bool,
    ) -> None:  # fmt: skip
        """Cancel, run now, redrive: a job that is in the state for it if there is one (`fitting`), or any."""
        view = self.world.view(self._session(where))
        choice = [job for job in view.jobs() if _fits(do, job) == fitting] or self._known_ids()
        if do is Cancel and abort:
            choice = [job for job in choice if job.place == "running"] or choice
        job = nth(self._held_by_others(choice, where, rival), pick)
        owner = job.owner
        if stranger:
            owner = nth([other for other in self.sessions.owners if other != owner], pick)
        statement = do(owner, job.id)
        if isinstance(statement, Cancel):
            statement.abort = abort
        self._perform(where, statement, patience=patience, undo=undo)

    @precondition(lambda self: self.world.open)
    @step(pick=picks, how=st.sampled_from(("commit", "commit", "commit", "rollback", "killed")))
    def end(self, pick: int, how: str) -> None:
        self._end(nth(sorted(self.world.open), pick), how)

    # tried more often than the others
    control_2 = control_3 = control_4 = control
    end_2 = end


def _changed(spec: NewJob, change: str) -> NewJob:
    if change == "priority":
        return replace(spec, priority=(spec.priority + 1) % 10)
    return replace(spec, payload={"changed": True})


def _fits(what: type[Control], job: Job) -> bool:
    if what is Cancel:
        return not job.final
    return job.place == "scheduled" if what is RunNow else job.place in ("dead", "cancelled")
