"""The plans behind the hot functions: index scans by full key, live segment or time window, at every size, with any
statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from duly import queue
from duly.model import Unique
from duly.model.settlement import Edge
from duly.queue import ClaimCursor, Database, QueueSettings, Rate, Session, breaker, noticing
from duly.queue.schedules import START_OF_FIRES
from duly.upkeep import SegmentKeeper
from support.engine import Engine, new_job, settled
from support.plans import Plan, PlanLog, faults
from support.sessions import holding

MILLION = 1_000_000
RATE = Rate(1_000_000, timedelta(seconds=1))  # never reached, always looked at
HOUR = timedelta(hours=1)


async def each_hot_statement(engine: Engine, session: Session) -> None:
    """Every hot function once, each on rows of its own, so that each statement inside does some work."""
    late = (await engine.enqueue(10, priority=0, db=session))[-1]
    [_] = await engine.enqueue(delay=HOUR, db=session)
    await session.execute(
        "update duly.scheduled set run_at = now() where job_id in (select job_id from duly.scheduled limit 1)"
    )
    await queue.promote(session, 100)
    await queue.promote(session, 100, sweep=True)
    jobs = await engine.claim(7, db=session, cursor=ClaimCursor())
    edges: tuple[Edge, ...] = ("succeeded", "dead", "retry", "snooze", "interrupted", "release", "hold")
    await engine.settle(*(settled(job, edge, delay=HOUR) for job, edge in zip(jobs, edges, strict=True)), db=session)
    await queue.heartbeat(session, engine.worker_id)
    await engine.claim(3, db=session)
    await engine.rescue(db=session)
    await engine.enqueue(2, queue="told", max_attempts=1, on_success={}, on_dead={}, db=session)
    told, lost = await engine.claim(2, queues=["told"], db=session, cursor=ClaimCursor())
    await engine.settle(settled(told, "succeeded"), db=session)
    await session.execute("update duly.lease set worker_id = 0 where job_id = $1", lost.id)
    await engine.rescue(db=session)
    await queue.give_back(session, engine.worker_id, [], await queue.live_segments(session, "lease"))
    await queue.cancel(session, engine.owner, late)
    await queue.redrive(session, engine.owner, late)
    await queue.run_now(session, engine.owner, late)
    for line in ("ready", "lease"):
        closing = await queue.advance(session) - 1
        await queue.segment_rows(session, line, closing, 100)
        await queue.move(session, line, closing, 50)
        await queue.segment_holders(session, line)
        await queue.retire(session, line, closing, [])


async def each_firing_statement(session: Session) -> None:
    """Schedules: what is due, its fires taken, one put off, one parked; fires refused and forgotten."""
    for _ in range(4):
        await session.execute(
            """with made as (
                   insert into duly.schedule (id, account_id, project_id, cron, anchor_at, missed, missed_limit,
                                              missed_after, overlap, jitter, kind, payload, options, weight_bytes)
                   select duly.uuid7(), p.account_id, p.id, '* * * * *', now(), 'one', 1, '1 minute', 'skip', '0', 'k',
                          '{}', '{}', 1 from duly.project p limit 1
                   returning id
               )
               insert into duly.schedule_turn (schedule_id, state, next_fire_at, since_at, look_at)
               select m.id, 'active', clock_timestamp(), now(), clock_timestamp() from made m"""
        )
    for tasks_only in (False, True):
        await queue.until_next_look(session, HOUR, tasks_only=tasks_only)
        await queue.due_schedules(session, 10, 1000, sweep=True, tasks_only=tasks_only)
    found = await queue.due_schedules(session, 10, 1000)
    turns = [
        queue.Turned(
            one, at := one.next_fire_at + HOUR, at, (queue.Fire(one.next_fire_at, "made", 1, one.schedule_id),)
        )
        for one in found[:-2]
    ]
    taken = await queue.take_fires(session, turns)
    await queue.refuse_fires(session, [(schedule, at, "taken") for schedule, at in taken][:1])
    await queue.put_off(session, found[-1], HOUR, waits=True)
    await queue.park(session, found[-2], "x")
    await queue.prune_fires(session, START_OF_FIRES, found[0].seen_at + HOUR, 2)


async def each_guarded_statement(engine: Engine, session: Session) -> None:
    """The same under unique keys and limits; and a breaker."""
    await queue.set_queue(session, engine.owner.project_id, "limited", QueueSettings(3, 1, rate=RATE))
    await queue.set_account_concurrency(session, engine.owner.account_id, 50)
    for key in ("a", "b"):
        await engine.enqueue(2, queue="limited", concurrency_key=key, priority=0, db=session)
    while jobs := await engine.claim(3, db=session, queues=["limited"], cursor=ClaimCursor()):
        assert await engine.claim(3, db=session, queues=["limited"], cursor=ClaimCursor()) == []
        await engine.settle(*(settled(job, "succeeded") for job in jobs), db=session)
    await queue.set_account_concurrency(session, engine.owner.account_id, None)
    for n in range(2):
        await breaker.open_breaker(session, n, "h", 20, None, HOUR, -HOUR)
        probe = await breaker.claim_probe(session, n, "h", HOUR)
        await breaker.claim_probe(session, n, "h", HOUR)
        await breaker.end_probe(session, n, "h", probe.number, failed=True, error="e", pause=HOUR, wait=HOUR)
    await breaker.close_breaker(session, 0, "h")
    keys = [Unique("a"), Unique("b", "start"), Unique("c", HOUR), Unique("a"), Unique("a", on_conflict="replace")]
    batch = [(engine.owner, new_job(unique=key)) for key in keys]
    answers = [answer for _ in range(2) for answer in await queue.enqueue(session, batch)]
    for answer in answers[:5]:
        await queue.cancel(session, engine.owner, answer.job_id)
        await queue.redrive(session, engine.owner, answer.job_id)
        await queue.cancel(session, engine.owner, answer.job_id)


async def each_counting_statement(engine: Engine, session: Session) -> None:
    """What is counted of an account, and its quota."""
    account = engine.owner.account_id
    await queue.account_usage(session, account, 100)
    await queue.stored_jobs(session, account, 1_000)
    await queue.take_quota(session, account, 1_000_000, 1, 10)
    await queue.give_back_quota(session, account, 9, 1.0)


async def each_noticing_statement(engine: Engine, session: Session) -> None:
    """What notices look at every half minute: the latest dead letters, of one account and of all."""
    account, project = engine.owner.account_id, engine.owner.project_id
    await noticing.recent_deaths(session, account, project, HOUR, 100)
    await noticing.recent_deaths(session, None, None, HOUR, 100)
    await noticing.quota_taken(session, account)


TASK = '[{"task": "t", "args": {}, "queue": "q", "priority": 5, "max_attempts": 2, "timeout_seconds": 9}]'


async def each_task_statement(engine: Engine, session: Session) -> None:
    """A task in each of its states, looked at there."""
    job_id = await session.fetchval("select job_id from duly.enqueue_tasks($1)", TASK)
    look = "select duly.task_state($1)"
    await session.fetchval(look, job_id)
    [job] = await engine.claim(1, db=session, kinds=["task:t"], cursor=ClaimCursor())
    await queue.note_progress(session, [queue.NotedProgress(job.id, job.attempt, 1)])
    await session.fetchval(look, job_id)
    await engine.settle(settled(job, "retry", delay=HOUR), db=session)
    await session.fetchval(look, job_id)
    await queue.cancel(session, queue.Owner(job.account_id, job.project_id), job_id)
    await session.fetchval(look, job_id)


@asynccontextmanager
async def planned(url: str) -> AsyncIterator[tuple[Session, PlanLog]]:
    """A fresh session (no cached plan) whose plans are heard."""
    connection = await asyncpg.connect(url)
    try:
        yield Session(connection, "duly"), await PlanLog.on(connection)
    finally:
        connection.terminate()


_OF_THE_TEST = ("select job_id from duly.scheduled limit 1", "set worker_id = 0", "from duly.project p limit 1")


def ours(plan: Plan) -> bool:
    """A statement of the engine, not of the test itself."""
    return "duly." in plan.statement and not any(own in plan.statement for own in _OF_THE_TEST)


async def bad_plans(engine: Engine, url: str) -> dict[str, set[str]]:
    """Run everything often enough for generic plans to be chosen; statement → what is wrong with it."""
    bad: dict[str, set[str]] = defaultdict(set)
    heard = 0
    async with planned(url) as (session, log):
        for _ in range(7):
            await each_hot_statement(engine, session)
            await each_guarded_statement(engine, session)
            await each_counting_statement(engine, session)
            await each_noticing_statement(engine, session)
            await each_firing_statement(session)
            await each_task_statement(engine, session)
            for plan in filter(ours, await log.take()):
                heard += 1
                for fault in faults(plan):
                    bad[plan.statement].add(fault)
    assert heard > 7 * 30, "auto_explain told less than the statements that were run"
    return bad


async def load_ready(db: Database, engine: Engine, n: int) -> None:
    """n ready jobs in bulk, over a hundred lanes and a hundred segments."""
    await engine.put(*(new_job(concurrency_key=f"bulk {n}") for n in range(100)))
    for batch in range(n // 100_000):
        await load_batch(db, engine, batch * 100_000)
    await db.execute("select setval('duly.segment_current', 10 + $1::bigint / 10000 + 1)", n)


async def load_batch(db: Database, engine: Engine, start: int) -> None:
    await db.execute(
        """with made as materialized (
               select duly.uuid7() as id, n, l.id as lane_id from generate_series($1::integer, $1 + 99999) n
               join (select id, row_number() over () as nth from duly.lane
                     where concurrency_key like 'bulk%') l on l.nth = 1 + n % 100
           ), facts as (
               insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts,
               timeout_seconds, run_at, payload)
               select m.id, $2, $3, m.lane_id, 'default', 'k', 5, 8, 30, now(), '{}' from made m
           )
           insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt,
           final_attempt, trigger)
           select 10 + m.n / 10000, m.id, now(), now() + interval '5 hours', m.lane_id, $2, 5, 1, 8, 'schedule'
           from made m""",
        start,
        engine.owner.account_id,
        engine.owner.project_id,
    )


async def leave_dead_rows(db: Database, engine: Engine, n: int) -> None:
    """n dead rows in scheduled, ready and lease, and no live one. The planner then believes that a walk over all of
    an index costs
    nothing, which is how a join over them turns into one.
    """
    for table in ("ready", "lease", "scheduled"):
        await db.execute(f"delete from duly.{table}")
    ids = await engine.enqueue(n, delay=HOUR)
    await db.execute("update duly.scheduled set run_at = now()")
    await queue.promote(db, n)
    while jobs := await engine.claim(n):
        await engine.settle(*(settled(job, "succeeded") for job in jobs))
    assert len(ids) == n


async def analyze(db: Database) -> None:
    await db.execute("analyze")


async def without_autovacuum(db: Database) -> None:
    """Statistics are this test's to decide."""
    for row in await db.fetch(
        """select oid::regclass::text as name from pg_class
           where relkind = 'r' and relnamespace = 'duly'::regnamespace"""
    ):
        await db.execute(f"alter table {row['name']} set (autovacuum_enabled = off)")


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_hot_statements_are_bounded_scans_at_every_size_and_with_any_statistics(
    database: Database, database_url: str
) -> None:
    """Empty, without and with statistics; a million ready rows with the statistics of the empty tables; with their
    own; and
    empty again with those of the million; and dead rows behind a snapshot that vacuum counted as none. Seven runs
    each, so that custom and generic plans are seen.
    """
    engine = await Engine.start(database, lease=HOUR)
    await without_autovacuum(database)
    found: dict[str, dict[str, set[str]]] = {}
    found["never analyzed, empty"] = await bad_plans(engine, database_url)
    await analyze(database)
    found["analyzed, empty"] = await bad_plans(engine, database_url)
    await load_ready(database, engine, MILLION)
    found["a million, statistics of the empty tables"] = await bad_plans(engine, database_url)
    await analyze(database)
    found["a million, analyzed"] = await bad_plans(engine, database_url)
    await database.execute("delete from duly.ready")
    found["emptied, statistics of the million"] = await bad_plans(engine, database_url)
    async with holding(database_url, "repeatable_read") as (snapshot, _):
        await snapshot.fetchval("select count(*) from duly.ready")
        await leave_dead_rows(database, engine, 2000)
        await database.execute("vacuum analyze")
        found["dead rows only, and vacuum says: no rows"] = await bad_plans(engine, database_url)
    told = [
        f"{size}: {fault} in: {' '.join(statement.split())[:100]}"
        for size, bad in found.items()
        for statement, faults_of_it in bad.items()
        for fault in sorted(faults_of_it)
    ]
    assert not told, "\n".join(told)


