-- All lanes with due work after (p_account, p_lane), in number order, in one walk of p_looks at most: one probe per lane and live segment.
-- From the start it is the usual case of the round, that few lanes have due work: through, and the lanes from which the worker may
-- claim are put in the order of the round (see next_lanes.sql) in memory. From elsewhere it is a step of a sweep, which goes over
-- everything once, in bounded steps: the next one begins at (at_account, at_lane).
create function duly.few_lanes(
    p_live bigint[], p_account integer, p_lane bigint, p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[],
    p_kinds text[], p_queues text[], p_full integer[], p_count integer, p_looks integer,
    out accounts integer[], out lanes bigint[], out at_account integer, out at_lane bigint, out through boolean,
    out wait_seconds double precision)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_accounts integer[] := '{}';
    v_lanes    bigint[] := '{}';
    v_account  integer;
    v_lane     bigint;
    v_in       integer := -1;   -- the account looked at last,
    v_full     boolean;         -- and whether it gets nothing
    v_block    bigint := -1;
    v_closed   boolean;
    v_wait     double precision;
    v_limit    integer;
    v_project  integer;
    v_queue    text;
    v_leased   bigint[];
begin
    at_account := p_account;
    at_lane := p_lane;
    through := false;
    for i in 1 .. p_looks loop
        select head.account_id, head.lane_id into v_account, v_lane
        from unnest(p_live) live (segment)
        cross join lateral (
            select r.account_id, r.lane_id from duly.ready r
            where r.segment = live.segment and (r.account_id, r.lane_id) > (at_account, at_lane)
            order by r.account_id, r.lane_id limit 1) head
        order by head.account_id, head.lane_id limit 1;
        if v_account is null then
            through := true;
            exit;
        end if;
        exit when cardinality(v_lanes) = p_count;
        at_account := v_account;
        at_lane := v_lane;
        if v_account <> v_in then
            v_in := v_account;
            v_full := v_account = any (p_full) or duly.account_is_full(v_account);
        end if;
        if v_full then
            at_lane := 9223372036854775807;
            continue;
        end if;
        if v_lane >> 32 <> v_block then
            v_block := v_lane >> 32;
            select l.closed, l.wait_seconds, l.key_limit, l.project_id, l.queue into v_closed, v_wait, v_limit, v_project, v_queue
            from duly.look_at_block(v_account, v_block::integer, p_kinds, p_queues) l;
            wait_seconds := least(wait_seconds, v_wait);
        end if;
        if v_closed then
            at_lane := v_lane | 4294967295;
        else
            if v_limit is not null and v_leased is null then
                v_leased := duly.leased();
            end if;
            if v_limit is null or not duly.key_is_full(v_account, v_project, v_queue, v_lane, v_limit, v_leased) then
                v_accounts := v_accounts || v_account;
                v_lanes := v_lanes || v_lane;
            end if;
        end if;
    end loop;
    select coalesce(array_agg(o.account order by o.turn, o.behind, o.account), '{}'),
           coalesce(array_agg(o.lane order by o.turn, o.behind, o.account), '{}')
    into accounts, lanes
    from (
        select d.account, d.lane, d.account <= p_after_account as behind,
               row_number() over (partition by d.account order by d.lane <= coalesce(
                   p_seen_lanes[array_position(p_seen_accounts, d.account)], 0), d.lane) as turn
        from unnest(v_accounts, v_lanes) d (account, lane)) o;
end $$;
