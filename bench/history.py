"""A past to measure beside: many jobs that finished in the last hour, some that wait, made in bulk by SQL."""

from __future__ import annotations

import asyncpg

from bench.setting import Place, analyze

FAILED_EVERY = 10
DEAD_EVERY = 50
TAGGED_EVERY = 10
_CHUNK = 200_000
_LIMIT_S = 600.0
# Failures, deaths, queues, hosts and tags lie evenly over time; bodies and answers are as they are in life.
_JOBS = f"""
    with made as materialized (
        select duly.uuid7() as id, n, now() - interval '1 hour' + n * interval '1 hour' / $5 as at
        from generate_series($3::integer, $4::integer) n
    ), facts as (
        insert into duly.job (id, account_id, project_id, lane_id, queue, kind, priority, max_attempts, timeout_seconds,
            run_at, tags, payload, body, created_at)
        select m.id, $1, $2, 1, 'q-' || m.n % 5, 'http', 5, 8, 30,
            case when $6 then now() + interval '1 day' else m.at end,
            case when m.n % {TAGGED_EVERY} = 0 then array['t'] end,
            jsonb_build_object('url', 'https://host-' || m.n % 50 || '.example.com/hook',
                               'method', case when m.n % 4 = 0 then 'PUT' else 'POST' end),
            convert_to(repeat('x', 100), 'utf8'), m.at from made m
    ), tagged as (
        insert into duly.job_tag (project_id, tag, job_id)
        select $2, 't', m.id from made m where m.n % {TAGGED_EVERY} = 0
    )"""
_FINISHED = f"""{_JOBS}, ended as (
        insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt, finished_at)
        select m.id, $1, case when m.n % {DEAD_EVERY} = 0 then 'dead' else 'succeeded' end,
            case when m.n % {DEAD_EVERY} = 0 then 'permanent' end, 1, 8, m.at from made m where not $6
    )
    insert into duly.attempt (job_id, number, worker_id, trigger, started_at, finished_at, outcome, status_code, error)
    select m.id, 1, 1, 'schedule', m.at - interval '0.1 s', m.at,
        case when m.n % {FAILED_EVERY} = 0 then 'http_error' else 'success' end,
        case when m.n % {FAILED_EVERY} = 0 then 404 else 200 end,
        case when m.n % {FAILED_EVERY} = 0 then 'the target answered 404' end
    from made m order by m.n
"""
_SCHEDULED = f"""{_JOBS}
    insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, trigger)
    select m.id, $1, 5, 1, 1, now() + interval '1 day', 8, 'schedule' from made m order by m.n
"""


async def fill(place: Place, finished: int, scheduled: int = 0) -> None:
    """Give the place a past of `finished` jobs and, in equal parts among them, `scheduled` ones of tomorrow."""
    chunks = max(1, -(-finished // _CHUNK))
    connection = await asyncpg.connect(place.dsn)
    try:
        for chunk in range(chunks):
            for statement, count in ((_FINISHED, finished), (_SCHEDULED, scheduled)):
                first, last = (count * n // chunks for n in (chunk, chunk + 1))
                if last > first:
                    owner = place.owner
                    arguments = (owner.account_id, owner.project_id, first, last - 1, count, statement is _SCHEDULED)
                    await connection.execute(statement, *arguments, timeout=_LIMIT_S)
    finally:
        await connection.close()
    await analyze(place.dsn)
