-- running → succeeded | dead | cancelled | scheduled | ready: write how attempts ended, under the lease that the worker
-- still holds, and give back the jobs that were refused: somebody else's by now, nothing was written for them.
--
-- p_edges: null for succeeded; dead, cancelled · retry (again after the delay, next attempt number) · snooze (the same, and the
-- budget grows by one) · interrupted (ready again, the budget grows by one, 10 times at most, then it counts as a failure) · release
-- (ready again under the same number: it never started) · hold (scheduled after the delay under the same number: it never started, and
-- p_run_ats says when it was due, so that a repeat does not match the lease of the next time). A job whose cancelling was asked for
-- ends cancelled instead of going on; a success stands. Jobs that tell their end do (see call_back.sql). p_outcomes null: success for
-- a job that succeeded, no row in the ledger otherwise. Columns after p_attempts may be shorter or empty: what is missing is null. A
-- job is named once at most.
-- A lease that somebody else has locked is waited for one second; then the whole statement is rolled back (55P03), and the caller
-- settles the others by themselves.
-- The lease is matched by its key (job, attempt) and worker, and for a hold its time; by nothing else.
create function duly.settle(
    p_worker bigint, p_ids uuid[], p_attempts integer[], p_edges text[], p_delays double precision[], p_reasons text[],
    p_outcomes text[], p_status_codes integer[], p_errors text[], p_details jsonb[], p_excerpts bytea[], p_results jsonb[],
    p_run_ats timestamptz[] default '{}')
returns setof uuid
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set lock_timeout = '1s'
as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_held    tid[];
    v_settled uuid[];
    v_ready   integer;
    v_later   timestamptz;
    v_called  uuid[];
begin
    -- By key, one by one, in id order: LATERAL with a lock cannot become anything else. As a plain join the planner may turn it
    -- round and walk all of lease, dead rows included, whenever vacuum last counted none.
    v_held := array(
        select l.place
        from (select u.job_id, u.attempt, u.run_at from unnest(p_ids, p_attempts, p_run_ats) u (job_id, attempt, run_at) order by u.job_id) g
        cross join lateral (
            select l.ctid as place from duly.lease l
            where l.job_id = g.job_id and l.attempt = g.attempt and l.worker_id = p_worker and (g.run_at is null or l.run_at = g.run_at)
            for update) l);

    with given as (
        select g.job_id, coalesce(g.edge, 'succeeded') as edge, coalesce(g.delay_seconds, 0) as delay_seconds, g.reason,
               coalesce(g.outcome, case when g.edge is null then 'success' end) as outcome, g.status_code, g.error, g.detail, g.excerpt, g.result
        from unnest(p_ids, p_edges, p_delays, p_reasons, p_outcomes, p_status_codes, p_errors, p_details, p_excerpts, p_results)
            g (job_id, edge, delay_seconds, reason, outcome, status_code, error, detail, excerpt, result)
    ), gone as (
        delete from duly.lease l where l.ctid = any (v_held)
        returning l.job_id, l.attempt, l.final_attempt, l.run_at, l.lane_id, l.account_id, l.priority, l.claimed_at, l.trigger, l.cancel_requested,
                  l.has_callbacks
    ), decided as (
        select o.job_id, o.attempt, o.final_attempt, o.run_at, o.lane_id, o.account_id, o.priority, o.claimed_at, o.trigger, o.has_callbacks,
               g.edge, g.delay_seconds, g.reason, g.outcome, g.status_code, g.error, g.detail, g.excerpt, g.result,
               case when g.edge in ('succeeded', 'cancelled') then g.edge
                    when o.cancel_requested then 'cancelled'
                    when g.edge = 'interrupted' and o.attempt >= o.final_attempt and duly.interruptions(o.job_id) >= 10 then 'dead'
                    else g.edge end as way,
               case when g.edge = 'interrupted' and duly.interruptions(o.job_id) >= 10 then 0
                    when g.edge in ('interrupted', 'snooze') then 1 else 0 end as grown
        from gone o join given g on g.job_id = o.job_id
        order by o.job_id   -- rows that lie in the order of their index are walked page by page, not row by row
    ), recorded as (
        insert into duly.attempt (
            job_id, number, worker_id, trigger, started_at, finished_at, outcome, status_code, error, next_run_at, detail, excerpt)
        select d.job_id, d.attempt, p_worker, d.trigger, d.claimed_at, v_now, d.outcome, d.status_code, d.error,
               case when d.way in ('retry', 'snooze') then v_now + make_interval(secs => d.delay_seconds) end, d.detail, d.excerpt
        from decided d where d.outcome is not null
    ), finished as (
        insert into duly.outcome (job_id, account_id, state, reason, attempt, final_attempt, result, finished_at)
        select d.job_id, d.account_id, d.way, case when d.way = 'dead' then coalesce(d.reason, 'attempts_exhausted') end,
               case when d.edge = 'release' or d.outcome is null then d.attempt - 1 else d.attempt end, d.final_attempt, d.result, v_now
        from decided d
        where d.way not in ('retry', 'snooze', 'hold', 'interrupted', 'release')   -- an unknown one is no state: all is refused
    ), again as (
        insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, held, trigger)
        select d.job_id, d.account_id, d.priority, d.attempt + (d.way <> 'hold')::integer, d.lane_id,
               v_now + make_interval(secs => d.delay_seconds), d.final_attempt + d.grown, d.way = 'hold',
               case d.way when 'retry' then 'retry' when 'hold' then d.trigger else 'schedule' end
        from decided d where d.way in ('retry', 'snooze', 'hold')
    ), back as (
        insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt, final_attempt, trigger)
        select (select c.last_value from duly.segment_current c), d.job_id, d.run_at, duly.line_at(d.run_at, d.priority), d.lane_id, d.account_id, d.priority,
               d.attempt + (d.way = 'interrupted')::integer, d.final_attempt + d.grown, case d.way when 'interrupted' then 'recovery' else d.trigger end
        from decided d where d.way in ('release', 'interrupted')
        returning job_id
    )
    select array_agg(d.job_id), (select count(*) from back),
           v_now + make_interval(secs => min(d.delay_seconds) filter (where d.way in ('retry', 'snooze', 'hold'))),
           array_agg(d.job_id) filter (where d.has_callbacks and d.way in ('succeeded', 'dead'))
    into v_settled, v_ready, v_later, v_called from decided d;

    if v_ready > 0 then
        perform duly.wake();
    end if;
    if v_later is not null then
        perform duly.wake_promoter(v_later);
    end if;
    if v_called is not null then
        perform duly.call_back(v_called);
    end if;
    if coalesce(cardinality(v_settled), 0) < cardinality(p_ids) then
        return query select g.id from unnest(p_ids) g (id) where not g.id = any (coalesce(v_settled, '{}'));
    end if;
end $$;

-- How often a graceful stop has interrupted a job so far.
create function duly.interruptions(p_job uuid) returns bigint
language sql stable
return (select count(*) from duly.attempt a where a.job_id = p_job and a.outcome = 'interrupted');
