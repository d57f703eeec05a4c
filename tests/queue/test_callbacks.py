"""on_success, on_dead: the end of a job and the job that tells it are one transaction."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly import queue
from duly.model import DeadReason, Report, State, Unique
from duly.model.settlement import Edge, Settlement, expired
from duly.queue import Database, JobView
from support.engine import Engine, new_job, new_worker, settled
from support.plans import PlanLog
from support.sessions import autocommitting, holding, until, until_waiting

HOUR = timedelta(hours=1)
SHORT = timedelta(milliseconds=100)  # a lease that is past the grace after a start of the server
GOOD = {"url": "https://example.com/good", "method": "POST", "headers": [["Content-Type", "application/json"]]}
BAD = {**GOOD, "url": "https://example.com/bad"}
BOTH: dict[str, Any] = {"on_success": GOOD, "on_dead": BAD}


async def callbacks(engine: Engine) -> list[JobView]:
    """Every callback there is, the oldest first, with its body."""
    jobs = await queue.list_jobs(engine.db, engine.owner, limit=200)
    found = [await queue.get_job(engine.db, engine.owner, job.id, include_body=True) for job in reversed(jobs)]
    return [job for job in found if job is not None and job.callback_of is not None]


async def called(engine: Engine) -> list[tuple[UUID | None, str, dict[str, Any]]]:
    """Of which job, to which URL, and what each callback tells."""
    return [(job.callback_of, job.payload["url"], json.loads(job.body or b"")) for job in await callbacks(engine)]


@pytest.mark.parametrize(
    ("edge", "urls"),
    [
        ("succeeded", ["good"]),
        ("dead", ["bad"]),
        ("cancelled", []),
        ("retry", []),
        ("snooze", []),
        ("interrupted", []),
        ("release", []),
    ],
)
async def test_success_and_death_are_told_and_nothing_else(database: Database, edge: Edge, urls: list[str]) -> None:
    """One callback to the URL for that end; none to the other one, none for a job that goes on or was cancelled."""
    engine = await Engine.start(database)
    job = await engine.running(**BOTH)
    await engine.finish(job, edge, delay=HOUR)
    assert [(of, url.rpartition("/")[2]) for of, url, _ in await called(engine)] == [(job.id, url) for url in urls]
    await engine.sound()


@pytest.mark.parametrize(("edge", "given"), [("succeeded", {"on_dead": BAD}), ("dead", {"on_success": GOOD})])
async def test_an_end_without_a_callback_of_its_own_tells_nobody(
    database: Database, edge: Edge, given: dict[str, Any]
) -> None:
    """Each of the two stands alone."""
    engine = await Engine.start(database)
    await engine.finish(await engine.running(**given), edge)
    assert await callbacks(engine) == []


async def test_a_callback_is_an_ordinary_job(database: Database) -> None:
    """Kind http, in the queue and at the priority of its job, due now, with a budget of its own, no key, no tags."""
    engine = await Engine.start(database)
    job = await engine.running(
        **BOTH, queue="mail", priority=2, concurrency_key="c", unique=Unique("u"), tags=("a",), max_attempts=1
    )
    await engine.finish(job)
    [made] = await callbacks(engine)
    assert (made.kind, made.queue, made.priority, made.state) == ("http", "mail", 2, State.READY)
    assert (made.payload, made.max_attempts, made.timeout) == (GOOD, 8, timedelta(seconds=30))
    assert (made.concurrency_key, made.unique, made.tags, made.on_success, made.on_dead) == (None, None, (), None, None)
    assert (made.account_id, made.project_id) == (engine.owner.account_id, engine.owner.project_id)
    delivered = await engine.claim_one(kinds=("http",), queues=("mail",))
    assert (delivered.id, delivered.final_attempt) == (made.id, 8)
    await engine.finish(delivered, "dead")
    assert [job.id for job in await callbacks(engine)] == [made.id]


async def test_the_body_tells_the_end_and_whose_it_is(database: Database) -> None:
    """The job as its owner knows it: nothing of the cell's own, and no headers."""
    engine = await Engine.start(database)
    payload = {"url": "https://example.com/job?a=ü", "method": "PUT", "headers": [["Authorization", "secret"]]}
    metadata = {"order": [1, 2.5, None, "ü"]}
    job = await engine.running(**BOTH, payload=payload, tags=("a", "b"), metadata=metadata)
    await engine.finish(job, result={"rows": 3}, report=Report("success", status_code=204))
    [(_, _, told)] = await called(engine)
    finished_at = datetime.fromisoformat(told.pop("finished_at"))
    assert finished_at == (await engine.view(job.id)).finished_at
    assert finished_at.tzinfo == UTC
    assert told == {
        "id": str(job.id),
        "state": "succeeded",
        "reason": None,
        "attempts": 1,
        "last_status_code": 204,
        "last_error": None,
        "tags": ["a", "b"],
        "metadata": metadata,
        "url": payload["url"],
        "result": {"rows": 3},
    }


