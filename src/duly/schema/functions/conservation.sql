-- Where all jobs are, in one snapshot; the last five columns are 0 on a sound system: every job is in exactly one place, and no row
-- stands where nobody looks. What is retired is read first: it only grows, and the snapshot that counts is taken after it.
create function duly.conservation(
    out jobs bigint, out scheduled bigint, out ready bigint, out running bigint, out succeeded bigint, out dead bigint, out cancelled bigint,
    out jobs_nowhere bigint, out jobs_in_several_places bigint, out places_without_job bigint,
    out ready_in_retired_segments bigint, out leases_in_retired_segments bigint, out unique_keys_held_twice bigint)
language plpgsql
as $$
declare
    v_ready_floor   bigint := (select f.last_value from duly.ready_floor f);
    v_lease_floor   bigint := (select f.last_value from duly.lease_floor f);
    v_ready_retired bigint[] := array(select t.segment from duly.retired t where t.line = 'ready');
    v_lease_retired bigint[] := array(select t.segment from duly.retired t where t.line = 'lease');
begin
    with place as (
        select s.job_id, 'scheduled' as place from duly.scheduled s
        union all select r.job_id, 'ready' from duly.ready r
        union all select l.job_id, 'running' from duly.lease l
        union all select o.job_id, o.state from duly.outcome o
    ), placed as (
        select p.job_id, count(*) as places from place p group by p.job_id
    ), counted as (
        select p.place, count(*) as n from place p group by p.place
    )
    select (select count(*) from duly.job),
           coalesce((select c.n from counted c where c.place = 'scheduled'), 0),
           coalesce((select c.n from counted c where c.place = 'ready'), 0),
           coalesce((select c.n from counted c where c.place = 'running'), 0),
           coalesce((select c.n from counted c where c.place = 'succeeded'), 0),
           coalesce((select c.n from counted c where c.place = 'dead'), 0),
           coalesce((select c.n from counted c where c.place = 'cancelled'), 0),
           (select count(*) from duly.job j where not exists (select from placed p where p.job_id = j.id)),
           (select count(*) from placed p where p.places > 1),
           (select count(*) from placed p where not exists (select from duly.job j where j.id = p.job_id)),
           (select count(*) from duly.ready r
            where (r.segment < v_ready_floor and not exists (select from duly.kept k where k.line = 'ready' and k.segment = r.segment))
               or r.segment = any (v_ready_retired)),
           (select count(*) from duly.lease l
            where (l.segment < v_lease_floor and not exists (select from duly.kept k where k.line = 'lease' and k.segment = l.segment))
               or l.segment = any (v_lease_retired)),
           (select count(*) from (
               select from duly.job j
               where j.unique_for = 'until_final' and not exists (select from duly.outcome o where o.job_id = j.id)
               group by j.project_id, j.unique_key having count(*) > 1) held)
    into jobs, scheduled, ready, running, succeeded, dead, cancelled,
         jobs_nowhere, jobs_in_several_places, places_without_job, ready_in_retired_segments, leases_in_retired_segments,
         unique_keys_held_twice;
end $$;
