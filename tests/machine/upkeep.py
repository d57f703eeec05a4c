"""Rules: what upkeep does, and time. Promote, rescue, segments; leases, deadlines and clocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from duly import queue
from duly.queue import Line
from machine.drawing import NOW, lines, nth, picks, step, where
from machine.model import HOUR_S
from machine.stage import Stage
from machine.statements import ALL, Move, Promote, Rescue

DUE_S = 30.0  # how long ago a job became due: inside the promoter's window, and longer than an example takes


class Upkeep(Stage):
    @step(limit=st.sampled_from((1, ALL, ALL)), sweep=st.booleans(), where=where)
    def promote(self, limit: int, sweep: bool, where: str) -> None:
        self._perform(where, Promote(limit, sweep))

    @precondition(lambda self: self._running())
    @step(
        limit=st.sampled_from((1, ALL, ALL)),
        watched=st.sampled_from((None, None, None, timedelta(hours=2), timedelta(minutes=1), timedelta(seconds=10))),
        first=st.sampled_from((None, "worker", "deadline")),
        pick=picks,
        where=where,
    )
    def rescue(self, limit: int, watched: timedelta | None, first: str | None, pick: int, where: str) -> None:
        """After a worker that holds something stopped renewing (`first`), a deadline passed, or nothing happened."""
        running = self._running()
        if first == "worker" and (
            holders := sorted({job.worker for job in running if job.worker} & {*self.world.workers})
        ):
            self._let_expire(nth(holders, pick), 1.0)
        if first == "deadline":
            self._let_deadline_pass(pick)
        statement = Rescue(limit, watched, self.lease_list)
        if statement.forgets(self.world.view(None)):
            where = NOW
        while (rescued := self._perform(where, statement)) and len(rescued) == limit:  # who comes first is not said
            pass

    @step(
        do=st.sampled_from(
            ("advance", "leave behind", "keep", "keep all", "note", "retire", "retire", "floor", "move", "move")
        ),
        line=lines,
        pick=picks,
        limit=st.sampled_from((1, ALL, ALL)),
        where=where,
    )
    def turn(self, do: str, line: Line, pick: int, limit: int, where: str) -> None:
        """Segments: by the upkeep's own keeper, or step by step."""
        match do:
            case "advance":
                self._do(queue.advance(self._main()))
                self._reach(do)
            case "leave behind":  # whatever stays in a closed segment is kept, and the floor passes it
                for _ in range(40):
                    self._do(queue.advance(self._main()))
                for _ in range(2):
                    self._do(queue.raise_floor(self._main(), line))
                self._look_at_floors()
            case "keep" | "keep all":
                self._keep(line, 0 if do == "keep all" else 8)
            case "note":
                self._note_holders(line)
            case "retire":
                self._retire(line, pick)
            case "floor":
                self._do(queue.raise_floor(self._main(), line))
                self._look_at_floors()
            case "move":
                self._move(line, pick, limit, where)

    def _keep(self, line: Line, crowded: int) -> None:
        """One step of the upkeep's own keeper."""
        keeper = self.keepers[line, crowded]
        retired = keeper.retired_total
        self._do(keeper.step())
        if keeper.retired_total > retired:
            self._reach("retire")
        self._look_at_floors()

    def _note_holders(self, line: Line) -> None:
        """Of every segment that is seen closed for the first time."""
        holders = self._do(queue.segment_holders(self._main(), line))
        for segment in self._closed(line):
            self.noted[line].setdefault(segment, holders)

    def _retire(self, line: Line, pick: int) -> None:
        self._note_holders(line)
        segments = sorted(set(self.noted[line]) & set(self._closed(line)))
        if not segments:
            return
        segment = nth(segments, pick)
        main = self._main()
        rows = self._do(queue.segment_rows(main, line, segment, 1))
        held = self._do(queue.segment_holders(main, line)) & self.noted[line][segment]
        retired = self._do(queue.retire(main, line, segment, sorted(self.noted[line][segment])))
        assert retired == (rows == 0 and not held)
        self._reach("retire" if retired else "retire: held back" if held else "retire: not empty")

    def _move(self, line: Line, pick: int, limit: int, where: str) -> None:
        """A closed segment that has rows, if there is one."""
        main = self._main()
        filled = {row["segment"] for row in self._do(main.fetch(f"select distinct segment from duly.{line}"))}
        if filled == {self._current()}:
            self._do(queue.advance(main))
        closed = self._closed(line)
        if segments := [segment for segment in closed if segment in filled] or closed:
            statement = Move(line, nth(segments, pick), limit)
            while (answer := self._perform(where, statement)) and answer[0] == limit:  # nor is it here
                pass

    @step(
        do=st.sampled_from(("due", "due", "worker", "worker", "deadline", "clock")),
        pick=picks,
        far=st.sampled_from((False, False, True)),
    )
    def time_passes(self, do: str, pick: int, far: bool) -> None:
        """For one job, for one worker, or for all: the server's clock is set, forwards or back."""
        free = list(self.world.view(None).free())
        match do:
            case "due" if scheduled := [job for job in free if job.place == "scheduled"]:
                job = nth(scheduled, pick)
                ago_s = HOUR_S if far else DUE_S
                self._do(self.sessions.let_time_come(job.id, ago_s))
                self.world.jobs[job.id] = replace(job, due_in_s=-ago_s)
                self._reach("time: due")
            case "deadline":
                self._let_deadline_pass(pick)
            case "worker" if self.world.workers:
                self._let_expire(nth(sorted(self.world.workers), pick), (48 * HOUR_S if far else 0.0) + 1.0)
            case _:
                hours = nth((1, -1, 2, -2), pick)
                self._pass_time(hours * HOUR_S)
                self._reach("time: forwards" if hours > 0 else "time: backwards")

    def _pass_time(self, seconds: float) -> None:
        self._do(self.sessions.pass_time(seconds))
        self.world.pass_time(seconds)

    def _let_deadline_pass(self, pick: int) -> None:
        if running := [job for job in self.world.view(None).free() if job.place == "running"]:
            job = nth(running, pick)
            self._do(self.sessions.let_deadline_pass(job.id))
            self.world.jobs[job.id] = replace(job, deadline_in_s=-1.0)
            self._reach("time: deadline passed")

    def _let_expire(self, worker: int, ago_s: float) -> None:
        self._do(self.sessions.let_worker_expire(worker, ago_s))
        self.world.workers[worker] = -ago_s
        self._reach("time: worker expired")

    # tried more often than the others
    rescue_2 = rescue
    turn_2 = turn
    time_passes_2 = time_passes
