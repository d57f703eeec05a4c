-- What people expect to see in psql. Reading one job by id touches one row of each table; reading all reads everything.
create view duly.jobs as
select j.id, j.account_id, j.project_id, j.queue, j.concurrency_key, j.kind, j.priority,
       case when o.job_id is not null then o.state
            when l.job_id is not null then 'running'
            when r.job_id is not null then 'ready'
            when s.job_id is not null then 'scheduled' end as status,
       o.reason,
       coalesce(o.attempt, l.attempt, r.attempt - 1, s.attempt - 1) as attempts,
       coalesce(o.final_attempt, l.final_attempt, r.final_attempt, s.final_attempt) as final_attempt,
       j.max_attempts,
       j.run_at,
       coalesce(s.run_at, r.run_at) as next_run_at,
       w.name as locked_by,
       case when l.job_id is not null then least(w.lease_expires_at, l.deadline_at) end as lease_expires_at,
       coalesce(l.cancel_requested, false) as cancel_requested,
       coalesce(s.held, false) as held,
       a.outcome as last_outcome,
       a.status_code as last_status_code,
       a.error as last_error,
       coalesce(l.claimed_at, a.started_at) as started_at,
       o.finished_at,
       o.result,
       j.created_at,
       greatest(j.created_at, a.finished_at, l.claimed_at, o.finished_at) as updated_at
from duly.job j
left join lateral (   -- in order of the key: other indexes end in the key too, and would be walked
    select s.* from duly.scheduled s where s.job_id between j.id and j.id order by s.job_id limit 1) s on true
left join lateral (
    select r.* from duly.ready r where r.job_id between j.id and j.id order by r.job_id limit 1) r on true
left join duly.lease l on l.job_id = j.id
left join duly.outcome o on o.job_id = j.id
left join duly.worker w on w.id = l.worker_id
left join lateral (
    select a.outcome, a.status_code, a.error, a.started_at, a.finished_at
    from duly.attempt a where a.job_id = j.id order by a.number desc limit 1) a on true;

-- These jobs as the view shows them, with what their makers said, those of the owner only, in the order given; without bodies. By key for each,
-- whatever the planner believes.
create function duly.look(p_account integer, p_project integer, p_ids uuid[])
returns table (
    id uuid, account_id integer, project_id integer, queue text, concurrency_key text, kind text, priority smallint, status text,
    reason text, attempts integer, final_attempt integer, max_attempts smallint, run_at timestamptz, next_run_at timestamptz,
    started_at timestamptz, finished_at timestamptz, last_outcome text, last_status_code smallint, last_error text,
    cancel_requested boolean, held boolean, result jsonb, created_at timestamptz, payload jsonb, timeout_seconds real, retry jsonb,
    tags text[], metadata jsonb, expires_at timestamptz, unique_key text, unique_for text, on_success jsonb, on_dead jsonb,
    callback_of uuid, replay_of uuid, revision smallint, body bytea, has_body boolean)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select v.id, v.account_id, v.project_id, v.queue, v.concurrency_key, v.kind, v.priority, v.status, v.reason, v.attempts, v.final_attempt,
           v.max_attempts, v.run_at, v.next_run_at, v.started_at, v.finished_at, v.last_outcome, v.last_status_code, v.last_error,
           v.cancel_requested, v.held, v.result, v.created_at, j.payload, j.timeout_seconds, j.retry, j.tags, j.metadata, j.expires_at,
           j.unique_key, j.unique_for, j.on_success, j.on_dead, j.callback_of, j.replay_of, j.revision, null::bytea, j.body is not null
    from unnest(p_ids) g (id)
    cross join lateral (
        select v.* from duly.jobs v where v.id = g.id and v.account_id = p_account and v.project_id = p_project offset 0) v
    cross join lateral (select j.* from duly.job j where j.id = g.id offset 0) j;
end $$;
