"""Finding jobs by filter: what is found is what matches, in bounded calls, by bounded plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from duly import queue
from duly.model import Report, State, Unique, uuid7
from duly.queue import Database, JobFilter, JobView, Owner, Session
from support.engine import Engine, new_job, new_owner, settled
from support.plans import PlanLog, faults

HOUR = timedelta(hours=1)
HOSTS = ("a.example.com", "b.example.com:8443", "[2001:db8::1]")


async def varied(engine: Engine, owner: Owner, rng: random.Random, n: int) -> None:
    """Jobs of every kind, in every state."""
    for _ in range(n):
        url = f"https://{rng.choice(HOSTS)}/{rng.choice('xyz')}"
        await engine.put(
            new_job(
                payload={"url": url, "method": rng.choice(("GET", "POST"))},
                queue=rng.choice(("mail", "web")),
                tags=tuple(rng.sample(("red", "green", "blue"), rng.randint(0, 2))),
                unique=rng.choice((None, None, Unique(f"key {rng.randint(0, 9)}", "start"))),
                delay=rng.choice((None, None, None, HOUR)),
                id=uuid7(int((datetime.now(UTC).timestamp() - rng.randint(-500, 80_000)) * 1000)),
            ),
            owner=owner,
        )
    jobs = await engine.claim(n // 2)
    for job in jobs:
        report = Report("http_error", rng.choice(("no such page", "Broken")), rng.choice((404, 500, 503)))
        match rng.randint(0, 4):
            case 0:
                await engine.finish(job)
            case 1:
                await engine.finish(job, "dead", report=report)
            case 2:
                await engine.finish(job, "retry", delay=HOUR, report=report)
            case 3:
                await engine.finish(job, "release")
    for job_id in [row["job_id"] for row in await engine.db.fetch("select job_id from duly.ready order by 1 limit 5")]:
        await queue.cancel(engine.db, owner, job_id)


def host_of(job: JobView) -> str:
    """Without the port."""
    authority: str = job.payload["url"].split("/")[2]
    return authority if authority.startswith("[") else authority.partition(":")[0]


def matches(job: JobView, wanted: JobFilter) -> bool:
    """What a filter means, once more."""
    url, status, error = job.payload["url"], job.last_status_code, job.last_error
    held = [
        not wanted.states or job.state in wanted.states,
        wanted.queue in (None, job.queue),
        wanted.tag is None or wanted.tag in job.tags,
        wanted.host in (None, host_of(job)),
        wanted.url_prefix is None or url.startswith(wanted.url_prefix),
        wanted.method in (None, job.payload["method"]),
        wanted.unique_key is None or (job.unique is not None and job.unique.key == wanted.unique_key),
        wanted.created_from is None or job.created_at >= wanted.created_from,
        wanted.created_to is None or job.created_at < wanted.created_to,
        wanted.run_at_from is None or job.run_at >= wanted.run_at_from,
        wanted.run_at_to is None or job.run_at < wanted.run_at_to,
        wanted.finished_from is None or (job.finished_at is not None and job.finished_at >= wanted.finished_from),
        wanted.finished_to is None or (job.finished_at is not None and job.finished_at < wanted.finished_to),
        wanted.status_from is None or (status is not None and wanted.status_from <= status <= (wanted.status_to or 0)),
        wanted.error is None or (error is not None and wanted.error.lower() in error.lower()),
        wanted.min_attempts is None or job.attempts >= wanted.min_attempts,
    ]
    return all(held)


def drawn(rng: random.Random, jobs: Sequence[JobView]) -> JobFilter:
    """One to three conditions, around what there is."""
    some = rng.choice(jobs)
    moment = rng.choice([some.created_at, some.run_at, some.finished_at or some.created_at, datetime.now(UTC)])
    low = rng.choice((404, 400, 500))
    parts: list[dict[str, object]] = [
        {"states": tuple(rng.sample(list(State), rng.randint(1, 3)))},
        {"states": (rng.choice(list(State)),)},
        {"states": (State.DEAD, State.CANCELLED)},
        {"queue": rng.choice(("mail", "web", "none"))},
        {"tag": rng.choice(("red", "green", "none"))},
        {"host": rng.choice(("a.example.com", "b.example.com", "[2001:db8::1]", "example.com"))},
        {"url_prefix": rng.choice(("https://a.", "https://a.example.com/x", "http://", "%"))},
        {"method": rng.choice(("GET", "PUT"))},
        {"unique_key": rng.choice(("key 0", "key 1", "none"))},
        {f"{rng.choice(('created', 'run_at', 'finished'))}_{rng.choice(('from', 'to'))}": moment},
        {"status_from": low, "status_to": low if low == 404 else low + 99},
        {"error": rng.choice(("broken", "SUCH", "_", "lease"))},
        {"min_attempts": rng.randint(0, 2)},
    ]
    wanted = JobFilter()
    for part in rng.sample(parts, rng.randint(1, 3)):
        wanted = replace(wanted, **part)  # type: ignore[arg-type]
    return wanted


async def paged(db: Database, owner: Owner, wanted: JobFilter, limit: int, look: int) -> list[UUID]:
    """All pages, none of which is longer or looked further than it may."""
    found: list[UUID] = []
    place = None
    for _ in range(500):
        page = await queue.find_ids(db, owner, wanted, before=place, limit=limit, look=look)
        assert len(page.ids) <= limit
        assert page.looked <= max(look, limit)
        found += page.ids
        place = page.place
        if place is None:
            return found
    raise AssertionError("a list without end")


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_found_is_what_matches(database: Database, seed: int) -> None:
    """A hundred drawn filters over jobs in every state, in pages of any size: all that match, each once, newest first;
    nothing of another project of the account, or of another account.
    """
    rng = random.Random(seed)
    engine = await Engine.start(database)
    sibling = await new_owner(database, engine.owner.account_id)
    await varied(engine, sibling, rng, 20)
    await varied(engine, await new_owner(database), rng, 20)
    await varied(engine, engine.owner, rng, 60)
    everything = await queue.list_jobs(database, engine.owner, limit=1000)
    assert len(everything) >= 35
    hits = 0
    for _ in range(100):
        wanted = drawn(rng, everything)
        expected = [job.id for job in everything if matches(job, wanted)]
        limit, look = rng.choice(((1, 7), (3, 10), (50, 5000), (200, 200)))
        assert await paged(database, engine.owner, wanted, limit, look) == expected, wanted
        hits += bool(expected)
    assert hits > 40, "filters that match nothing prove little"
    assert await queue.look_at(database, engine.owner, [job.id for job in everything]) == everything
    assert await queue.look_at(database, sibling, [job.id for job in everything]) == []
    await engine.sound()


async def test_a_call_looks_at_a_bounded_number_of_jobs(database: Database) -> None:
    """A filter that nothing serves and nothing matches ends after so many jobs, and says where to go on."""
    engine = await Engine.start(database)
    ids = sorted(await engine.enqueue(300), reverse=True)
    page = await queue.find_ids(database, engine.owner, JobFilter(min_attempts=5), limit=10, look=120)
    assert (list(page.ids), page.looked) == ([], 120)
    assert page.place == ids[119]
    page = await queue.find_ids(database, engine.owner, JobFilter(min_attempts=5), before=page.place, limit=10)
    assert (list(page.ids), page.place, page.looked) == ([], None, 180)


async def test_tags_go_with_their_job(database: Database) -> None:
    """A job that is refused for its unique key leaves no tag behind, and pruning is held by the tests of pruning."""
    engine = await Engine.start(database)
    key = Unique("k")
    [first, second] = await engine.put(new_job(unique=key, tags=("t",)), new_job(unique=key, tags=("t",)))
    assert [first.result, second.result] == ["created", "taken"]
    rows = await database.fetch("select job_id, tag from duly.job_tag")
    assert [(row["job_id"], row["tag"]) for row in rows] == [(first.job_id, "t")]


SERVED = {
    "all": JobFilter(),
    "queue": JobFilter(queue="default"),
    "dead": JobFilter(states=(State.DEAD,)),
    "dead or cancelled": JobFilter(states=(State.DEAD, State.CANCELLED)),
    "running": JobFilter(states=(State.RUNNING,)),
    "tag": JobFilter(tag="rare"),
    "unique key": JobFilter(unique_key="rare"),
    "created": JobFilter(created_from=datetime(2000, 1, 1, tzinfo=UTC)),
    "nothing matches": JobFilter(min_attempts=1000),
    "everything at once": JobFilter(
        states=(State.SCHEDULED,), host="h", method="GET", error="e", status_from=400, status_to=499, min_attempts=0
    ),
}


async def buffers_of(session: Session, log: PlanLog, owner: Owner, wanted: JobFilter) -> int:
    """The buffers that a page of this filter touches: finding it, and showing what was found."""
    await log.take()
    page = await queue.find_ids(session, owner, wanted, limit=20, look=500)
    await queue.look_at(session, owner, page.ids)
    heard = await log.take()
    bad = {fault for plan in heard if "duly." in plan.statement for fault in faults(plan)}
    assert not bad, "\n".join(sorted(bad))
    return max(plan.buffers for plan in heard if "find_jobs" in plan.statement) + max(
        plan.buffers for plan in heard if "duly.look" in plan.statement
    )


async def fewest_buffers(session: Session, log: PlanLog, owner: Owner, wanted: JobFilter) -> int:
    """Of seven times, so that both custom and generic plans are seen: making one touches buffers of its own."""
    return min([await buffers_of(session, log, owner, wanted) for _ in range(7)])


async def mixed(engine: Engine, owner: Owner, n: int) -> None:
    """n finished jobs, and one for every filter."""
    for at in range(0, n, 5000):
        size = min(5000, n - at)
        await engine.enqueue(size, owner=owner)
        for edge in ("succeeded",):
            while jobs := await engine.claim(1000):
                await engine.settle(*(settled(job, edge) for job in jobs))
    for _ in range(20):
        await engine.put(new_job(tags=("rare",), unique=Unique("rare", "start")), owner=owner)
        [job] = await engine.claim(1)
        await engine.finish(job, "dead")
    await engine.enqueue(20, owner=owner)
    await engine.claim(20)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_page_touches_as_much_of_a_large_system_as_of_a_small_one(
    database: Database, database_url: str
) -> None:
    """The same jobs in front of none and of 20,000 finished ones of the same project and as many scheduled ones of
    another, with the statistics of the empty tables and with their own: plans are bounded, and a page that an index
    serves touches no more than the height that indexes grow by (one level more is one buffer more a look-up, of two).
    One that is looked for job by job touches what 500 jobs cost.
    """
    engine = await Engine.start(database)
    small, large = await new_owner(database), await new_owner(database)
    await mixed(engine, small, 0)
    connection = await asyncpg.connect(database_url)
    session, log = Session(connection, "duly"), await PlanLog.on(connection)
    try:
        before = {}
        for name, wanted in SERVED.items():
            before[name] = await fewest_buffers(session, log, small, wanted)
        await engine.enqueue(20_000, owner=await new_owner(database), delay=HOUR)
        await mixed(engine, large, 20_000)
        for _ in range(2):
            for name, wanted in SERVED.items():
                touched = await fewest_buffers(session, log, large, wanted)
                looks = name in ("nothing matches", "everything at once")
                assert touched <= (500 * 40 if looks else 2.5 * before[name]), (name, before[name], touched)
            await database.execute("analyze")
    finally:
        connection.terminate()
