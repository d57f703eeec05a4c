-- Carry out a step of one operation whose time has come: look at up to p_look jobs from where it stands, and cancel or redrive what matches, at
-- most p_batch of them. One transaction with the note of how far it got, so that whoever dies leaves nothing half done and whoever comes next
-- goes on. Operations that somebody else carries out just now are passed by. No row: nothing is to do.
-- wait_seconds: how long until the next step of this one, 0 once it is finished.
create function duly.step_operation(p_batch integer, p_look integer)
returns table (operation uuid, done integer, refused integer, finished boolean, wait_seconds double precision)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_timestamp();
    v_it      duly.operation;
    v_found   record;
    v_job     uuid;
    v_result  text;
    v_done    integer := 0;
    v_refused integer := 0;
    v_seconds double precision;
begin
    select o.* into v_it from duly.operation o
    where o.finished_at is null and o.next_at <= v_now
    order by o.next_at limit 1 for update skip locked;
    if not found then
        return;
    end if;
    select f.ids, f.place, f.looked into v_found
    from duly.find_jobs(
        v_it.account_id, v_it.project_id, v_it.filter, v_it.place,
        least(p_batch, v_it.most - v_it.done, greatest(1, ceil(v_it.rate))::integer), p_look) f;
    for v_job in select g.id from unnest(v_found.ids) g (id) order by g.id loop   -- in id order, as whoever locks several jobs
        v_result := case v_it.call
            when 'cancel' then duly.cancel(v_it.account_id, v_it.project_id, v_job, false)
            else duly.redrive(v_it.account_id, v_it.project_id, v_job, format('operation %s by %s', v_it.id, v_it.requested_by)) end;
        if v_result in ('cancelled', 'requested', 'redriven') then
            v_done := v_done + 1;
        else
            v_refused := v_refused + 1;
        end if;
    end loop;
    finished := v_found.place is null or v_it.done + v_done >= v_it.most;
    v_seconds := case when finished then 0 else v_done / v_it.rate end;
    update duly.operation o
    set place = v_found.place, looked = o.looked + v_found.looked, done = o.done + v_done, refused = o.refused + v_refused,
        next_at = v_now + make_interval(secs => v_seconds), finished_at = case when finished then clock_timestamp() end
    where o.id = v_it.id;
    operation := v_it.id;
    done := v_done;
    refused := v_refused;
    wait_seconds := v_seconds;
    return next;
end $$;
