-- The next account with due work after p_after, in number order; null if there is none. One index probe per live segment.
create function duly.next_account(p_live bigint[], p_after integer) returns integer
language sql stable
as $$
    select head.account_id
    from unnest(p_live) live (segment)
    cross join lateral (
        select r.account_id from duly.ready r
        where r.segment = live.segment and r.account_id > p_after
        order by r.account_id limit 1) head
    order by head.account_id limit 1
$$;

-- The next lane of an account with due work after p_after; null if there is none.
create function duly.next_lane(p_live bigint[], p_account integer, p_after bigint) returns bigint
language sql stable
as $$
    select head.lane_id
    from unnest(p_live) live (segment)
    cross join lateral (
        select r.lane_id from duly.ready r
        where r.segment = live.segment and r.account_id = p_account and r.lane_id > p_after
        order by r.lane_id limit 1) head
    order by head.lane_id limit 1
$$;

-- The next lane of an account with due work after p_after, and not after p_last if that is given, from which the worker
-- may claim; null if there is none. Those that it does not serve, and those that are paused or full, are passed by (see limits.sql).
create function duly.next_open_lane(
    p_live bigint[], p_account integer, p_after bigint, p_last bigint, p_kinds text[], p_queues text[], p_shut bigint[]) returns bigint
language plpgsql stable
as $$
declare
    v_lane   bigint := p_after;
    v_passed bigint;
begin
    loop
        v_lane := duly.next_lane(p_live, p_account, v_lane);
        if v_lane is null or v_lane > p_last then
            return null;
        end if;
        v_passed := duly.closed_until(p_account, v_lane, p_kinds, p_queues, p_shut);
        if v_passed is null then
            return v_lane;
        end if;
        v_lane := v_passed;
    end loop;
end $$;

-- Which lanes are next in the round: up to p_count lanes with due work from which the worker may claim. Accounts take turns after
-- p_after_account, one lane a turn; inside an account lanes take turns after the one in p_seen_lanes. Accounts without such a lane
-- are passed by, however many there are. The cost is per lane looked at, never per job waiting.
create function duly.next_lanes(
    p_live bigint[], p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[],
    p_kinds text[], p_queues text[], p_shut bigint[], p_count integer, out accounts integer[], out lanes bigint[])
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_accounts integer[] := '{}';    -- those that have such a lane
    v_cursors  bigint[] := '{}';     -- per account: the lane passed last; null once it has no other
    v_wrapped  boolean[] := '{}';    -- per account: the end was passed, and the search goes on from its first lane
    v_starts   bigint[] := '{}';     -- per account: where the search began
    v_account  integer := p_after_account;
    v_round    integer := 0;         -- 0: up to the last account, 1: from the first one
    v_start    bigint;
    v_lane     bigint;
    v_open     boolean := true;
begin
    accounts := '{}';
    lanes := '{}';
    while cardinality(lanes) < p_count loop
        v_account := duly.next_account(p_live, v_account);
        if v_account is null then
            exit when v_round = 1 or p_after_account < 1;
            v_round := 1;
            v_account := 0;
            continue;
        end if;
        exit when v_round = 1 and v_account > p_after_account;
        v_start := coalesce(p_seen_lanes[array_position(p_seen_accounts, v_account)], 0::bigint);
        v_lane := duly.next_open_lane(p_live, v_account, v_start, null, p_kinds, p_queues, p_shut);
        v_open := v_lane is null and v_start > 0;
        if v_open then
            v_lane := duly.next_open_lane(p_live, v_account, 0, v_start, p_kinds, p_queues, p_shut);
        end if;
        continue when v_lane is null;
        v_accounts := v_accounts || v_account;
        v_starts := v_starts || v_start;
        v_wrapped := v_wrapped || v_open;
        v_cursors := v_cursors || v_lane;
        accounts := accounts || v_account;
        lanes := lanes || v_lane;
    end loop;

    v_open := true;
    while v_open and cardinality(lanes) < p_count loop
        v_open := false;
        for i in 1 .. cardinality(v_accounts) loop
            continue when v_cursors[i] is null;
            v_lane := duly.next_open_lane(
                p_live, v_accounts[i], v_cursors[i], case when v_wrapped[i] then v_starts[i] end, p_kinds, p_queues, p_shut);
            if v_lane is null and not v_wrapped[i] and v_starts[i] > 0 then
                v_wrapped[i] := true;
                v_lane := duly.next_open_lane(p_live, v_accounts[i], 0, v_starts[i], p_kinds, p_queues, p_shut);
            end if;
            v_cursors[i] := v_lane;
            continue when v_lane is null;
            accounts := accounts || v_accounts[i];
            lanes := lanes || v_lane;
            v_open := true;
            exit when cardinality(lanes) >= p_count;
        end loop;
    end loop;
end $$;
