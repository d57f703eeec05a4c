-- Hold a job that waits for its time, if it does: true then. A statement of its own, so that the next one sees the row as whoever had it
-- left it: the snapshot of a statement that waited for the row does not have the version it waited for.
create function duly.hold_scheduled(p_job uuid) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    perform from duly.scheduled s where s.job_id between p_job and p_job order by s.job_id limit 1 for update;
    return found;
end $$;

-- scheduled | ready → cancelled, if that is where it is: true if it was.
create function duly.withdraw(p_job uuid, p_reason text) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_account integer;
    v_attempt integer;
    v_final   integer;
begin
    if duly.hold_scheduled(p_job) then
        delete from duly.scheduled s where s.ctid = any (array(   -- in order of the key: the index by time ends in the key too, and would be walked
            select x.ctid from duly.scheduled x where x.job_id between p_job and p_job order by x.job_id limit 1))
        returning s.account_id, s.attempt, s.final_attempt into v_account, v_attempt, v_final;
    else
        delete from duly.ready r where r.ctid = any (array(
            select x.ctid from duly.ready x where x.job_id between p_job and p_job order by x.job_id limit 1 for update))
        returning r.account_id, r.attempt, r.final_attempt into v_account, v_attempt, v_final;
    end if;
    if v_attempt is null then
        return false;
    end if;
    insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt)
    values (p_job, v_account, 'cancelled', p_reason, v_attempt - 1, v_final);
    return true;
end $$;

-- scheduled | ready → cancelled, exactly; running: no further attempt after this one, and with p_abort the worker is asked to
-- stop it. Returns cancelled, requested (running), final (the job had ended otherwise) or missing (no such job of this owner).
create function duly.cancel(p_account integer, p_project integer, p_job uuid, p_abort boolean) returns text
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_state text;
begin
    perform from duly.job j where j.id = p_job and j.account_id = p_account and j.project_id = p_project;
    if not found then
        return 'missing';
    end if;
    for i in 1 .. 20 loop   -- a job that moves on between two looks is caught at the next one
        if duly.withdraw(p_job, null) then
            return 'cancelled';
        end if;
        update duly.lease l set cancel_requested = true, abort_requested = l.abort_requested or p_abort where l.job_id = p_job;
        if found then
            return 'requested';
        end if;
        select o.state into v_state from duly.outcome o where o.job_id = p_job;
        if found then
            return case v_state when 'cancelled' then 'cancelled' else 'final' end;
        end if;
    end loop;
    raise exception 'job % moves too fast to be cancelled', p_job using errcode = '40001', hint = 'try again';
end $$;

-- scheduled → ready, now. Returns run, wrong_state or missing.
create function duly.run_now(p_account integer, p_project integer, p_job uuid) returns text
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    perform from duly.job j where j.id = p_job and j.account_id = p_account and j.project_id = p_project;
    if not found then
        return 'missing';
    end if;
    if not duly.hold_scheduled(p_job) then
        return 'wrong_state';
    end if;
    with gone as (
        delete from duly.scheduled s where s.ctid = any (array(   -- in order of the key: the index by time ends in the key too, and would be walked
            select x.ctid from duly.scheduled x where x.job_id between p_job and p_job order by x.job_id limit 1))
        returning s.job_id, s.lane_id, s.account_id, s.priority, s.attempt, s.final_attempt
    )
    insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt, final_attempt, trigger)
    select (select c.last_value from duly.segment_current c), g.job_id, v_now, duly.line_at(v_now, g.priority), g.lane_id, g.account_id, g.priority, g.attempt,
           g.final_attempt, 'manual'
    from gone g;
    perform duly.wake();
    return 'run';
end $$;

-- dead | cancelled → ready with a fresh budget; attempt numbers go on. Returns redriven, wrong_state, missing, key_taken
-- (another job has its unique key by now) or expired (it may not start any more).
create function duly.redrive(p_account integer, p_project integer, p_job uuid, p_by text) returns text
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_job     duly.job;
    v_attempt integer;
begin
    select * into v_job from duly.job j where j.id = p_job and j.account_id = p_account and j.project_id = p_project;
    if not found then
        return 'missing';
    end if;
    select o.attempt into v_attempt from duly.outcome o where o.job_id = p_job and o.state in ('dead', 'cancelled') for update;
    if not found then
        return 'wrong_state';
    end if;
    if v_job.expires_at <= v_now then
        return 'expired';
    end if;
    if v_job.unique_key is not null then
        perform from duly.take_key(p_project, v_job.unique_key, p_job, v_job.unique_for, 'error', v_job.created_at) t
        where t.taken_by is not null;
        if found then
            return 'key_taken';
        end if;
    end if;
    delete from duly.outcome o where o.job_id = p_job;
    insert into duly.redrive (job_id, after_attempt, redriven_at, redriven_by) values (p_job, v_attempt, v_now, p_by)
    on conflict (job_id, after_attempt) do update set redriven_at = excluded.redriven_at, redriven_by = excluded.redriven_by;
    insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt, final_attempt, trigger)
    select (select c.last_value from duly.segment_current c), p_job, v_now, duly.line_at(v_now, v_job.priority), v_job.lane_id,
           v_job.account_id, v_job.priority, v_attempt + 1, v_attempt + v_job.max_attempts, 'redrive';
    perform duly.wake();
    return 'redriven';
end $$;
