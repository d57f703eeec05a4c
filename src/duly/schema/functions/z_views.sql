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

-- The conservation check, in one snapshot: every job is in exactly one place. All the last five columns are 0 on a sound system.
create view duly.conservation as
with place as (
    select s.job_id, 'scheduled' as place from duly.scheduled s
    union all select r.job_id, 'ready' from duly.ready r
    union all select l.job_id, 'running' from duly.lease l
    union all select o.job_id, o.state from duly.outcome o
), placed as (
    select p.job_id, count(*) as places from place p group by p.job_id
)
select (select count(*) from duly.job) as jobs,
       (select count(*) from place p where p.place = 'scheduled') as scheduled,
       (select count(*) from place p where p.place = 'ready') as ready,
       (select count(*) from place p where p.place = 'running') as running,
       (select count(*) from place p where p.place = 'succeeded') as succeeded,
       (select count(*) from place p where p.place = 'dead') as dead,
       (select count(*) from place p where p.place = 'cancelled') as cancelled,
       (select count(*) from duly.job j where not exists (select from placed p where p.job_id = j.id)) as jobs_nowhere,
       (select count(*) from placed p where p.places > 1) as jobs_in_several_places,
       (select count(*) from placed p where not exists (select from duly.job j where j.id = p.job_id)) as places_without_job,
       (select count(*) from duly.ready r where r.segment < (select f.last_value from duly.ready_floor f)
            or exists (select from duly.retired t where t.line = 'ready' and t.segment = r.segment)) as ready_in_retired_segments,
       (select count(*) from duly.lease l where l.segment < (select f.last_value from duly.lease_floor f)
            or exists (select from duly.retired t where t.line = 'lease' and t.segment = l.segment)) as leases_in_retired_segments;
