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
left join duly.scheduled s on s.job_id = j.id
left join duly.ready r on r.job_id = j.id
left join duly.lease l on l.job_id = j.id
left join duly.outcome o on o.job_id = j.id
left join duly.worker w on w.id = l.worker_id
left join lateral (
    select a.outcome, a.status_code, a.error, a.started_at, a.finished_at
    from duly.attempt a where a.job_id = j.id order by a.number desc limit 1) a on true;
