-- What happened to jobs of these projects from p_from until p_to (excluded), oldest first, at most p_limit: jobs made, attempts that ended, jobs that
-- ended. Read off the facts by time: attempts and outcomes by their block ranges, jobs by their ids. Not told: a job whose id was made more than a
-- minute before it was stored, and what was committed after it was asked for.
create function duly.events(p_projects integer[], p_from timestamptz, p_to timestamptz, p_limit integer)
returns table (
    project_id integer, at timestamptz, kind text, job_id uuid, number integer, queue text, state text, reason text, outcome text,
    status_code smallint, next_run_at timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_oldest uuid := duly.uuid7_floor(p_from - interval '1 minute');
begin
    return query
    select e.* from (
        select j.project_id, j.created_at as at, 'job.created' as kind, j.id as job_id, 0 as number, j.queue, null::text as state, null::text as reason,
               null::text as outcome, null::smallint as status_code, j.run_at as next_run_at
        from unnest(p_projects) p (id)
        cross join lateral (
            select j.* from duly.job j where j.project_id = p.id and j.id >= v_oldest and j.created_at >= p_from and j.created_at < p_to offset 0) j
        union all
        select j.project_id, a.finished_at, 'attempt.ended', a.job_id, a.number, j.queue, null, null, a.outcome, a.status_code, a.next_run_at
        from (select a.* from duly.attempt a where a.finished_at >= p_from and a.finished_at < p_to offset 0) a
        cross join lateral (select j.project_id, j.queue from duly.job j where j.id = a.job_id offset 0) j
        where j.project_id = any (p_projects)
        union all
        select j.project_id, o.finished_at, 'job.' || o.state, o.job_id, o.attempt, j.queue, o.state, o.reason, null, null, null
        from (select o.* from duly.outcome o where o.finished_at >= p_from and o.finished_at < p_to offset 0) o
        cross join lateral (select j.project_id, j.queue from duly.job j where j.id = o.job_id offset 0) j
        where j.project_id = any (p_projects)) e
    order by e.at, e.job_id, e.number, e.kind
    limit p_limit;
end $$;
