"""The first three questions, answered in words: is it keeping up, what is failing, what do I do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from duly.dashboard.grouping import Group
from duly.dashboard.words import age, count, outcome, percent
from duly.queue import WorkerView
from duly.queue.breaker import OpenBreaker
from duly.queue.overview import Backlog, InUse, Recent

LATE: Final = timedelta(seconds=10)
VERY_LATE: Final = timedelta(minutes=1)
FAILING: Final = 0.05
FULL: Final = 0.95
MOST = 8

Level = Literal["bad", "warn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: what, and what to do. `link`: where, below the dashboard's address."""

    level: Level
    what: str
    do: str
    link: str | None = None
    link_text: str = "Look"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at; None: not known. `workers` None also for who may not see them."""

    now: datetime
    backlog: Sequence[Backlog] | None = None
    in_use: Sequence[InUse] | None = None
    workers: Sequence[WorkerView] | None = None
    breakers: Sequence[OpenBreaker] | None = None
    recent: Recent | None = None
    dead: Sequence[Group] | None = None

    @property
    def waiting(self) -> int:
        return sum(line.waiting for line in self.backlog or ())

    @property
    def oldest(self) -> timedelta | None:
        """For how long the oldest job that waits has been due."""
        since = [line.oldest_at for line in self.backlog or () if line.oldest_at is not None]
        return max(self.now - min(since), timedelta(0)) if since else None

    @property
    def slots(self) -> tuple[int, int] | None:
        """In use, of those that living workers have."""
        if self.workers is None or self.in_use is None:
            return None
        return sum(use.running for use in self.in_use), sum(w.concurrency for w in self.workers if w.alive)


def findings(seen: Seen) -> list[Finding]:
    """What is wrong, the worst first; nothing where all is well."""
    found = [*_keeping_up(seen), *_failing(seen), *_dead(seen)]
    return sorted(found, key=lambda finding: finding.level == "warn")[:MOST]


def _keeping_up(seen: Seen) -> Iterator[Finding]:
    alive = None if seen.workers is None else [worker for worker in seen.workers if worker.alive]
    if alive == []:
        yield Finding("bad", "No worker is alive: nothing runs.", "Start one: duly worker.", "/workers", "Workers")
    oldest = seen.oldest
    if oldest is not None and oldest > LATE:
        level: Level = "bad" if oldest > VERY_LATE else "warn"
        what = f"Behind: the oldest job that waits was due {age(oldest)} ago."
        yield Finding(level, what, _what_helps(seen), "/queues", "Queues")
    gone = [] if seen.workers is None else [worker for worker in seen.workers if not worker.alive]
    if gone and alive:
        what = f"{_some(len(gone), 'worker')} fell silent; what they ran is taken from them and runs again."
        yield Finding("warn", what, "See why they stopped: their logs, their machine.", "/workers", "Workers")
    elif seen.recent is not None and seen.recent.lost:
        what = f"{_some(seen.recent.lost, 'attempt')} lost with their workers lately."
        yield Finding(
            "warn", what, "See which jobs, and whether they kill their workers.", "/jobs?state=dead", "Dead jobs"
        )


def _what_helps(seen: Seen) -> str:
    slots = seen.slots
    if slots is not None and slots[1] and slots[0] >= FULL * slots[1]:
        return "All slots are in use: start more workers, or give them more slots (--concurrency)."
    if seen.breakers:
        return "Slots are free: see whether a queue is paused or at its limit."
    if slots is not None and slots[1]:
        return "Slots are free: see whether a queue is paused, at its limit, or served by no worker."
    return "See which queue it is, and whether it is paused or at its limit."


def _failing(seen: Seen) -> Iterator[Finding]:
    for breaker in (seen.breakers or ())[:3]:
        what = f"{breaker.host} fails: its deliveries are held since {age(seen.now - breaker.opened_at)}."
        do = "Nothing is lost: a probe goes now and then, and they go on by themselves once it gets through."
        yield Finding("warn", what, do, "/breakers", "Breakers")
    recent = seen.recent
    if recent is None or not recent.whole.ended:
        return
    share = recent.whole.failed / recent.whole.ended
    if share >= FAILING and recent.failing:
        worst = recent.failing[0]
        how = outcome(worst.outcome) + (f" {worst.status_code}" if worst.status_code else "")
        window = age(recent.every * len(recent.spans))
        where = f" at {worst.host}" if worst.host else ""
        what = f"{percent(share)} of the attempts of the last {window} failed, most of them with {how}{where}."
        yield Finding("warn", what, "They are retried by their plans; what stays broken ends in the dead letters.")


def _dead(seen: Seen) -> Iterator[Finding]:
    for group in (seen.dead or ())[:3]:
        how = group.error or outcome(group.outcome)
        what = f"{_some(group.count, 'dead letter')} at {group.host}: {how} (since {age(seen.now - group.first_at)})."
        do = "Once the target is mended, redrive them."
        yield Finding("warn", what, do, f"/dead/redrive?group={group.key}", "Redrive…")


def _some(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
