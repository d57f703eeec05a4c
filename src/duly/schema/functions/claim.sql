-- ready → running. Up to p_limit due jobs for a worker whose lease is good, each with what its handler needs. No row means
-- that nothing is due in the lanes it serves.
--
-- A claim serves up to 8 lanes (see few_lanes.sql, next_lanes.sql), each with an equal part of what is left of p_limit, then up to 64 if
-- those were thin, and again as long as it finds no room where a rival claims under a limit. It may return fewer than p_limit although one lane has more: claim again. p_closed and p_upwards_from
-- are live_segments('ready'), a second or so old at most. With p_rest_seconds the worker says, before it looks, that it
-- will sleep that long if it finds nothing (see wake.sql).
create function duly.claim(
    p_worker bigint, p_limit integer, p_kinds text[], p_queues text[],
    p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[], p_closed bigint[], p_upwards_from bigint,
    p_rest_seconds double precision)
returns table (
    job_id uuid, attempt integer, final_attempt integer, trigger text, run_at timestamptz, priority smallint,
    account_id integer, project_id integer, lane_id bigint, queue text, kind text, max_attempts smallint,
    timeout_seconds real, retry text, payload text, body bytea, age_seconds double precision, expired boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now      timestamptz := clock_timestamp();
    v_live     bigint[] := p_closed || array(select generate_series(p_upwards_from, (select c.last_value from duly.segment_current c)));
    v_accounts integer[];
    v_lanes    bigint[];
    v_done     integer := 0;          -- lanes already served
    v_shut     bigint[] := '{}';      -- blocks in which a rival claims, or a limit was reached meanwhile
    v_before   integer;               -- how many of them before this round
    v_room     integer;
    v_picked   tid[] := '{}';
    v_left     integer := p_limit;
    v_from     integer[] := '{}';     -- per lane served: its account,
    v_in       bigint[] := '{}';      -- its number,
    v_counts   integer[] := '{}';     -- how many were picked
    v_more     tid[];
    v_count    integer;
    v_few      boolean;
begin
    if not exists (select from duly.worker w where w.id = p_worker and w.lease_expires_at > v_now) then   -- a heartbeat brings it back
        raise exception 'worker % has lost its lease', p_worker using errcode = 'DU001', hint = 'renew it first, or register again';
    end if;
    if p_rest_seconds > 0 then
        perform duly.rest(p_rest_seconds);
    end if;
    for v_round in 1 .. 20 loop
        v_count := case v_round when 1 then 8 else 64 end;
        v_before := cardinality(v_shut);
        v_lanes := null;
        if v_count = 8 then
            select n.accounts, n.lanes into v_accounts, v_lanes
            from duly.few_lanes(v_live, p_after_account, p_seen_accounts, p_seen_lanes, p_kinds, p_queues, v_shut, v_count) n;
        end if;
        v_few := v_lanes is not null;
        if not v_few then
            select n.accounts, n.lanes into v_accounts, v_lanes
            from duly.next_lanes(v_live, p_after_account, p_seen_accounts, p_seen_lanes, p_kinds, p_queues, v_shut, v_count) n;
        end if;
        for i in v_done + 1 .. cardinality(v_lanes) loop
            exit when v_left = 0;
            v_done := i;
            v_room := duly.room(
                v_accounts[i], v_lanes[i], ceil(v_left::numeric / (cardinality(v_lanes) - i + 1))::integer, v_from, v_in, v_counts);
            if v_room = 0 then
                v_shut := v_shut || (v_lanes[i] >> 32);
                continue;
            end if;
            v_more := duly.pick(v_live, v_accounts[i], v_lanes[i], v_room);
            v_picked := v_picked || v_more;
            v_from := v_from || v_accounts[i];
            v_in := v_in || v_lanes[i];
            v_counts := v_counts || cardinality(v_more);
            v_left := p_limit - cardinality(v_picked);
        end loop;
        exit when v_left = 0 or cardinality(v_lanes) = 0;
        if cardinality(v_shut) > v_before and cardinality(v_picked) = 0 then   -- look past those
            v_done := 0;
        else
            exit when v_few or v_round > 1 or cardinality(v_lanes) < v_count;
        end if;
    end loop;
    if cardinality(v_picked) = 0 then
        return;
    end if;
    perform duly.advance_after(cardinality(v_picked), 5000, 32);

    return query
    with gone as (
        delete from duly.ready r where r.ctid = any (v_picked)
        returning r.job_id, r.run_at, r.lane_id, r.account_id, r.priority, r.attempt, r.final_attempt, r.trigger
    ), taken as (
        select g.job_id, g.run_at, g.lane_id, g.account_id, g.priority, g.attempt, g.final_attempt, g.trigger,
               j.project_id, j.queue, j.kind, j.max_attempts, j.timeout_seconds, j.retry, j.payload, j.body, j.run_at as due_at, j.expires_at,
               j.on_success is not null or j.on_dead is not null as has_callbacks
        from gone g
        cross join lateral (   -- "offset 0": by key for each row, also where the plan was made when the day was empty
            select j.* from duly.job j where j.id = g.job_id offset 0) j
    ), leased as (
        insert into duly.lease (
            segment, job_id, run_at, lane_id, worker_id, claimed_at, deadline_at, account_id, priority, attempt, final_attempt, has_callbacks,
            trigger)
        select (select c.last_value from duly.segment_current c), t.job_id, t.run_at, t.lane_id, p_worker, v_now,
               v_now + make_interval(secs => t.timeout_seconds + 30), t.account_id, t.priority, t.attempt, t.final_attempt,
               t.has_callbacks, t.trigger
        from taken t
    )
    select t.job_id, t.attempt, t.final_attempt, t.trigger, t.run_at, t.priority, t.account_id, t.project_id, t.lane_id, t.queue, t.kind,
           t.max_attempts, t.timeout_seconds, t.retry::text, t.payload::text, t.body,
           extract(epoch from v_now - case   -- a job still on its first budget was never redriven: no need to look
               when t.trigger = 'schedule' and t.final_attempt = t.max_attempts then t.due_at else coalesce(
               (select max(d.redriven_at) from duly.redrive d where d.job_id = t.job_id), t.due_at) end)::double precision,
           coalesce(t.expires_at <= v_now, false)
    from taken t;
end $$;
