-- Lock up to p_limit due rows of one lane and return where they stand, in the order of their places in line (see line.sql). The
-- first row picked is exactly the lane's first. Behind it order is kept between windows of line time, a minute at first and each
-- twice as long; inside a window rows of two segments may change places. Rows that another claim holds are passed by. Each
-- search starts at a live row (head), so the dead entries before it are walked once.
create function duly.pick(p_live bigint[], p_account integer, p_lane bigint, p_limit integer) returns tid[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_picked tid[] := '{}';
    v_done   timestamptz := '-infinity';   -- what stands before or at it was served
    v_until  timestamptz;
    v_window interval := '1 minute';
    v_heads  timestamptz[];
    v_ids    uuid[];
    v_where  bigint[];
begin
    while cardinality(v_picked) < p_limit loop
        -- where each segment's first row behind that stands, the lane's first one first
        select array_agg(s.segment), array_agg(s.line_at), array_agg(s.job_id) into v_where, v_heads, v_ids
        from (
            select live.segment, head.line_at, head.job_id
            from unnest(p_live) live (segment)
            cross join lateral (
                select r.line_at, r.job_id from duly.ready r
                where r.segment = live.segment and r.account_id = p_account and r.lane_id = p_lane and r.line_at > v_done
                order by r.line_at, r.job_id limit 1) head
            order by head.line_at, head.job_id) s;
        exit when v_where is null;
        v_until := v_heads[1] + v_window;
        v_picked := v_picked || array(
            select line.ctid
            from unnest(v_where, v_heads, v_ids) head (segment, line_at, job_id)
            cross join lateral (
                select r.ctid from duly.ready r
                where r.segment = head.segment and r.account_id = p_account and r.lane_id = p_lane
                  and (r.line_at, r.job_id) >= (head.line_at, head.job_id) and r.line_at <= v_until
                order by r.line_at, r.job_id
                limit p_limit - cardinality(v_picked)
                for update skip locked) line
            where head.line_at <= v_until
            limit p_limit - cardinality(v_picked));
        v_done := v_until;
        v_window := v_window * 2;
    end loop;
    return v_picked;
end $$;
