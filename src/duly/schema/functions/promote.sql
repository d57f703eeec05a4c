-- scheduled → ready for up to p_limit jobs whose time has come. Looks at the last minute only, so that it does not walk the
-- entries of everything ever promoted; with p_sweep it looks at all the past (once a minute, for what was committed late).
-- sleep_seconds: how long the promoter may sleep now: until the next job is due, p_at_most_seconds if none is before; 0 if there is
-- more to promote. Whoever schedules something for earlier wakes it (see wake.sql).
create function duly.promote(
    p_limit integer, p_sweep boolean, p_at_most_seconds double precision, out promoted integer, out sleep_seconds double precision)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_until timestamptz;
    v_first timestamptz;
begin
    with gone as (
        delete from duly.scheduled s
        where s.ctid = any (array(
            select d.ctid from duly.scheduled d
            where d.run_at > case when p_sweep then '-infinity' else v_now - interval '1 minute' end and d.run_at <= v_now
            order by d.run_at, d.job_id limit p_limit for update skip locked))
        returning s.job_id, s.run_at, s.lane_id, s.account_id, s.priority, s.attempt, s.final_attempt, s.trigger
    ), due as (
        insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt, final_attempt, trigger)
        select (select c.last_value from duly.segment_current c), g.job_id, g.run_at, duly.line_at(g.run_at, g.priority), g.lane_id, g.account_id,
               g.priority, g.attempt, g.final_attempt, g.trigger
        from gone g
        returning 1
    )
    select count(*) into promoted from due;
    if promoted = p_limit then
        sleep_seconds := 0;
    else   -- said before the look, so that what is committed after the look finds it
        v_until := clock_timestamp() + make_interval(secs => p_at_most_seconds);
        perform setval('duly.promote_at', (extract(epoch from v_until) * 1000)::bigint);
        v_first := (select s.run_at from duly.scheduled s where s.run_at > v_now and s.run_at < v_until order by s.run_at limit 1);
        if v_first is not null then
            perform setval('duly.promote_at', (extract(epoch from v_first) * 1000)::bigint);
        end if;
        sleep_seconds := greatest(0, extract(epoch from coalesce(v_first, v_until) - clock_timestamp()));
    end if;
    if promoted > 0 then
        perform duly.advance_after(promoted, 20000, 4);
        perform duly.wake();
    end if;
end $$;
