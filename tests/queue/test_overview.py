"""What people see first: backlog, slots, dead letters, the last minutes. Bounded, and exact where few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from duly import queue
from duly.model import DeadReason, Report
from duly.queue import Database, Session, overview
from support.engine import Engine, new_job, new_owner, settled
from support.plans import Plan, PlanLog
from support.sessions import autocommitting

HOUR = timedelta(hours=1)


async def fail(engine: Engine, url: str, report: Report, reason: DeadReason = DeadReason.PERMANENT) -> None:
    """One job to this URL that is dead at once."""
    job = await engine.running(payload={"url": url})
    await engine.finish(job, "dead", report=report, reason=reason)


async def test_backlog_counts_what_waits_by_queue_of_one_owner_or_of_all(database: Database) -> None:
    """Each queue once, whatever keys and segments its jobs are in, with the time of the oldest."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    await engine.enqueue(3, queue="mail", concurrency_key="a")
    await queue.advance(database)
    await engine.enqueue(2, queue="mail", concurrency_key="b")
    await engine.enqueue(1, queue="slow")
    await engine.enqueue(4, owner=other)
    await engine.enqueue(5, queue="later", delay=HOUR)
    await database.execute("update duly.ready set run_at = now() - interval '1 hour' where segment = 1")

    mine = await overview.backlog(database, engine.owner)
    assert [(line.queue, line.waiting) for line in mine] == [("mail", 5), ("slow", 1)]
    now = await queue.server_now(database)
    assert mine[0].oldest_at is not None
    assert timedelta(minutes=59) < now - mine[0].oldest_at < timedelta(minutes=61)
    assert [(line.queue, line.waiting) for line in await overview.backlog(database, None)] == [
        ("mail", 5),
        ("default", 4),
        ("slow", 1),
    ]
    assert await overview.backlog(database, await new_owner(database)) == []
    sibling = await new_owner(database, engine.owner.account_id)
    assert await overview.backlog(database, sibling) == [], "a project sees its own, not its account's"


