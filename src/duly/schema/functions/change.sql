-- Change a job that waits for its time, as its owner saw it: p_revision, p_attempt and p_next_run_at are what was read of it. The fact itself is
-- changed, under the lock of the job's row in scheduled: whoever claims, promotes or cancels it comes before or after.
-- Null: that part stays (p_tags: an empty array takes them all; p_payload and p_body go together, p_has_body false: none from now on).
-- p_run_at in the past is now. Before the first attempt it is also when the job was to run first, which its age counts from.
-- Returns changed, stale (somebody was faster), wrong_state, expired (it would be due at or after its expires_at), too_often or missing.
create function duly.change(
    p_account integer, p_project integer, p_job uuid, p_revision integer, p_attempt integer, p_next_run_at timestamptz,
    p_run_at timestamptz, p_payload jsonb, p_body bytea, p_max_attempts integer, p_retry jsonb, p_priority integer, p_tags text[])
returns text
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_now  timestamptz := clock_timestamp();
    v_held duly.scheduled;
    v_job  duly.job;
    v_due  timestamptz;
begin
    perform from duly.job j where j.id = p_job and j.account_id = p_account and j.project_id = p_project;
    if not found then
        return 'missing';
    end if;
    if not duly.hold_scheduled(p_job) then
        return 'wrong_state';
    end if;
    select * into v_held from duly.scheduled s where s.job_id between p_job and p_job order by s.job_id limit 1;
    select * into v_job from duly.job j where j.id = p_job;
    if coalesce(v_job.revision, 0) <> p_revision or v_held.attempt <> p_attempt or v_held.run_at <> p_next_run_at then
        return 'stale';
    elsif v_job.revision = 1000 then
        return 'too_often';
    end if;
    v_due := case when p_run_at is null then v_held.run_at else greatest(p_run_at, v_now) end;
    if v_job.expires_at <= v_due then
        return 'expired';
    end if;
    if p_tags is not null then
        perform duly.untag(p_job);
    end if;
    update duly.job j
    set run_at = case when v_held.attempt = 1 and p_run_at is not null then v_due else j.run_at end,
        payload = coalesce(p_payload, j.payload), body = case when p_payload is null then j.body else p_body end,
        max_attempts = coalesce(p_max_attempts, j.max_attempts), retry = case when p_max_attempts is null then j.retry else p_retry end,
        priority = coalesce(p_priority, j.priority), tags = case when p_tags is null then j.tags else nullif(p_tags, '{}') end,
        revision = coalesce(j.revision, 0) + 1
    where j.id = p_job;
    if p_tags is not null then
        perform duly.tag(array[p_job]);
    end if;
    update duly.scheduled s   -- what is left of the budget changes by what its size does; the attempt to come is always its own
    set run_at = v_due, priority = coalesce(p_priority, s.priority), held = s.held and p_run_at is null,
        final_attempt = greatest(s.attempt, s.final_attempt + coalesce(p_max_attempts - v_job.max_attempts, 0))
    where s.job_id = p_job and s.run_at = v_held.run_at;
    perform duly.wake_promoter(v_due);
    return 'changed';
end $$;
