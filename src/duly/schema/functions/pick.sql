-- Lock up to p_limit due rows of one lane and return where they stand: by priority, then by time. Segments are taken in
-- the order of their first row, so the first row picked is exactly the lane's first; behind it rows of two segments may
-- change places. Rows that another claim holds are passed by. Each search starts at a live row (head), so the dead
-- entries before it are walked once.
create function duly.pick(p_live bigint[], p_account integer, p_lane bigint, p_limit integer) returns tid[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_picked tid[] := '{}';
    v_level  smallint := -1;
    v_levels smallint[];
    v_heads  timestamptz[];
    v_ids    uuid[];
    v_where  bigint[];
begin
    loop
        -- where each segment's first row after the levels done so far stands, the lane's first one first
        select array_agg(s.segment), array_agg(s.priority), array_agg(s.run_at), array_agg(s.job_id)
        into v_where, v_levels, v_heads, v_ids
        from (
            select live.segment, head.priority, head.run_at, head.job_id
            from unnest(p_live) live (segment)
            cross join lateral (
                select r.priority, r.run_at, r.job_id from duly.ready r
                where r.segment = live.segment and r.account_id = p_account and r.lane_id = p_lane and r.priority > v_level
                order by r.priority, r.run_at, r.job_id limit 1) head
            order by head.priority, head.run_at, head.job_id) s;
        exit when v_where is null;
        v_level := v_levels[1];
        v_picked := v_picked || array(
            select line.ctid
            from unnest(v_where, v_levels, v_heads, v_ids) head (segment, priority, run_at, job_id)
            cross join lateral (
                select r.ctid from duly.ready r
                where r.segment = head.segment and r.account_id = p_account and r.lane_id = p_lane and r.priority = v_level
                  and (r.run_at, r.job_id) >= (head.run_at, head.job_id)
                order by r.run_at, r.job_id
                limit p_limit - cardinality(v_picked)
                for update skip locked) line
            where head.priority = v_level
            limit p_limit - cardinality(v_picked));
        exit when cardinality(v_picked) >= p_limit;
    end loop;
    return v_picked;
end $$;
