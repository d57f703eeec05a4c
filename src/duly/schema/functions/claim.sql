-- ready → running. Up to p_limit due jobs for a worker whose lease is good, each with what its handler needs. No row means
-- that nothing is due in the lanes it serves.
--
-- A claim serves up to 8 lanes (see few_lanes.sql, next_lanes.sql), each with an equal part of what is left of p_limit (by the weights
-- of their accounts, where those differ), then up to 64 if those were thin, and again as long as it finds no room where a
-- rival claims under a limit. It may return fewer than p_limit although one lane has more: claim again. p_closed and
-- p_upwards_from are live_segments('ready'), a second or so old at most. With p_rest_seconds the worker says, before it looks,
-- that it will sleep that long if it finds nothing (see wake.sql). An account gets p_cap jobs at most, those in p_capped what stands
-- in p_caps.
--
-- Lanes from which nothing may be claimed cost a look each, or one for a whole block or account, and a claim makes 160 looks at most.
-- What it then did not see it tells in one more row, the last, without a job_id: expired: it saw all; age_seconds: look again
-- in so many seconds at the latest; payload: account → the lane up to which it looked in vain, account_id: the last account
-- looked at (null: the one served last): the next claim goes on from there. With p_from_account and p_from_lane a claim is a step of
-- a sweep: it looks at what stands behind them in number order, and the last row's account_id and lane_id say where the next step
-- begins.
create function duly.claim(
    p_worker bigint, p_limit integer, p_kinds text[], p_queues text[],
    p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[], p_closed bigint[], p_upwards_from bigint,
    p_rest_seconds double precision, p_cap integer default null, p_capped integer[] default '{}', p_caps integer[] default '{}',
    p_from_account integer default null, p_from_lane bigint default null)
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
    v_weights  integer[];             -- null: all the same
    v_done     integer := 0;          -- lanes already served
    v_shut     bigint[] := '{}';      -- blocks in which a rival claims, or a limit was reached meanwhile
    v_full     integer[] := array(select c.account from unnest(p_capped, p_caps) c (account, cap) where c.cap <= 0);
    v_before   integer;               -- how many of both before this round
    v_looks    integer := 160;
    v_passed   jsonb := '{}';
    v_through  boolean;
    v_wait     double precision;
    v_at       integer;               -- where the walk stands: the account,
    v_at_lane  bigint;                -- and in a sweep the lane
    v_next     record;
    v_part     integer;
    v_applies  text;                  -- which limits
    v_room     integer;               -- null: a rival has it
    v_rate     integer;               -- null: none
    v_seconds  double precision;
    v_project  integer;
    v_queue    text;
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
        v_before := cardinality(v_shut) + cardinality(v_full);
        v_few := v_round = 1 or p_from_account is not null;
        if v_few then
            select n.accounts, n.lanes, case when p_from_account is not null then n.at_account end, n.at_lane, n.through, n.wait_seconds
            into v_accounts, v_lanes, v_at, v_at_lane, v_through, v_wait
            from duly.few_lanes(
                v_live, coalesce(p_from_account, 0), coalesce(p_from_lane, 0), p_after_account, p_seen_accounts, p_seen_lanes, p_kinds, p_queues,
                v_full, case when p_from_account is null then 8 else 64 end, case when p_from_account is null then 9 else v_looks end) n;
            v_few := v_through or p_from_account is not null;
        end if;
        if not v_few then
            select n.* into v_next
            from duly.next_lanes(
                v_live, p_after_account, p_seen_accounts, p_seen_lanes, p_kinds, p_queues, v_shut, v_full, v_count, v_looks) n;
            v_accounts := v_next.accounts;
            v_lanes := v_next.lanes;
            v_at := v_next.last_account;
            v_through := v_next.through;
            v_looks := v_next.looks;
            v_wait := least(v_wait, v_next.wait_seconds);
            if cardinality(v_next.passed_accounts) > 0 then
                v_passed := v_passed || jsonb_object(v_next.passed_accounts::text[], v_next.passed_lanes::text[]);
            end if;
        end if;
        v_weights := null;
        if cardinality(v_accounts) > 1 and p_from_account is null then
            v_weights := array(
                select (select a.weight from duly.account a where a.id = o.account) from unnest(v_accounts) with ordinality o (account, place)
                order by o.place);
            if v_weights[1] = all (v_weights) then
                v_weights := null;
            end if;
        end if;
        for i in v_done + 1 .. cardinality(v_lanes) loop
            exit when v_left = 0;
            v_done := i;
            continue when v_accounts[i] = any (v_full);
            if v_weights is null then
                v_part := ceil(v_left::numeric / (cardinality(v_lanes) - i + 1));
            else   -- what is less than one is drawn, so that weights count however small claims are
                v_part := least(v_left, floor(
                    v_left::double precision * v_weights[i] / (select sum(w) from unnest(v_weights[i:]) w) + random()));
                v_through := v_through and v_part > 0;
                continue when v_part = 0;
            end if;
            v_part := least(v_part, coalesce(p_caps[array_position(p_capped, v_accounts[i])], p_cap) - coalesce((
                select sum(f.n) from unnest(v_from, v_counts) f (account, n) where f.account = v_accounts[i]), 0));
            if v_part <= 0 then
                v_full := v_full || v_accounts[i];
                continue;
            end if;
            v_rate := null;
            v_applies := duly.limits_of(v_accounts[i], v_lanes[i]);
            if v_applies = 'account' then
                v_full := v_full || v_accounts[i];
                v_wait := least(v_wait, 0.005);
                continue;
            elsif v_applies = 'queue' then
                v_shut := v_shut || (v_lanes[i] >> 32);
                v_wait := least(v_wait, 0.005);
                continue;
            elsif v_applies = 'limited' then
                select r.room, r.rate_limit, r.rate_seconds, r.project_id, r.queue into v_room, v_rate, v_seconds, v_project, v_queue
                from duly.room(v_accounts[i], v_lanes[i], v_part, v_from, v_in, v_counts) r;
                if v_room > 0 then
                    v_part := v_room;
                else
                    v_shut := v_shut || (v_lanes[i] >> 32);
                    v_wait := least(v_wait, case when v_room is null then 0.005 end);
                    continue;
                end if;
            end if;
            v_more := duly.pick(v_live, v_accounts[i], v_lanes[i], v_part);
            v_picked := v_picked || v_more;
            v_from := v_from || v_accounts[i];
            v_in := v_in || v_lanes[i];
            v_counts := v_counts || cardinality(v_more);
            v_left := p_limit - cardinality(v_picked);
            if v_rate is not null and cardinality(v_more) > 0 then
                perform duly.spend(v_project, v_queue, v_rate, v_seconds, cardinality(v_more));
            end if;
        end loop;
        exit when v_left = 0 or cardinality(v_lanes) = 0 or v_looks <= 0 or p_from_account is not null;
        if cardinality(v_shut) + cardinality(v_full) > v_before and cardinality(v_picked) = 0 then   -- look past those
            v_done := 0;
        else
            exit when v_few or v_round > 1 or cardinality(v_lanes) < v_count;
        end if;
    end loop;
    if cardinality(v_picked) > 0 then
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
    end if;
    if v_passed <> '{}' or p_from_account is not null or v_left > 0 and (not v_through or v_wait is not null) then
        return query
        select null::uuid, null::integer, null::integer, null::text, null::timestamptz, null::smallint,
               case when v_left > 0 or p_from_account is not null then v_at end, null::integer, v_at_lane,
               null::text, null::text, null::smallint, null::real, null::text, v_passed::text, null::bytea, v_wait, v_through;
    end if;
end $$;
