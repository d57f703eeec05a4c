"""Following a job to its end: each attempt as it begins and ends, then how the job ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.cli.console import note, print_line_of_json, say, shown
from duly.cli.jobs import found_job
from duly.model import FINAL, State
from duly.model.errors import DatabaseUnavailableError
from duly.queue import AttemptView, Database, JobView, list_attempts

CODES = {State.SUCCEEDED: 0, State.DEAD: 3, State.CANCELLED: 4}
"""How a command that followed a job ends, by the state that the job ended in."""
TIMED_OUT = 124
"""As `timeout` says it: the job had not ended by then."""

_SHORTEST_S, _LONGEST_S = 0.1, 1.0
"""Between looks; each is two look-ups by key. Nobody is notified of a job's end: that would cost every job."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. `kind`: job.waits, attempt.began, attempt.ended, and job.succeeded, job.dead or
    job.cancelled at the end.
    """

    kind: str
    at: datetime
    job_id: UUID
    detail: dict[str, Any]


class Follower:
    """What of a job was told already; each look gives what is new, in order."""

    def __init__(self) -> None:
        self._began = 0
        self._ended = 0
        self._waits: datetime | None = None

    def steps(self, job: JobView, attempts: Sequence[AttemptView]) -> list[Step]:
        """What is new. The attempts were read after the job."""
        steps: list[Step] = []
        for attempt in attempts:
            if attempt.number > self._began:
                steps.append(_began(job.id, attempt.number, attempt.started_at))
            if attempt.number > self._ended:
                steps.append(_ended(attempt))
                self._began = self._ended = attempt.number
        if job.state is State.RUNNING and job.attempts > self._began and job.started_at is not None:
            steps.append(_began(job.id, job.attempts, job.started_at))
            self._began = job.attempts
        if job.next_run_at is not None and job.next_run_at != self._waits and job.attempts == self._ended:
            self._waits = job.next_run_at
            detail = {"state": str(job.state), "next_run_at": job.next_run_at, "held": job.held}
            since = attempts[-1].finished_at if attempts else job.created_at
            steps.append(Step("job.waits", since, job.id, detail))
        if job.state in FINAL and job.finished_at is not None:
            detail = {"state": str(job.state), "reason": job.reason, "attempts": job.attempts}
            steps.append(Step(f"job.{job.state}", job.finished_at, job.id, detail))
        return steps


async def follow(db: Database, job_id: UUID) -> AsyncIterator[Step]:
    """What happens until the job has ended; a database that is away meanwhile is waited for.

    Raises NotFoundError if there is no such job, or it was pruned.
    """
    follower = Follower()
    pause_s = _SHORTEST_S
    is_away = False
    while True:
        steps: list[Step] = []
        try:
            job = await found_job(db, job_id)
            steps = follower.steps(job, await list_attempts(db, None, job_id) or [])
            is_away = False
        except DatabaseUnavailableError as error:
            if not is_away:
                note(f"still following: {error}")
            is_away = True
        for step in steps:
            yield step
        if steps and steps[-1].kind in _ENDS:
            return
        pause_s = _SHORTEST_S if steps else min(pause_s * 1.5, _LONGEST_S)
        await asyncio.sleep(pause_s)


async def told(db: Database, job_id: UUID, limit: timedelta | None, as_json: bool) -> int:
    """Follow a job and print what happens; the code to end with."""
    try:
        async with asyncio.timeout(None if limit is None else limit.total_seconds()):
            async for step in follow(db, job_id):
                if as_json:
                    print_line_of_json({"kind": step.kind, "at": step.at, "job_id": step.job_id, **step.detail})
                else:
                    say(sentence(step))
                if step.kind in _ENDS:
                    return CODES[State(step.detail["state"])]
    except TimeoutError:
        note(f"job {job_id} has not ended within {shown(limit)}; it goes on")
    return TIMED_OUT


def sentence(step: Step) -> str:
    """A step for people, on one line."""
    detail = step.detail
    match step.kind:
        case "job.waits":
            what = f"{detail['state']}, to run at {shown(detail['next_run_at'])}"
            what += "; held: deliveries to its target are" if detail["held"] else ""
        case "attempt.began":
            what = f"attempt {detail['number']} began"
        case "attempt.ended":
            parts = (detail["outcome"], detail["status_code"], detail["error"])
            what = f"attempt {detail['number']} ended after {detail['duration_ms']:g} ms: "
            what += ", ".join(shown(part) for part in parts if part is not None)
        case _:
            what = detail["state"] + (f" ({detail['reason']})" if detail["reason"] else "")
            what += f" after {detail['attempts']} attempt{'' if detail['attempts'] == 1 else 's'}"
    return f"{shown(step.at)}  {what}"


_ENDS = frozenset(f"job.{state}" for state in FINAL)


def _began(job_id: UUID, number: int, at: datetime) -> Step:
    return Step("attempt.began", at, job_id, {"number": number})


def _ended(attempt: AttemptView) -> Step:
    took_ms = (attempt.finished_at - attempt.started_at) / timedelta(milliseconds=1)
    detail = {
        "number": attempt.number,
        "trigger": attempt.trigger,
        "outcome": attempt.outcome,
        "status_code": attempt.status_code,
        "error": attempt.error,
        "duration_ms": attempt.detail.get("duration_ms", took_ms),
        "next_run_at": attempt.next_run_at,
    }
    return Step("attempt.ended", attempt.finished_at, attempt.job_id, detail)
