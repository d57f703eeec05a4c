-- The next account with due work after p_after, in number order; null if there is none. One index probe per live segment.
create function duly.next_account(p_live bigint[], p_after integer) returns integer
language plpgsql stable
as $$
begin
    return (
        select head.account_id
        from unnest(p_live) live (segment)
        cross join lateral (
            select r.account_id from duly.ready r
            where r.segment = live.segment and r.account_id > p_after
            order by r.account_id limit 1) head
        order by head.account_id limit 1);
end $$;

-- Look for the next lane of an account with due work after lane, and not after p_last if that is given, from which the worker may
-- claim. is_open: true: it is in lane. false: there is none. Null: `looks` lanes were looked at in vain, up to lane: go on there another
-- time. A block from which nothing may be claimed is one look, however many lanes it has. wait_seconds: when the first of those that
-- were passed by for want of tokens has some, if that is before what was given.
create function duly.next_open_lane(
    p_live bigint[], p_account integer, p_last bigint, p_kinds text[], p_queues text[], p_shut bigint[],
    inout lane bigint, inout looks integer, inout wait_seconds double precision, out is_open boolean)
language plpgsql stable
as $$
declare
    v_lane    bigint;
    v_block   bigint := -1;
    v_closed  boolean;
    v_wait    double precision;
    v_limit   integer;
    v_project integer;
    v_queue   text;
    v_leased  bigint[];
begin
    loop
        if looks <= 0 then
            is_open := null;
            return;
        end if;
        looks := looks - 1;
        v_lane := (
            select head.lane_id
            from unnest(p_live) live (segment)
            cross join lateral (
                select r.lane_id from duly.ready r
                where r.segment = live.segment and r.account_id = p_account and r.lane_id > lane
                order by r.lane_id limit 1) head
            order by head.lane_id limit 1);
        if v_lane is null or v_lane > p_last then
            is_open := false;
            return;
        end if;
        lane := v_lane;
        if lane >> 32 <> v_block then
            v_block := lane >> 32;
            v_closed := v_block = any (p_shut);
            if not v_closed then
                select l.closed, l.wait_seconds, l.key_limit, l.project_id, l.queue into v_closed, v_wait, v_limit, v_project, v_queue
                from duly.look_at_block(p_account, v_block::integer, p_kinds, p_queues) l;
                wait_seconds := least(wait_seconds, v_wait);
            end if;
        end if;
        if v_closed then
            lane := lane | 4294967295;
        else
            if v_limit is not null and v_leased is null then
                v_leased := duly.leased();
            end if;
            if v_limit is null or not duly.key_is_full(p_account, v_project, v_queue, lane, v_limit, v_leased) then
                is_open := true;
                return;
            end if;
        end if;
    end loop;
end $$;

-- Which lanes are next in the round: up to p_count lanes with due work from which the worker may claim. Accounts take turns after
-- p_after_account, one lane a turn; inside an account lanes take turns after the one in p_seen_lanes. The cost is per lane looked at, never
-- per job waiting, and p_looks bounds it: one account gets 16 of them a turn, then the next one is looked at, and passed_accounts and
-- passed_lanes say where its turn goes on. through: all that is due was looked at. last_account: the last one whose turn came.
-- p_full: accounts that get nothing from this claim.
create function duly.next_lanes(
    p_live bigint[], p_after_account integer, p_seen_accounts integer[], p_seen_lanes bigint[],
    p_kinds text[], p_queues text[], p_shut bigint[], p_full integer[], p_count integer, p_looks integer,
    out accounts integer[], out lanes bigint[], out passed_accounts integer[], out passed_lanes bigint[], out last_account integer,
    out through boolean, out looks integer, out wait_seconds double precision)
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
    v_wrap     boolean;
    v_next     record;
    v_turn     integer;              -- looks that the account has left
    v_open     boolean := true;
begin
    accounts := '{}';
    lanes := '{}';
    passed_accounts := '{}';
    passed_lanes := '{}';
    last_account := p_after_account;
    through := true;
    looks := p_looks;
    while cardinality(lanes) < p_count loop
        if looks <= 0 then
            through := false;
            exit;
        end if;
        v_account := duly.next_account(p_live, v_account);
        if v_account is null then
            exit when v_round = 1 or p_after_account < 1;
            v_round := 1;
            v_account := 0;
            continue;
        end if;
        exit when v_round = 1 and v_account > p_after_account;
        last_account := v_account;
        looks := looks - 1;
        continue when v_account = any (p_full);
        continue when duly.account_is_full(v_account);
        v_start := coalesce(p_seen_lanes[array_position(p_seen_accounts, v_account)], 0::bigint);
        v_turn := least(looks, 16);
        looks := looks - v_turn;
        v_wrap := false;
        select * into v_next from duly.next_open_lane(p_live, v_account, null, p_kinds, p_queues, p_shut, v_start, v_turn, wait_seconds);
        if not v_next.is_open and v_start > 0 then
            v_wrap := true;
            select * into v_next
            from duly.next_open_lane(p_live, v_account, v_start, p_kinds, p_queues, p_shut, 0, v_next.looks, v_next.wait_seconds);
        end if;
        looks := looks + v_next.looks;
        wait_seconds := v_next.wait_seconds;
        if v_next.is_open is null then
            through := false;
            passed_accounts := passed_accounts || v_account;
            passed_lanes := passed_lanes || v_next.lane;
        end if;
        continue when v_next.is_open is not true;
        v_accounts := v_accounts || v_account;
        v_starts := v_starts || v_start;
        v_wrapped := v_wrapped || v_wrap;
        v_cursors := v_cursors || v_next.lane;
        accounts := accounts || v_account;
        lanes := lanes || v_next.lane;
    end loop;

    v_open := true;
    while v_open and cardinality(lanes) < p_count and looks > 0 loop
        v_open := false;
        for i in 1 .. cardinality(v_accounts) loop
            continue when v_cursors[i] is null;
            if looks <= 0 then
                through := false;
                exit;
            end if;
            v_turn := least(looks, 16);
            looks := looks - v_turn;
            select * into v_next from duly.next_open_lane(
                p_live, v_accounts[i], case when v_wrapped[i] then v_starts[i] end, p_kinds, p_queues, p_shut, v_cursors[i], v_turn, wait_seconds);
            if not v_next.is_open and not v_wrapped[i] and v_starts[i] > 0 then
                v_wrapped[i] := true;
                select * into v_next from duly.next_open_lane(
                    p_live, v_accounts[i], v_starts[i], p_kinds, p_queues, p_shut, 0, v_next.looks, v_next.wait_seconds);
            end if;
            looks := looks + v_next.looks;
            wait_seconds := v_next.wait_seconds;
            through := through and v_next.is_open is not null;
            v_cursors[i] := case when v_next.is_open then v_next.lane end;
            continue when v_next.is_open is not true;
            accounts := accounts || v_accounts[i];
            lanes := lanes || v_next.lane;
            v_open := true;
            exit when cardinality(lanes) >= p_count;
        end loop;
    end loop;
    through := through and not v_open;   -- a turn that found something was not the last one
end $$;