Question = tuple[str, Callable[[Session], Awaitable[object]], int]


async def buffers(session: Session, log: PlanLog, ask: Callable[[Session], Awaitable[object]]) -> int:
    """The shared buffers that the outermost statement touched, triggers and nested statements included."""
    await ask(session)
    heard = await log.take()
    return max(plan.buffers for plan in heard)


TIMES = 10  # a job is claimed before it ends: each leaves a dead row in ready and one in lease
CLAIM_AND_SETTLE = """
    with claimed as materialized (
        select c.job_id, c.attempt from duly.claim($1, 5000, '{k}', null, 0, '{}', '{}', $2, $3, 0) c)
    select count(*) from duly.settle(
        $1, array(select job_id from claimed), array(select attempt from claimed), array(select $4::text from claimed),
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')
"""


async def enqueue_in_bulk(db: Database, engine: Engine, n: int) -> None:
    """Through duly.enqueue, with arrays made by the server."""
    await db.fetchval(
        """select count(*) from duly.enqueue(
               array(select duly.uuid7() from generate_series(1, $1::integer)), array_fill($2::integer, array[$1]),
               array_fill($3::integer, array[$1]), array_fill('default'::text, array[$1]), array_fill('k'::text,
               array[$1]), '{}',
               array_fill(5, array[$1]), '{}', '{}', array_fill(8, array[$1]), array_fill(30::float8, array[$1]),
               '{}', '{}', '{}', '{}',
               array_fill('{}'::jsonb, array[$1]), '{}')""",
        n,
        engine.owner.account_id,
        engine.owner.project_id,
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_million_dead_rows_behind_a_held_snapshot_cost_hot_statements_nothing(
    database: Database, database_url: str
) -> None:
    """FO-044: Jobs claimed and released ten times each while a snapshot is held, five thousand at a time, until half a
    million dead rows
    lie in ready and as many in lease, none of which vacuum may take. Segments turn as upkeep turns them.

    Upkeep has not turned since the last 50,000 rows of each line: what a second of 50,000 jobs leaves in segments
    that are still live. A claim walks those, and nothing older: its look for lanes, for the head and for the row
    each go over the dead entries once, at some forty to a page of index and table, so about 3 × 50,000 / 40 = 3,750
    buffers, and 6,000 is the bound. A rescue goes over those of lease once: 3,000. Everything else goes by key:
    500. After one more turn a claim is within 500 too. Walking the other 450,000 once would touch ten thousands of
    buffers.
    """
    engine = await Engine.start(database, lease=HOUR)
    keepers = [SegmentKeeper(database, "ready"), SegmentKeeper(database, "lease")]
    await engine.enqueue(100, priority=9)  # stays behind all the others
    async with holding(database_url, "repeatable_read") as (snapshot, _):
        await snapshot.fetchval("select count(*) from duly.ready")
        for _ in range(MILLION // 2 // 5000 // TIMES):
            for keeper in keepers:
                await keeper.step()
            await enqueue_in_bulk(database, engine, 5000)
            for n in range(TIMES):
                live = await queue.live_segments(database, "ready")
                edge = "release" if n < TIMES - 1 else "cancelled"
                refused = await database.fetchval(
                    CLAIM_AND_SETTLE, engine.worker_id, live.closed, live.upwards_from, edge
                )
                assert refused == 0
        for line in ("ready", "lease"):
            pages = await database.fetchval(f"select pg_relation_size('duly.{line}') / 8192")
            assert pages > MILLION / 2 / 100, "the dead rows are not there: was the snapshot not held?"
        async with planned(database_url) as (session, log):
            job = (await engine.claim(1, db=session))[0]
            await log.take()
            questions: list[Question] = [
                ("claim of one", lambda s: engine.claim(1, db=s), 6000),
                ("claim of nothing", lambda s: engine.claim(1, db=s, kinds=["none"]), 6000),
                ("settle", lambda s: engine.settle(settled(job, "release"), db=s), 500),
                ("enqueue", lambda s: engine.enqueue(db=s), 500),
                ("promote", lambda s: queue.promote(s, 100), 500),
                ("heartbeat", lambda s: queue.heartbeat(s, engine.worker_id), 500),
                ("rescue", lambda s: engine.rescue(db=s), 3000),
                ("live segments", lambda s: queue.live_segments(s, "ready"), 500),
                ("cancel", lambda s: queue.cancel(s, engine.owner, job.id), 500),
                ("usage", lambda s: queue.account_usage(s, engine.owner.account_id, 10_000), 9000),
                ("stored jobs", lambda s: queue.stored_jobs(s, engine.owner.account_id, 10_000), 6000),
            ]
            touched = {name: await buffers(session, log, ask) for name, ask, _ in questions}
            for keeper in keepers:
                await keeper.step()
            questions.append(("claim after a turn", lambda s: engine.claim(1, db=s), 500))
            touched["claim after a turn"] = await buffers(session, log, questions[-1][1])
            assert {n: b for (n, _, bound) in questions if (b := touched[n]) > bound} == {}
    await engine.sound()


@pytest.mark.slow
async def test_usage_costs_the_same_however_much_waits(database: Database, database_url: str) -> None:
    """A hundred thousand waiting jobs or four times as many, in a hundred lanes, and as many scheduled: every scan is
    by key, and stops at its bound. 1,000 places where the oldest may stand, at 4 buffers each, and three counts to
    10,000 at some 40 rows a page: 6,000 buffers, however many jobs there are.
    """
    engine = await Engine.start(database)
    account = engine.owner.account_id
    await engine.put(*(new_job(concurrency_key=f"bulk {n}") for n in range(100)))
    touched: list[int] = []
    for batches in ([0], [1, 2, 3]):
        for batch in batches:
            await load_batch(database, engine, batch * 100_000)
            await database.execute(
                """insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt,
                                               trigger)
                   select duly.uuid7(), $1, 5, 1, 1, now() + n * interval '1 s', 8, 'schedule'
                     from generate_series(1, 100000) n""",
                account,
            )
        await database.execute("select setval('duly.segment_current', 60)")
        await database.execute("vacuum analyze duly.ready, duly.scheduled")
        async with planned(database_url) as (session, log):
            touched.append(await buffers(session, log, lambda s: queue.account_usage(s, account, 10_000)))
            await queue.account_usage(session, account, 10_000)
            assert not [fault for plan in await log.take() if ours(plan) for fault in faults(plan)]
        usage = await queue.account_usage(database, account, 10_000)
        assert (usage.due, usage.stored) == (10_000, 10_000)
    assert max(touched) < 6_000, touched
