-- running → scheduled | dead | cancelled, for leases that ended without a settle: their worker's time has passed (or its row is
-- gone), or their own deadline has. Each gets its attempt row; the attempt counts. Returns what was rescued; at most
-- p_limit, so call again until it returns fewer. Walks the live segments of lease: what runs now, not what ever ran.
-- While the server was away nobody could renew: for one lease after its start nothing is taken, so that an outage burns no attempt.
-- Its start says too little: recovery after a crash can take longer than a lease, and a standby that took over started long ago.
-- So the caller says in p_watched_seconds for how long the database has answered it without a break (null: it does not know).
create function duly.rescue(p_closed bigint[], p_upwards_from bigint, p_limit integer, p_watched_seconds double precision default null)
returns table (job_id uuid, attempt integer, worker_id bigint, outcome text, way text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := clock_timestamp();
    v_up   interval := least(clock_timestamp() - pg_postmaster_start_time(), make_interval(secs => p_watched_seconds));
    v_gone bigint[];     -- workers known whose time has passed
    v_ids      uuid[];   -- what was rescued, column by column
    v_attempts integer[];
    v_workers  bigint[];
    v_outcomes text[];
    v_ways     text[];
    v_called   uuid[];   -- of those the dead ones with callbacks
begin
    v_gone := array(
        select w.id from duly.worker w
        where w.lease_expires_at <= v_now and v_up > make_interval(secs => w.lease_seconds));
    with gone as (
        delete from duly.lease l
        where l.ctid = any (array(
            select r.ctid
            from unnest(p_closed || array(select generate_series(p_upwards_from, (select c.last_value from duly.segment_current c)))) live (segment)
            cross join lateral (   -- with a lock inside: segment by segment, whatever the planner believes of lease
                select r.ctid from duly.lease r
                where r.segment = live.segment
                  and ((r.deadline_at <= v_now and v_up > interval '30 seconds')
                       or r.worker_id = any (v_gone)
                       or not exists (select from duly.worker w where w.id = r.worker_id))
                limit p_limit for update of r skip locked) r
            limit p_limit))
        returning l.job_id, l.attempt, l.final_attempt, l.lane_id, l.account_id, l.priority, l.worker_id, l.claimed_at, l.trigger, l.cancel_requested,
                  l.has_callbacks,
                  case when l.worker_id = any (v_gone) or not exists (select from duly.worker w where w.id = l.worker_id)
                       then 'worker_lost' else 'timeout' end as outcome
    ), decided as (
        select g.*,
               case when g.cancel_requested then 'cancelled' when g.attempt >= g.final_attempt then 'dead' else 'scheduled' end as way,
               least(60, 2 ^ least(g.attempt - 1, 6)) * (0.75 + random() / 2) as delay_seconds
        from gone g
    ), recorded as (
        insert into duly.attempt (job_id, number, worker_id, trigger, started_at, finished_at, outcome, error, next_run_at)
        select d.job_id, d.attempt, d.worker_id, d.trigger, d.claimed_at, v_now, d.outcome,
               case d.outcome when 'timeout' then 'the job held its worker past its deadline' else 'the worker stopped answering; its lease ran out' end,
               case when d.way = 'scheduled' then v_now + make_interval(secs => d.delay_seconds) end
        from decided d
    ), finished as (
        insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt, finished_at)
        select d.job_id, d.account_id, d.way, case when d.way = 'dead' then case d.outcome when 'worker_lost' then 'worker_lost' else 'attempts_exhausted' end end,
               d.attempt, d.final_attempt, v_now
        from decided d where d.way <> 'scheduled'
    ), again as (
        insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, trigger)
        select d.job_id, d.account_id, d.priority, d.attempt + 1, d.lane_id, v_now + make_interval(secs => d.delay_seconds), d.final_attempt, 'recovery'
        from decided d where d.way = 'scheduled'
    )
    select array_agg(d.job_id), array_agg(d.attempt), array_agg(d.worker_id), array_agg(d.outcome), array_agg(d.way),
           array_agg(d.job_id) filter (where d.has_callbacks and d.way = 'dead')
    into v_ids, v_attempts, v_workers, v_outcomes, v_ways, v_called from decided d;
    if v_ids is not null then
        perform duly.wake_promoter(v_now + interval '1 second');
    end if;
    if v_called is not null then
        perform duly.call_back(v_called);
    end if;
    return query select u.* from unnest(v_ids, v_attempts, v_workers, v_outcomes, v_ways) u;

    delete from duly.worker w   -- long gone and holding nothing: forgotten
    where w.lease_expires_at < v_now - interval '1 day'
      and not exists (
          select from unnest(p_closed || array(select generate_series(p_upwards_from, (select c.last_value from duly.segment_current c)))) live (segment)
          cross join lateral (select from duly.lease l where l.segment = live.segment and l.worker_id = w.id limit 1) l);
end $$;