async def test_backlog_looks_at_no_more_queues_than_it_may(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones, by account."""
    monkeypatch.setattr(overview, "MOST_LINES", 2)
    engine = await Engine.start(database)
    await engine.put(*(new_job(queue=name) for name in ("a", "b", "c")))
    assert len(await overview.backlog(database, engine.owner)) == 2


async def test_a_long_line_is_counted_so_far_and_no_further(database: Database) -> None:
    """6,500 jobs wait in several segments: at least 5,000, and how many does not matter. The oldest is found in the
    last of them.
    """
    engine = await Engine.start(database)
    for n in (3_000, 3_000, 500):
        await queue.advance(database)
        await engine.enqueue(n)
    oldest = await database.fetchval(
        """update duly.ready set run_at = run_at - interval '1 hour'
           where segment = (select max(segment) from duly.ready) returning run_at"""
    )
    [line] = await overview.backlog(database, engine.owner)
    assert overview.MOST_WAITING <= line.waiting < 6_500
    assert line.oldest_at == oldest
    await database.execute("delete from duly.ready where segment = (select min(segment) from duly.ready)")
    [line] = await overview.backlog(database, engine.owner)
    assert line.waiting == 3_500, "below the bound it is exact, in however many segments"


async def test_slots_in_use_and_what_runs(database: Database) -> None:
    """By worker and queue; a project sees its own jobs only."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    await engine.enqueue(2, queue="mail", payload={"url": "https://a.example/x"})
    await engine.enqueue(1, owner=other)
    await engine.claim()
    mine = await overview.in_use(database, engine.owner)
    assert [(use.worker_id, use.queue, use.running) for use in mine] == [(engine.worker_id, "mail", 2)]
    assert sum(use.running for use in await overview.in_use(database, None)) == 3
    running = await overview.running_jobs(database, engine.owner)
    assert [(job.queue, job.target, job.attempt) for job in running] == [("mail", "https://a.example/x", 1)] * 2
    assert len(await overview.running_jobs(database, None)) == 3
    assert len(await overview.running_jobs(database, None, limit=1)) == 1


async def test_dead_letters_are_found_newest_first_and_page_by_page(database: Database) -> None:
    """Those of one owner among everybody's; `looked_to` leads on until there are no more."""
    engine = await Engine.start(database)
    other = await new_owner(database)
    for n in range(3):
        await fail(engine, f"https://a.example/{n}", Report("http_error", "the target answered 404", 404))
    await engine.put(new_job(payload={"url": "https://b.example/"}), owner=other)
    await engine.settle(settled(await engine.claim_one(), "dead"))
    [cancelled] = await engine.enqueue()
    await queue.cancel(database, engine.owner, cancelled)

    mine = await overview.dead_letters(database, engine.owner)
    assert [letter.target for letter in mine.letters] == [f"https://a.example/{n}" for n in (2, 1, 0)]
    assert mine.looked_to is None
    first = mine.letters[0]
    assert (first.reason, first.outcome, first.status_code, first.error, first.attempts) == (
        "permanent",
        "http_error",
        404,
        "the target answered 404",
        1,
    )
    assert len((await overview.dead_letters(database, None)).letters) == 4

    page = await overview.dead_letters(database, engine.owner, look=2)
    assert [letter.target for letter in page.letters] == ["https://a.example/2"], "the other one is somebody else's"
    rest = await overview.dead_letters(database, engine.owner, look=3, before=page.looked_to)
    assert [letter.target for letter in rest.letters] == ["https://a.example/1", "https://a.example/0"]
    assert (await overview.dead_letters(database, await new_owner(database))).letters == ()


async def test_a_job_that_expired_before_any_attempt_is_a_letter_without_one(database: Database) -> None:
    """Nothing is made up about an attempt that never ran."""
    engine = await Engine.start(database)
    [job_id] = await engine.enqueue()
    await database.execute("delete from duly.ready where job_id = $1", job_id)
    await database.execute(
        """insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt)
           values ($1, $2, 'dead', 'expired', 0, 8)""",
        job_id,
        engine.owner.account_id,
    )
    [letter] = (await overview.dead_letters(database, engine.owner)).letters
    assert (letter.reason, letter.attempts, letter.outcome, letter.error) == ("expired", 0, None, None)


async def test_the_last_minutes_are_counted_one_by_one_while_they_are_few(database: Database) -> None:
    """Succeeded, failed and arrived, how long and how late, what fails where; a project's own, and everybody's."""
    engine = await Engine.start(database, lease=timedelta(milliseconds=50))
    other = await new_owner(database)
    for _ in range(3):
        await engine.finish(await engine.running(payload={"url": "https://ok.example/"}))
    for path in ("a", "b"):
        await fail(engine, f"https://u:p@down.example:8443/{path}?q", Report("http_error", "no", 503))
    lost = await engine.running(payload={"url": "https://lost.example/"})
    await engine.expire_worker()
    await engine.rescue()
    await engine.enqueue(1, owner=other)

    seen = await overview.recent(database, engine.owner)
    assert (seen.whole.succeeded, seen.whole.failed, seen.whole.ended, seen.whole.arrived) == (3, 3, 6, 6)
    assert (seen.weight, seen.lost, len(seen.spans)) == (1, 1, 40)
    assert sum(span.ended for span in seen.spans[-2:]) == 6, "the last span is the latest"
    assert sum(span.arrived for span in seen.spans) == 6
    assert seen.whole.took is not None
    assert seen.whole.waited is not None
    assert 0 <= seen.whole.waited[0] <= seen.whole.waited[1] < 60
    assert {(f.host, f.outcome, f.status_code, f.failed) for f in seen.failing} == {
        ("down.example:8443", "http_error", 503, 2),
        ("lost.example", "worker_lost", None, 1),
    }
    everybody = await overview.recent(database, None)
    assert (everybody.whole.ended, everybody.whole.arrived) == (6, 7)
    nobody = await overview.recent(database, await new_owner(database))
    assert (nobody.whole.ended, nobody.whole.took, nobody.weight, nobody.failing) == (0, None, 1, ())
    assert lost.attempt == 1


async def test_old_attempts_are_not_recent_wherever_they_lie(database: Database) -> None:
    """Ended before the window, in the last page too: in a table with nothing new, and in front of something new."""
    engine = await Engine.start(database)
    for _ in range(4):
        await engine.finish(await engine.running())
    await database.execute("update duly.attempt set finished_at = finished_at - interval '1 day'")
    assert (await overview.recent(database, None)).whole.ended == 0
    await engine.finish(await engine.running())
    assert (await overview.recent(database, None)).whole.ended == 1


async def make_history(url: str, engine: Engine, n: int) -> None:
    """n attempts of one job each, ended evenly over the last 100 minutes in the order of the table."""
    [block] = [1]
    async with autocommitting(url) as one:
        await one.execute(
            """with made as materialized (
                   select duly.uuid7() as id, i from generate_series(1, $1::integer) i
               ), facts as (
                   insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts,
                       timeout_seconds, run_at, payload, created_at)
                   select m.id, $2, $3, $4, 'default', 'k', 5, 8, 30, now() - interval '101 minutes'
                       + m.i * interval '100 minutes' / $1, '{"url": "https://h.example/"}',
                       now() - interval '100 minutes' + m.i * interval '100 minutes' / $1
                   from made m
               ), ended as (
                   insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt)
                   select m.id, $2, case when m.i % 50 = 0 then 'dead' else 'succeeded' end,
                       case when m.i % 50 = 0 then 'permanent' end, 1, 8 from made m
               )
               insert into duly.attempt (job_id, number, worker_id, trigger, started_at, finished_at, outcome)
               select m.id, 1, 1, 'schedule', f.at - interval '2 seconds', f.at,
                      case when m.i % 10 = 0 then 'http_error' else 'success' end
               from made m, lateral (select now() - interval '100 minutes' + m.i * interval '100 minutes' / $1 as at) f
               order by m.i""",
            n,
            engine.owner.account_id,
            engine.owner.project_id,
            block,
        )


@pytest.mark.slow
async def test_of_many_every_nth_page_is_read_and_the_figures_are_close(database: Database, database_url: str) -> None:
    """200,000 attempts in 100 minutes: of the last 20 there are 40,000, of which every tenth failed. Sixty pages tell
    it within a tenth.
    """
    engine = await Engine.start(database)
    await make_history(database_url, engine, 200_000)
    seen = await overview.recent(database, engine.owner, pages=60)
    assert seen.weight > 1
    nobody = await overview.recent(database, await new_owner(database), pages=60)
    assert (nobody.whole.ended, nobody.weight) == (0, seen.weight), "it says that it did not see all"
    assert 36_000 < seen.whole.ended < 44_000
    assert 0.08 < seen.whole.failed / seen.whole.ended < 0.12
    assert 36_000 < seen.whole.arrived < 44_000
    assert all(500 < span.ended < 1_500 for span in seen.spans[1:-1]), "1,000 in every half minute"
    assert seen.whole.took is not None
    assert 1.9 < seen.whole.took[0] < 2.1


Question = tuple[str, Callable[[Session], Awaitable[object]], int]
_BOUNDED = ("Index Scan", "Index Only Scan", "Tid Range Scan")
_FACTS = ("job_", "attempt_", "outcome_")
_STATES = ("ready", "lease", "scheduled", "lane_block")


def walks(plan: Plan) -> list[str]:
    """Scans of tables that grow, other than by an index or a range of pages."""
    return [
        f"{node['Node Type']} on {node['Relation Name']}"
        for node in plan.nodes()
        if node["Node Type"].endswith("Scan")
        and (node.get("Relation Name", "").startswith(_FACTS) or node.get("Relation Name") in _STATES)
        and node["Node Type"] not in _BOUNDED
    ]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("analyzed", ["before", "after"])
async def test_looking_is_bounded_with_any_statistics(database: Database, database_url: str, analyzed: str) -> None:
    """FO-050: 200,000 finished jobs, of which 4,000 are dead, and 50,000 that wait, with the statistics of the empty
    tables or their own: only index scans and ranges of pages, and no more buffers than the bounds allow.

    A page of the ledger and of the jobs 400 times, and each attempt's job by its key through three levels: some 60,000.
    """
    engine = await Engine.start(database)
    if analyzed == "before":
        await database.execute("analyze")
    await make_history(database_url, engine, 200_000)
    for _ in range(5):
        await engine.enqueue(10_000)
        await queue.advance(database)
    await engine.claim(500)
    if analyzed == "after":
        await database.execute("analyze")
    questions: list[Question] = [
        ("backlog", lambda s: overview.backlog(s, None), 12_000),
        ("in use", lambda s: overview.in_use(s, None), 5_000),
        ("running", lambda s: overview.running_jobs(s, engine.owner), 12_000),
        ("dead", lambda s: overview.dead_letters(s, engine.owner, look=1_000), 12_000),
        ("recent", lambda s: overview.recent(s, engine.owner), 120_000),
    ]
    connection = await asyncpg.connect(database_url)
    try:
        session, log = Session(connection, "duly"), await PlanLog.on(connection)
        for name, ask, bound in questions:
            for _ in range(7):  # custom plans, then the generic one
                await ask(session)
                heard = await log.take()
                assert heard
                assert [(name, walk) for plan in heard for walk in walks(plan)] == []
                touched = max(plan.buffers for plan in heard)
                assert touched < bound, f"{name} touched {touched} buffers"
    finally:
        connection.terminate()


async def test_figures_of_partitions_need_the_right_to_read_the_table(database: Database, database_url: str) -> None:
    """The function runs as its owner: it asks whether the caller may read."""
    async with autocommitting(database_url) as owner:
        await owner.execute("create role duly_blind login; grant usage on schema duly to duly_blind")
        try:
            blind = await asyncpg.connect(database_url, user="duly_blind")
            try:
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="attempt"):
                    await blind.fetch("select * from duly.recent_attempts(null, now(), 1)")
            finally:
                await blind.close()
        finally:
            await owner.execute("drop owned by duly_blind; drop role duly_blind")


async def test_sizes_and_names(database: Database) -> None:
    """What the server counts anyway, what things are called."""
    engine = await Engine.start(database)
    await engine.enqueue(3)
    await engine.enqueue(2, delay=HOUR)
    names = await overview.project_names(database, [engine.owner.project_id, 999])
    assert list(names) == [engine.owner.project_id]
    assert names[engine.owner.project_id].account == names[engine.owner.project_id].project

    async def counted() -> overview.Sizes:
        return await overview.sizes(database)

    for _ in range(100):  # each backend tells its statistics once a second at most
        if (found := await counted()) == overview.Sizes(3, 2):
            break
        await asyncio.sleep(0.1)
    assert found == overview.Sizes(3, 2)
