-- The same round as next_lanes for the usual case that few lanes have due work: all of them are read in one walk, one probe per
-- lane and live segment, and put in the order of the round in memory. Nulls if there are more than p_count, closed ones
-- counted: ask next_lanes.
create function duly.few_lanes(
    p_live bigint[], p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[],
    p_kinds text[], p_queues text[], p_shut bigint[], p_count integer, out accounts integer[], out lanes bigint[])
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_accounts integer[] := '{}';
    v_lanes    bigint[] := '{}';
    v_account  integer := 0;
    v_lane     bigint := 0;
    v_passed   bigint;
begin
    for i in 0 .. p_count loop
        select head.account_id, head.lane_id into v_account, v_lane
        from unnest(p_live) live (segment)
        cross join lateral (
            select r.account_id, r.lane_id from duly.ready r
            where r.segment = live.segment and (r.account_id, r.lane_id) > (v_account, v_lane)
            order by r.account_id, r.lane_id limit 1) head
        order by head.account_id, head.lane_id limit 1;
        if v_account is null then
            select coalesce(array_agg(o.account order by o.turn, o.behind, o.account), '{}'),
                   coalesce(array_agg(o.lane order by o.turn, o.behind, o.account), '{}')
            into accounts, lanes
            from (
                select d.account, d.lane, d.account <= p_after_account as behind,
                       row_number() over (partition by d.account order by d.lane <= coalesce(
                           p_seen_lanes[array_position(p_seen_accounts, d.account)], 0), d.lane) as turn
                from unnest(v_accounts, v_lanes) d (account, lane)) o;
            return;
        end if;
        exit when i = p_count;
        v_passed := duly.closed_until(v_account, v_lane, p_kinds, p_queues, p_shut);
        if v_passed is null then
            v_accounts := v_accounts || v_account;
            v_lanes := v_lanes || v_lane;
        else
            v_lane := v_passed;
        end if;
    end loop;
end $$;
