"""The table: path, step, fault, and what must come out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Fault(StrEnum):
    """What happens at the step."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP past the lease, then SIGCONT"
    QUESTION_LOST = "connection lost, statement never arrives"
    ANSWER_LOST = "connection lost, answer never arrives"
    CUT = "all connections lost"
    AWAY = "network gone past the lease"
    CRASH = "server killed and started again"
    FAST = "server stopped (fast) and started again"
    DISK_FULL = "write refused: disk full"


class Step(StrEnum):
    """Where in an engine call, by what is committed."""

    BEFORE = "before the statement"
    INSIDE = "before the commit"
    AFTER = "after the commit"


RESTARTS = (Fault.CRASH, Fault.FAST)
WIRED = (Fault.QUESTION_LOST, Fault.ANSWER_LOST, Fault.CUT, Fault.AWAY)

SUCCESS = ("success",)
LOST = ("worker_lost", "success")


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one step, and what is expected of every job that took part.

    `ledgers`: what the attempts' outcomes may be, one tuple for each way it may go. `runs`: how often a job's handler
    may start, least and most. `answers`: all
    that the clients were told. `says`: words that the
    victim's log must have. `exits`: the victim's exit code when it is asked to go, if it still lives. `while_stopped`:
    what the others have reached before a stopped victim goes on. `at_once`: it takes effect before the commit, as a
    sequence does.
    """

    path: str
    step: Step
    fault: Fault
    why: str
    ledgers: tuple[tuple[str, ...], ...] = (SUCCESS,)
    runs: tuple[int, int] = (1, 1)
    state: str = "succeeded"
    answers: frozenset[str] = frozenset()
    says: str | None = None
    exits: tuple[int, ...] = (0,)
    while_stopped: str = "all final"
    at_once: bool = False

    @property
    def name(self) -> str:
        """Short, for test ids and the command line."""
        return re.sub(r"[^a-z_]+", "-", f"{self.path}-{self.step.name}-{self.fault.name}".lower())

    @property
    def restarts(self) -> bool:
        return self.fault in RESTARTS


B, I, A = Step.BEFORE, Step.INSIDE, Step.AFTER  # noqa: E741
KILL, STOP, QUESTION, ANSWER = Fault.KILL, Fault.STOP, Fault.QUESTION_LOST, Fault.ANSWER_LOST
CUT, AWAY, CRASH, FAST, DISK = Fault.CUT, Fault.AWAY, Fault.CRASH, Fault.FAST, Fault.DISK_FULL

TROUBLE = "the database is in trouble, trying again"
REFUSED = "outcomes refused: the lease was lost"
GAVE_BACK = "gave back jobs of a claim whose answer was lost"
BLOCKED = "somebody waits for the victim's lock"
LEASE_OVER = "the lease is over and the others have looked"
HELD = "another worker runs the second attempt"
LATE_COMMIT = "the late transaction has committed"
BOTH = frozenset({"created", "repeated"})


def _enqueue() -> list[Cell]:
    cell = Cell("enqueue", B, KILL, "")
    none = "Nothing was stored and nothing acknowledged; asked again under the same ids, each job exists once."
    there = "It was stored and not acknowledged; asked again under the same ids, the jobs are found, not made twice."
    rolled = "What was not committed went with the connection; asked again under the same ids, each job exists once."
    here = "The acknowledgement is kept: what was committed survives the restart."
    return [
        replace(cell, why=none, answers=frozenset({"created"})),
        replace(cell, step=I, why=rolled, answers=frozenset({"created"})),
        replace(cell, step=A, why=there, answers=frozenset({"repeated"})),
        replace(cell, fault=STOP, answers=BOTH, why="Another client asks meanwhile; the late one finds the jobs."),
        replace(cell, step=I, fault=STOP, answers=BOTH, while_stopped=BLOCKED,
                why="Another client with the same ids waits for the open transaction, then finds the jobs."),
        replace(cell, fault=QUESTION, why=none, answers=frozenset({"created"})),
        replace(cell, step=A, fault=ANSWER, why=there, answers=frozenset({"repeated"})),
        replace(cell, step=I, fault=CUT, why=rolled, answers=frozenset({"created"})),
        replace(cell, fault=CRASH, why=none, answers=frozenset({"created"})),
        replace(cell, step=I, fault=CRASH, why=rolled, answers=frozenset({"created"})),
        replace(cell, step=A, fault=CRASH, why=here, answers=frozenset({"created"})),
        replace(cell, step=I, fault=FAST, why=rolled, answers=frozenset({"created"})),
        replace(cell, step=I, fault=DISK, answers=frozenset({"created"}),
                why="Refused, so nothing is stored; asked again under the same ids until there is room."),
    ]  # fmt: skip


def _promote() -> list[Cell]:
    cell = Cell("promote", B, KILL, "")
    none = "The jobs stand in scheduled as before; the next promoter takes them."
    there = "The jobs stand in ready; whoever claims next finds them."
    return [
        replace(cell, why=none),
        replace(cell, step=I, why=none),
        replace(cell, step=A, why=there),
        replace(cell, fault=STOP, why="Another promoter takes them; the late statement finds nothing to promote."),
        replace(cell, step=I, fault=STOP, while_stopped=LEASE_OVER,
                why="The rows are locked, others pass them by; they are promoted when the process goes on."),
        replace(cell, step=A, fault=STOP, why=there),
        replace(cell, fault=QUESTION, why=none, says=TROUBLE),
        replace(cell, step=A, fault=ANSWER, why=there, says=TROUBLE),
        replace(cell, step=I, fault=CRASH, why=none),
        replace(cell, fault=FAST, why=none),
        replace(cell, step=I, fault=DISK, why=none, says=TROUBLE),
    ]  # fmt: skip


def _claim() -> list[Cell]:
    cell = Cell("claim", B, KILL, "")
    none = "Nothing was claimed; the jobs stand in ready."
    rolled = "The claim went with its connection; the jobs stand in ready under the same attempt number."
    held = "The claim stands, and so does the answer in memory: the jobs start under a lease that is still good."
    return [
        replace(cell, why=none),
        replace(cell, step=I, why=rolled),
        replace(cell, step=A, ledgers=(LOST,),
                why="Claimed is counted, although nothing started: the attempt is worker_lost, a second one runs."),
        replace(cell, fault=STOP, why="Another worker runs the jobs; the late claim finds nothing."),
        replace(cell, step=I, fault=STOP, while_stopped=LEASE_OVER, ledgers=(SUCCESS, LOST), runs=(1, 2),
                why="The rows are locked and nobody's; the claim that commits late is given back unstarted (fenced), "
                    "run, or rescued as worker_lost, whichever the clock allows first."),
        replace(cell, step=A, fault=STOP, ledgers=(LOST,), runs=(1, 2), says=REFUSED, while_stopped=HELD,
                why="Rescued as worker_lost and run elsewhere; the late process may start the first attempt before its "
                    "own clock fences it, and what it writes is refused."),
        replace(cell, fault=QUESTION, why=none, says=TROUBLE),
        replace(cell, step=A, fault=ANSWER, says=GAVE_BACK,
                why="Claimed and never heard of: the worker gives the jobs back unstarted, no attempt is used up."),
        replace(cell, step=I, fault=CUT, why=rolled, says=TROUBLE),
        replace(cell, step=A, fault=CUT, why=held),
        replace(cell, fault=CRASH, why=none),
        replace(cell, step=I, fault=CRASH, why=rolled, says=TROUBLE),
        replace(cell, step=A, fault=CRASH, why=held),
        replace(cell, step=I, fault=FAST, why=rolled, says=TROUBLE),
        replace(cell, step=A, fault=FAST, why=held),
        replace(cell, step=I, fault=DISK, why=none, says=TROUBLE),
    ]  # fmt: skip


def _give_back() -> list[Cell]:
    cell = Cell("give back", B, KILL, "")
    held = "The claim's answer was lost before, and its worker is dead: the claimed attempts are worker_lost."
    free = "The jobs were given back before: they stand in ready under the same attempt number."
    again = "The worker asks again until the jobs that it never heard of are given back."
    return [
        replace(cell, why=held, ledgers=(LOST,)),
        replace(cell, step=I, why=held, ledgers=(LOST,)),
        replace(cell, step=A, why=free),
        replace(cell, fault=STOP, ledgers=(LOST,),
                why="Rescued as worker_lost and run elsewhere; the late statement finds nothing to give back."),
        replace(cell, step=I, fault=STOP, while_stopped=LEASE_OVER,
                why="The leases are locked, rescue passes them by; they are given back when the process goes on."),
        replace(cell, step=A, fault=STOP, why=free),
        replace(cell, fault=QUESTION, why=again, says=GAVE_BACK),
        replace(cell, step=A, fault=ANSWER, why=free, says=TROUBLE),
        replace(cell, step=I, fault=CRASH, why=again, says=GAVE_BACK),
        replace(cell, step=I, fault=DISK, why=again, says=GAVE_BACK),
    ]  # fmt: skip


def _execution() -> list[Cell]:
    cell = Cell("execution", B, KILL, "", ledgers=(LOST,))
    twice = "The first attempt is worker_lost; the second one runs to the end."
    late = (
        "Rescued; what the late process writes for the first attempt is refused while another worker runs the second."
    )
    held = "No connection is held by a running job, and the lease outlasts the gap: it ends in its first attempt."
    return [
        replace(cell, why="Claimed is counted, although nothing started: worker_lost, and a second attempt runs."),
        replace(cell, fault=STOP, why=late, runs=(2, 2), says=REFUSED, while_stopped=HELD),
        replace(cell, fault=CRASH, why=held, ledgers=(SUCCESS,)),
        replace(cell, step=I, why=twice, runs=(2, 2)),
        replace(cell, step=I, fault=STOP, why=late, runs=(2, 2), says=REFUSED, while_stopped=HELD),
        replace(cell, step=I, fault=CUT, why=held, ledgers=(SUCCESS,)),
        replace(cell, step=I, fault=AWAY, runs=(2, 2), says=REFUSED, while_stopped=HELD,
                why="The worker stops what it runs before its lease ends; it is rescued and run elsewhere, and the "
                    "interruption that is written late is refused."),
        replace(cell, step=I, fault=CRASH, why=held, ledgers=(SUCCESS,)),
        replace(cell, step=I, fault=FAST, why=held, ledgers=(SUCCESS,)),
        replace(cell, step=A, why=twice, runs=(2, 2)),
        replace(cell, step=A, fault=STOP, why=late, runs=(2, 2), says=REFUSED, while_stopped=HELD),
        replace(cell, step=A, fault=CUT, why=held, ledgers=(SUCCESS,)),
        replace(cell, step=A, fault=CRASH, why=held, ledgers=(SUCCESS,)),
    ]  # fmt: skip


def _settle() -> list[Cell]:
    cell = Cell("settle", B, KILL, "")
    twice = "It ran and nobody knows: the attempt is worker_lost, a second one runs. At least once, not exactly once."
    there = "The outcome is committed: nothing is left to do."
    kept = "The outcome is kept and written when the database takes it: it ran once."
    again = TROUBLE
    return [
        replace(cell, why=twice, ledgers=(LOST,), runs=(2, 2)),
        replace(cell, step=I, why=twice, ledgers=(LOST,), runs=(2, 2)),
        replace(cell, step=A, why=there),
        replace(cell, fault=STOP, ledgers=(LOST,), runs=(2, 2), says=REFUSED, while_stopped=HELD,
                why="Rescued; the late outcome is refused while another worker runs the second attempt."),
        replace(cell, step=I, fault=STOP, while_stopped=LEASE_OVER,
                why="The lease is locked by its own settle, rescue passes it by; the outcome commits when it goes on."),
        replace(cell, step=A, fault=STOP, why=there),
        replace(cell, fault=QUESTION, why=kept, says=again),
        replace(cell, step=A, fault=ANSWER, says=REFUSED,
                why="The outcome is committed; the worker writes it again and is refused, and nothing changes."),
        replace(cell, step=I, fault=CUT, why=kept, says=again),
        replace(cell, fault=CRASH, why=kept),
        replace(cell, step=I, fault=CRASH, why=kept, says=again),
        replace(cell, step=A, fault=CRASH, why=there),
        replace(cell, step=I, fault=FAST, why=kept, says=again),
        replace(cell, step=A, fault=FAST, why=there),
        replace(cell, step=I, fault=DISK, why=kept, says=again),
    ]  # fmt: skip


def _heartbeat() -> list[Cell]:
    cell = Cell("heartbeat", B, KILL, "")
    twice = "The job ran while the renewal was under way: the attempt is worker_lost, a second one runs."
    late = "Rescued and run elsewhere; renewed late, the worker goes on, and its first attempt is refused."
    kept = "One renewal in four is enough: the lease never ran out, the job ends in its first attempt."
    return [
        replace(cell, why=twice, ledgers=(LOST,), runs=(2, 2)),
        replace(cell, step=I, why=twice, ledgers=(LOST,), runs=(2, 2)),
        replace(cell, step=A, why=twice, ledgers=(LOST,), runs=(2, 2)),
        replace(cell, fault=STOP, why=late, ledgers=(LOST,), runs=(2, 2), says=REFUSED, while_stopped=HELD),
        replace(cell, step=I, fault=STOP, why=late, ledgers=(LOST,), runs=(2, 2), says=REFUSED, while_stopped=HELD),
        replace(cell, fault=QUESTION, why=kept, says=TROUBLE),
        replace(cell, step=A, fault=ANSWER, why=kept, says=TROUBLE),
        replace(cell, step=I, fault=CRASH, why=kept),
        replace(cell, step=I, fault=DISK, why=kept, says=TROUBLE),
    ]


def _rescue() -> list[Cell]:
    cell = Cell("rescue", B, KILL, "", ledgers=(LOST,))
    none = "The leases stand as before; the next rescue takes them, and each loss is recorded once."
    there = "The losses are recorded and the jobs scheduled: nothing is rescued twice."
    again = TROUBLE
    return [
        replace(cell, why=none),
        replace(cell, step=I, why=none),
        replace(cell, step=A, why=there),
        replace(cell, fault=STOP, why="Another process rescues them; the late statement finds nothing."),
        replace(cell, step=I, fault=STOP, while_stopped=LEASE_OVER,
                why="The leases are locked, others pass them by; they are rescued when the process goes on."),
        replace(cell, step=A, fault=STOP, why=there),
        replace(cell, fault=QUESTION, why=none, says=again),
        replace(cell, step=A, fault=ANSWER, why=there, says=again),
        replace(cell, step=I, fault=CRASH, why=none, says=again),
        replace(cell, step=I, fault=FAST, why=none, says=again),
        replace(cell, step=I, fault=DISK, why=none, says=again),
    ]  # fmt: skip


def _segments() -> list[Cell]:
    advance = Cell("advance", B, KILL, "", at_once=True)
    move, retire, floor = (Cell(path, B, KILL, "") for path in ("move", "retire", "raise floor"))
    number = "A number was taken or not; jobs in the segments before and after it are found all the same."
    stay = "The survivors stand where they stood, in a live segment; another keeper carries them over."
    moved = "The survivors stand in the current segment, each once."
    live = "The segment is live as before, a little longer than it need be; another keeper retires it."
    gone = "The segment is retired; the late transaction that could still write to another one keeps that one alive."
    low = (
        "The retired numbers are still listed, whatever the floor says; the next keeper forgets them. No job is hidden."
    )
    high = "The floor is over what is retired and nothing else: every job above it is found."
    again = TROUBLE
    return [
        *(replace(advance, step=step, why=number) for step in Step),
        replace(advance, fault=QUESTION, why=number),
        replace(advance, step=A, fault=ANSWER, why=number),
        replace(advance, step=I, fault=CRASH,
                why="A sequence is not rolled back, and may come back higher after a crash: no job is hidden by it."),
        replace(advance, step=A, fault=FAST, why=number),
        replace(move, why=stay),
        replace(move, step=I, why=stay),
        replace(move, step=A, why=moved),
        replace(move, step=I, fault=STOP, while_stopped=LEASE_OVER,
                why="The rows are locked and passed by; they are claimed when the process goes on."),
        replace(move, fault=QUESTION, why=stay, says=again),
        replace(move, step=A, fault=ANSWER, why=moved, says=again),
        replace(move, step=I, fault=CRASH, why=stay, says=again),
        replace(move, step=I, fault=DISK, why=stay, says=again),
        replace(retire, why=live),
        replace(retire, step=I, why=live),
        replace(retire, step=A, why=gone),
        replace(retire, fault=STOP, while_stopped=LATE_COMMIT,
                why="A row is committed into the segment meanwhile; the late statement sees it and does not retire."),
        replace(retire, step=A, fault=STOP, why=gone),
        replace(retire, fault=QUESTION, why=live, says=again),
        replace(retire, step=A, fault=ANSWER, why=gone, says=again),
        replace(retire, step=I, fault=CRASH, why=live, says=again),
        replace(retire, step=I, fault=DISK, why=live, says=again),
        replace(floor, why=low),
        replace(floor, step=I, why=low),
        replace(floor, step=A, why=high),
        replace(floor, step=I, fault=STOP, why="One keeper at a time raises a floor; the others leave it alone."),
        replace(floor, fault=QUESTION, why=low, says=again),
        replace(floor, step=A, fault=ANSWER, why=high, says=again),
        replace(floor, step=I, fault=CRASH, why=low, says=again),
        replace(floor, step=I, fault=DISK, why=low, says=again),
    ]  # fmt: skip


def _days() -> list[Cell]:
    cell = Cell("new days", B, KILL, "")
    none = "No partition was made; the next process makes them."
    there = "The partitions are there; the next process finds them and makes none."
    again = TROUBLE
    return [
        replace(cell, why=none),
        replace(cell, step=I, why=none),
        replace(cell, step=A, why=there),
        replace(cell, step=I, fault=STOP,
                why="Another process waits for the lock and works on; claims and settles are not held up."),
        replace(cell, fault=QUESTION, why=none, says=again),
        replace(cell, step=A, fault=ANSWER, why=there, says=again),
        replace(cell, step=I, fault=CRASH, why=none, says=again),
        replace(cell, step=I, fault=DISK, why=none, says=again),
    ]  # fmt: skip


def _retention() -> list[Cell]:
    prune, drop = Cell("prune", B, KILL, ""), Cell("drop day", B, KILL, "")
    none = "Nothing is gone; the next process prunes the same rows."
    gone = "The rows are gone, all of each job's; the next process finds none."
    there = "The day is still there; the next process drops it."
    dropped = "The day is gone, all three tables of it; the next process finds none."
    again = TROUBLE
    return [
        replace(prune, why=none),
        replace(prune, step=I, why=none),
        replace(prune, step=A, why=gone),
        replace(prune, step=I, fault=STOP,
                why="Other processes find it busy and come back later; claims and settles are not held up."),
        replace(prune, fault=QUESTION, why=none, says=again),
        replace(prune, step=A, fault=ANSWER, why=gone, says=again),
        replace(prune, step=I, fault=CRASH, why=none, says=again),
        replace(prune, step=I, fault=DISK, why=none, says=again),
        replace(drop, why=there),
        replace(drop, step=I, why=there),
        replace(drop, step=A, why=dropped),
        replace(drop, fault=QUESTION, why=there, says=again),
        replace(drop, step=A, fault=ANSWER, why=dropped, says=again),
        replace(drop, step=I, fault=CRASH, why=there, says=again),
    ]  # fmt: skip


def _by_hand(path: str, told: str, repeated: str, **expected: object) -> Sequence[Cell]:
    """What a client does to one job: `told` when it has an effect, `repeated` when it had one before."""
    cell = replace(Cell(path, B, KILL, ""), **expected)  # type: ignore[arg-type]
    none = "Nothing was changed and nothing acknowledged; asked again, it is done once."
    there = f"It was done and not acknowledged; asked again, the answer is {repeated!r}, and nothing is done twice."
    return [
        replace(cell, why=none, answers=frozenset({told})),
        replace(cell, step=I, why=none, answers=frozenset({told})),
        replace(cell, step=A, why=there, answers=frozenset({repeated})),
        replace(cell, step=I, fault=STOP, answers=frozenset({told, repeated}), while_stopped=BLOCKED,
                why=f"Another client waits for the open transaction, and is told {repeated!r} then."),
        replace(cell, fault=QUESTION, why=none, answers=frozenset({told})),
        replace(cell, step=A, fault=ANSWER, why=there, answers=frozenset({repeated})),
        replace(cell, step=I, fault=CRASH, why=none, answers=frozenset({told})),
        replace(cell, step=I, fault=DISK, why=none, answers=frozenset({told})),
    ]  # fmt: skip


def _drain() -> list[Cell]:
    running = Cell("drain, job runs", I, KILL, "")
    going = Cell("drain, deregister", B, KILL, "")
    done = "Everything was settled before: the row of the worker is all that is left or gone."
    unclean = "Everything was settled before; the worker says that it could not deregister and exits 1."
    words = "could not deregister"
    return [
        replace(running, ledgers=(LOST,), runs=(2, 2),
                why="A drain that is cut short is a death like any other: worker_lost, and a second attempt runs."),
        replace(running, fault=STOP, ledgers=(LOST,), runs=(2, 2), says=REFUSED, while_stopped=HELD,
                why="Rescued and run elsewhere; the drain ends late, its outcome is refused."),
        replace(running, fault=CUT, why="The drain goes on: the outcome is written over a new connection."),
        replace(running, fault=CRASH, why="The drain goes on: the outcome is written when the server is back."),
        replace(going, why=done),
        replace(going, step=I, why=done),
        replace(going, step=A, why=done),
        replace(going, fault=STOP, why=done),
        replace(going, fault=QUESTION, why=unclean, says=words, exits=(1,)),
        replace(going, step=A, fault=ANSWER, why=unclean, says=words, exits=(1,)),
        replace(going, step=I, fault=CRASH, why=unclean, says=words, exits=(1,)),
        replace(going, step=I, fault=DISK, why=unclean, says=words, exits=(1,)),
    ]  # fmt: skip


CELLS: tuple[Cell, ...] = (
    *_enqueue(),
    *_promote(),
    *_claim(),
    *_give_back(),
    *_execution(),
    *_settle(),
    *_heartbeat(),
    *_rescue(),
    *_segments(),
    *_days(),
    *_retention(),
    *_by_hand("cancel", "cancelled", "cancelled", state="cancelled", ledgers=((),), runs=(0, 0)),
    *_by_hand("run now", "run", "wrong_state"),
    *_by_hand("redrive", "redriven", "wrong_state", ledgers=(("error", "success"),)),
    *_drain(),
)