async def test_a_death_says_why(database: Database) -> None:
    """Reason, the last error and the last status; hostile texts were mended before."""
    engine = await Engine.start(database)
    job = await engine.running(**BOTH)
    report = Report("http_error", 'the "target"\x00\ud800 answered\n410', 410)
    await engine.finish(job, "dead", reason=DeadReason.TARGET_GONE, report=report)
    [(_, url, told)] = await called(engine)
    assert url == BAD["url"]
    assert (told["state"], told["reason"], told["last_status_code"]) == ("dead", "target_gone", 410)
    assert told["last_error"] == 'the "target"␀\ufffd answered\n410'
    assert (told["tags"], told["metadata"], told["url"], told["result"]) == ([], None, None, None)


async def test_expiry_is_a_death_without_an_attempt(database: Database) -> None:
    """It came too late and never ran: told with no attempts."""
    engine = await Engine.start(database)
    job = await engine.running(**BOTH)
    assert await engine.settle(expired(job)) == frozenset()
    [(_, url, told)] = await called(engine)
    assert (url, told["reason"], told["attempts"]) == (BAD["url"], "expired", 0)


async def test_a_rescue_tells_the_deaths_it_finds(database: Database) -> None:
    """Lost with the last attempt: dead and told. Lost before: again, nobody is told; nor of the cancelled."""
    engine = await Engine.start(database, SHORT)
    last = await engine.running(**BOTH, max_attempts=1)
    first = await engine.running(**BOTH)
    unwanted = await engine.running(**BOTH, max_attempts=1)
    quiet = await engine.running(max_attempts=1)
    await queue.cancel(database, engine.owner, unwanted.id)
    await engine.expire_worker()
    ways = {lost.job_id: lost.way for lost in await engine.rescue()}
    assert ways == {last.id: "dead", first.id: "scheduled", unwanted.id: "cancelled", quiet.id: "dead"}
    [(of, url, told)] = await called(engine)
    assert (of, url, told["reason"], told["attempts"]) == (last.id, BAD["url"], "worker_lost", 1)
    assert await engine.rescue() == []
    await engine.sound()


async def test_what_is_cancelled_or_replaced_while_it_waits_tells_nobody(database: Database) -> None:
    """Neither end is a success or a death."""
    engine = await Engine.start(database)
    ready, later = await engine.enqueue(**BOTH), await engine.enqueue(**BOTH, delay=HOUR)
    for [job_id] in (ready, later):
        assert await queue.cancel(database, engine.owner, job_id) == "cancelled"
    await engine.put(new_job(**BOTH, unique=Unique("u"), delay=HOUR))
    await engine.put(new_job(**BOTH, unique=Unique("u", on_conflict="replace"), delay=HOUR))
    assert (await engine.sound()).cancelled == 3
    assert await callbacks(engine) == []


async def test_a_redriven_job_calls_again_for_each_end(database: Database) -> None:
    """Dead at 1, dead at 2, succeeded at 3: three callbacks, told apart by the attempts."""
    engine = await Engine.start(database)
    job = await engine.running(**BOTH, max_attempts=1)
    await engine.finish(job, "dead")
    ends: tuple[Edge, ...] = ("dead", "succeeded")
    for edge in ends:
        assert await queue.redrive(database, engine.owner, job.id) == "redriven"
        await engine.finish(await engine.claim_one(), edge)
    assert [(of, told["attempts"], told["state"]) for of, _, told in await called(engine)] == [
        (job.id, 1, "dead"),
        (job.id, 2, "dead"),
        (job.id, 3, "succeeded"),
    ]
    await engine.sound()


async def test_a_repeated_settle_calls_nobody(database: Database) -> None:
    """The lease is gone: the same words again, other ones, a rescue, another worker's: refused, and one callback."""
    engine = await Engine.start(database, SHORT)
    job = await engine.running(**BOTH, max_attempts=1)
    await engine.finish(job)
    ends: tuple[Edge, ...] = ("succeeded", "dead")
    for edge in ends:
        assert await engine.settle(settled(job, edge)) == {job.id}
    await engine.expire_worker()
    assert await engine.rescue() == []
    assert len(await callbacks(engine)) == 1


async def test_a_big_batch_tells_each_its_own(database: Database) -> None:
    """Three hundred at once, every third with callbacks: one for each that has one for its end."""
    engine = await Engine.start(database)
    await engine.put(*(new_job(metadata=n, **(BOTH if n % 3 == 0 else {})) for n in range(300)))
    jobs = await engine.claim()
    assert len(jobs) == 300
    batch = [settled(job, "succeeded" if n % 2 else "dead") for n, job in enumerate(jobs)]
    assert await engine.settle(*batch) == frozenset()
    told = await called(engine)
    assert Counter(of for of, _, _ in told) == Counter(
        row["id"] for row in await database.fetch("select id from duly.job where on_dead is not null")
    )
    ends = {row["job_id"]: row["state"] for row in await database.fetch("select job_id, state from duly.outcome")}
    for of, url, body in told:
        assert (str(of), body["state"]) == (body["id"], ends[of])
        assert url == (GOOD if ends[of] == "succeeded" else BAD)["url"]
    assert (await engine.sound()).ready == 100


