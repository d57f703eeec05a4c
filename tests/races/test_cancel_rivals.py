"""A cancel and the end of an attempt meet at random: one final state, by the rule that the answers tell."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

from duly import queue
from duly.model import ClaimedJob, Outcome, Report, Retry, State, Success
from duly.model.settlement import Edge
from duly.queue import Database
from support.engine import Engine, settled
from support.sessions import until, until_true
from support.working import working

HOUR = timedelta(hours=1)
ROUNDS = 200


async def test_a_cancel_and_a_settle_at_once_end_by_the_fixed_rule(database: Database) -> None:
    """FO-024: 200 rounds in both orders. `requested` and a success: succeeded; `requested` and anything else:
    cancelled; `cancelled`: cancelled, after a retry that had gone first too; `final`: it had ended. Nothing goes on.
    """
    rng = random.Random(24)
    engine = await Engine.start(database)
    await engine.enqueue(ROUNDS)
    seen: Counter[tuple[str, str]] = Counter()
    for job in await engine.claim():
        edge: Edge = rng.choice(("succeeded", "retry", "dead", "snooze", "interrupted"))
        calls = [
            asyncio.create_task(queue.cancel(database, engine.owner, job.id, abort=rng.random() < 0.5)),
            asyncio.create_task(engine.settle(settled(job, edge, delay=HOUR))),
        ]
        if rng.random() < 0.5:  # the settle gets its connection first
            calls[0].cancel()
            calls[0] = asyncio.create_task(queue.cancel(database, engine.owner, job.id))
        results = await asyncio.gather(*calls)
        answer, refused = str(results[0]), results[1]
        assert refused == frozenset()
        state = (await engine.view(job.id)).state
        expected = {
            "requested": State.SUCCEEDED if edge == "succeeded" else State.CANCELLED,
            "cancelled": State.CANCELLED,
            "final": State.SUCCEEDED if edge == "succeeded" else State.DEAD,
        }[answer]
        assert state == expected, (answer, edge, state)
        seen[answer, edge] += 1
    assert len({answer for answer, _ in seen}) >= 2, seen
    assert (await engine.sound()).ready == 0


async def test_cancels_while_a_worker_runs_the_jobs(database: Database, database_url: str) -> None:
    """FO-024: 200 jobs that ignore the cancel and return, fail or run out of time, cancelled at random moments around
    their end: each ends once, no worker error, and none that was cancelled runs again.
    """
    rng = random.Random(42)
    engine = await Engine.start(database)
    starts: Counter[object] = Counter()

    async def handler(job: ClaimedJob) -> Outcome:
        starts[job.id] += 1
        for _ in range(rng.randrange(30)):
            await asyncio.sleep(0)
        match job.priority:
            case 1:
                return Success()
            case 2:
                raise ValueError("it failed")
            case _:
                return Retry(Report("timeout", error="out of time"))

    async def cancel(job_id: object, answers: dict[object, str]) -> None:
        await until_true(lambda: starts[job_id])
        for _ in range(rng.randrange(60)):
            await asyncio.sleep(0)
        answers[job_id] = await queue.cancel(database, engine.owner, job_id)  # type: ignore[arg-type]

    answers: dict[object, str] = {}
    ids = [job_id for priority in (1, 2, 3) for job_id in await engine.enqueue(ROUNDS // 3 + 1, priority=priority)]
    async with working(database, database_url, {"k": handler}, concurrency=20) as it:
        await asyncio.gather(*(cancel(job_id, answers) for job_id in ids))

        async def ended() -> bool:
            return (await queue.conservation(database)).running == 0

        await until(ended)
        assert (await it.drained()).clean
    assert set(starts.values()) == {1}
    for job_id in ids:
        view = await engine.view(job_id)
        stands = view.priority == 1 and answers[job_id] != "cancelled"
        assert view.state == (State.SUCCEEDED if stands else State.CANCELLED)
    count = await engine.sound()
    assert (count.scheduled, count.ready, count.running) == (0, 0, 0)
