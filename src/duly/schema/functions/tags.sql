-- The tags of jobs in a table of their own, in the order in which a list by tag walks them.
create function duly.tag(p_jobs uuid[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    insert into duly.job_tag (project_id, tag, job_id)
    select distinct j.project_id, t.tag, j.id
    from unnest(p_jobs) g (id)
    cross join lateral (select j.id, j.project_id, j.tags from duly.job j where j.id = g.id offset 0) j   -- "offset 0": by key for each
    cross join unnest(j.tags) t (tag)
    order by 1, 2, 3;
end $$;

-- Take back the tags of a job, before it loses them.
create function duly.untag(p_job uuid) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_job duly.job;
begin
    select * into v_job from duly.job j where j.id = p_job;
    if v_job.tags is not null then
        delete from duly.job_tag t where t.project_id = v_job.project_id and t.tag = any (v_job.tags) and t.job_id = p_job;
    end if;
end $$;