async def test_a_job_without_callbacks_is_settled_without_a_look(database: Database, database_url: str) -> None:
    """The lease says that there are none: no further statement is run. With one there is."""
    engine = await Engine.start(database)
    async with autocommitting(database_url) as session:
        log = await PlanLog.on(session.connection)  # type: ignore[arg-type]
        for given, looks in (({}, False), (BOTH, True)):
            job = await engine.running(**given)
            await log.take()
            await engine.settle(settled(job, "succeeded"), db=session)
            assert any("json_build_object" in plan.statement for plan in await log.take()) is looks


async def test_a_settle_makes_no_lanes(database: Database, database_url: str) -> None:
    """The callback's lane was made with the job: nobody who makes lanes and does not commit can hold up a settle."""
    engine = await Engine.start(database)
    await engine.put(*(new_job(**BOTH, queue=f"q{n}", concurrency_key="c") for n in range(3)), new_job(kind="other"))
    jobs = await engine.claim()
    kinds = await database.fetch("select queue, kind from duly.lane_block order by queue, kind")
    assert [tuple(row) for row in kinds] == [
        ("default", "other"),
        *((f"q{n}", k) for n in range(3) for k in ("http", "k")),
    ]
    async with holding(database_url) as (rival, _):
        for n in range(3):
            await engine.enqueue_on(rival, kind="http", queue=f"q{n}")
        assert await engine.settle(*(settled(job, "succeeded") for job in jobs)) == frozenset()
    assert len(await callbacks(engine)) == 3
    assert await database.fetchval("select count(*) from duly.lane") == 7


async def test_a_rolled_back_end_is_not_told(database: Database, database_url: str) -> None:
    """The job still runs, nothing is left, and its true end is told once."""
    engine = await Engine.start(database)
    job = await engine.running(**BOTH)
    async with holding(database_url) as (session, transaction):
        await engine.settle(settled(job, "dead"), db=session)
        assert await session.fetchval("select count(*) from duly.job where callback_of is not null") == 1
        await transaction.rollback()
    assert await callbacks(engine) == []
    assert (await engine.view(job.id)).state == State.RUNNING
    await engine.finish(job)
    assert [url for _, url, _ in await called(engine)] == [GOOD["url"]]
    await engine.sound()


async def test_a_backend_that_is_killed_between_end_and_callback_leaves_neither(
    database: Database, database_url: str
) -> None:
    """Held up where the callback is stored, with the outcome written: what dies there never was."""
    engine = await Engine.start(database, SHORT)
    job = await engine.running(**BOTH, max_attempts=1)
    async with holding(database_url) as (rival, _), autocommitting(database_url) as session:
        await rival.execute("lock table duly.job in share mode")
        settling = asyncio.create_task(engine.settle(settled(job, "succeeded"), db=session))
        await until_waiting(database, session)
        pid = session.connection.get_server_pid()
        assert await database.fetchval("select pg_terminate_backend($1)", pid)
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await settling
    await until(lambda: _is_gone(database, pid))
    assert (await engine.view(job.id)).state == State.RUNNING
    assert await callbacks(engine) == []
    await engine.expire_worker()
    [lost] = await engine.rescue()
    assert lost.way == "dead"
    assert [url for _, url, _ in await called(engine)] == [BAD["url"]]
    await engine.sound()


async def test_a_settle_and_a_rescue_at_once_call_once(database: Database, database_url: str) -> None:
    """The rescue passes by the lease that is being settled; the other way round the settle is refused."""
    engine = await Engine.start(database, SHORT)
    settled_first = await engine.running(**BOTH, max_attempts=1)
    async with holding(database_url) as (session, transaction):
        await engine.settle(settled(settled_first, "succeeded"), db=session)
        await engine.expire_worker()
        assert await engine.rescue() == []
        await transaction.commit()
    engine.worker_id = await new_worker(database)
    rescued_first = await engine.running(**BOTH, max_attempts=1)
    async with holding(database_url) as (session, transaction), autocommitting(database_url) as other:
        await database.execute("delete from duly.worker where id = $1", engine.worker_id)
        assert [lost.way for lost in await engine.rescue(db=session)] == ["dead"]
        late = asyncio.create_task(engine.settle(Settlement(rescued_first.id, 1, "succeeded"), db=other))
        await until_waiting(database, other)
        await transaction.commit()
        assert await late == {rescued_first.id}
    assert Counter(of for of, _, _ in await called(engine)) == {settled_first.id: 1, rescued_first.id: 1}
    await engine.sound()


async def test_the_same_id_with_another_callback_is_another_job(database: Database) -> None:
    """A repeat is the same in every word; one that tells somebody else is refused, and changes nothing."""
    engine = await Engine.start(database)
    job = new_job(**BOTH)
    assert [answer.result for answer in await engine.put(job)] == ["created"]
    assert [answer.result for answer in await engine.put(job)] == ["repeated"]
    for other in (new_job(id=job.id), new_job(id=job.id, on_success=GOOD), new_job(id=job.id, on_success=BAD)):
        assert [answer.result for answer in await engine.put(other)] == ["conflict"]
    assert (await engine.view(job.id)).on_dead == BAD


async def _is_gone(db: Database, pid: int) -> bool:
    return not await db.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid)
