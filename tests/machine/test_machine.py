"""Any order of anything that clients, workers and upkeep do, in several sessions, with late commits, clock steps and
statements that fail: after every step the database is what the model says.

`make test` runs a short, repeatable round; `make machine` (DULY_MACHINE=long) a long, random one. Both fail if one of
the named edges was never taken.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from duly import queue
from duly.model import Settlement
from duly.upkeep import SegmentKeeper
from machine import checks
from machine.clients import Clients
from machine.drawing import KEYS, KINDS, LINES, LONG, NOW, QUEUES, wishes
from machine.model import HOUR_S
from machine.sessions import Sessions
from machine.stage import ended
from machine.statements import ALL, Enqueue, Promote, Rescue, Settle
from machine.upkeep import Upkeep
from machine.workers import Workers

LONG_S = 60 * float(os.environ.get("DULY_MACHINE_MINUTES", "10"))
SEEDS = range(1, 8)  # of the short run's rounds
LONG_AFTER_S = 1000 * HOUR_S  # more than an example can set the clock back
# A round is short because after ten examples Hypothesis goes over to varying those it has, which finds little here.
ROUND = settings(
    max_examples=9,
    stateful_step_count=80 if LONG else 40,
    deadline=None,
    database=None,
    derandomize=False,  # its seeds decide
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),  # explaining would trace every line
    suppress_health_check=list(HealthCheck),
)

# Every run must take each of these; others are counted too.
EDGES = frozenset(
    edge.strip()
    for edge in """
    enqueue due|enqueue later|enqueue batch|enqueue repeated|enqueue conflict|enqueue refused
    claim|claim: nothing due|claim: some left|claim refused: lease lost|claim: stale list|claim: answer lost
    claim: schedule|claim: retry|claim: recovery|claim: redrive|claim: manual
    settle succeeded|settle dead|settle cancelled|settle retry|settle snooze|settle hold|settle interrupted
    settle release|settle refused: wrong worker|settle refused: old attempt|settle refused: not running
    settle refused: named twice|settle refused: content|after a request: cancelled|after a request: succeeded
    interrupted too often: ready|interrupted too often: dead|give_back
    cancel: cancelled|cancel: requested|cancel: final|cancel: missing|heartbeat: abort|heartbeat: gone
    runnow: run|runnow: wrong_state|runnow: missing
    redrive: redriven|redrive: wrong_state|redrive: missing|redrive: expired
    promote: schedule|promote: retry|promote: recovery|promote after a minute
    rescue worker_lost|rescue timeout|rescue: scheduled|rescue: dead|rescue: cancelled|rescue: worker forgotten
    advance|move ready|move lease|move: held rows passed by|retire|retire: held back|floor raised|segment kept
    commit|rollback|killed|undone by a savepoint|late commit over a turn
    must wait: lock_timeout|must wait: statement_timeout|must wait: killed|must wait: in line
    went on after commit|went on after rollback|failed in a transaction
    time: worker expired|time: deadline passed|time: due|time: forwards|time: backwards
    """.strip()
    .replace("\n", "|")
    .split("|")
)


class Machine(Clients, Workers, Upkeep):
    """All rules together, how an example starts and ends, and what is checked in between."""

    @initialize(jobs=st.lists(wishes, min_size=2, max_size=5))
    def start(self, jobs: list[dict[str, Any]]) -> None:
        self._do(self.sessions.reset())
        main = self._main()
        self.keepers = {
            (line, crowded): SegmentKeeper(main, line, crowded=crowded) for line in LINES for crowded in (0, 8)
        }
        self.lease_list = self._do(queue.live_segments(main, "lease"))
        self._register()
        self._register()
        self._perform(NOW, Enqueue([self._new(**wish) for wish in jobs]))

    @invariant()
    def as_the_model_says(self) -> None:
        self._do(checks.check(self._main(), self.world, None))
        if self.checked_inside in self.world.open:
            assert self.checked_inside is not None
            session = self._do(self.sessions.get(self.checked_inside))
            self._do(checks.check(session, self.world, self.checked_inside))
        self.checked_inside = None
        self.sound = True
        self.reached["step"] += 1

    def teardown(self) -> None:
        """Whatever was going on, all jobs can still be brought to an end."""
        try:
            if self.sound:
                self._drain()
        finally:
            for waiting in self.waiting.values():  # before those they wait for: none may still go through
                self._do(self.sessions.kill(waiting.name))
                with suppress(Exception):
                    self._do(ended(waiting.task))

    def _drain(self) -> None:
        for name in list(self.world.open):
            self._end(name, "commit")
        self._pass_time(LONG_AFTER_S)
        self.lease_list = self._do(queue.live_segments(self._main(), "lease"))
        self._perform(NOW, Rescue(ALL, None, self.lease_list))
        self._pass_time(LONG_AFTER_S)
        self._perform(NOW, Promote(ALL, sweep=True))
        worker = self._register()
        claimed = self._perform(NOW, self._claim(worker, ALL, KINDS, None))
        self._perform(NOW, Settle(worker, [Settlement(job.id, job.attempt, "succeeded") for job in claimed or ()]))
        assert all(job.final for job in self.world.view(None).jobs()), "a job that nobody can bring to an end"
        self.as_the_model_says()


@pytest.fixture
def sessions(database_url: str) -> Iterator[Sessions]:
    opened = Sessions(database_url)
    try:
        opened.run(opened.start(QUEUES, KINDS, KEYS))
        yield opened
    finally:
        opened.close()


@pytest.mark.timeout(0 if LONG else 600)  # shrinking takes a while
def test_the_database_is_what_the_model_says(sessions: Sessions) -> None:
    """After every step of every example; and each named edge was taken."""
    reached: Counter[str] = Counter()
    began = time.monotonic()
    for number in _numbers(began):
        machine = seed(number)(type("Machine", (Machine,), {"sessions": sessions, "reached": reached}))
        run_state_machine_as_test(machine, settings=ROUND)
    sys.stdout.write(f"edges taken in {time.monotonic() - began:.1f} s:\n")
    sys.stdout.writelines(f"{count:8} {edge}\n" for edge, count in reached.most_common())
    missed = [] if "DULY_MACHINE_SEED" in os.environ else sorted(EDGES - reached.keys())
    assert not missed, f"edges that were never taken: {', '.join(missed)}"


def _numbers(began: float) -> Iterator[int]:
    """The seeds of the rounds: the same for every short run, any for a long one."""
    if "DULY_MACHINE_SEED" in os.environ:
        yield int(os.environ["DULY_MACHINE_SEED"])
    elif not LONG:
        yield from SEEDS
    else:
        while time.monotonic() - began < LONG_S:
            number = int.from_bytes(os.urandom(4), "big")
            sys.stdout.write(f"DULY_MACHINE_SEED={number}\n")
            yield number
